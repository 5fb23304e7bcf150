"""What a worker's token says about itself, and whether it may be believed.

Protocol page, "Authentication": the JWT carries `sub` (worker id), `role` = worker and `service_id`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import cachetools
import msgspec

from kiwi_worker.errors import (
    AuthenticationError,
    ProtocolError,
    SettingsError,
    TokenUnavailable,
    TransportError,
)
from kiwi_worker.transport import Endpoint, SeldomClient, is_transient

__all__ = ["Claims", "TokenVerifier", "read_claims"]

_SYMMETRIC = ["HS256", "HS384", "HS512"]
_ASYMMETRIC = ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"]
_KEYS_KEPT = 64
_KEYS_KEPT_SECONDS = 3600.0

_SIGNATURE_ONLY = {
    "verify_signature": True,
    "verify_exp": False,
    "verify_nbf": False,
    "verify_iat": False,
    "verify_aud": False,
    "verify_iss": False,
    "verify_sub": False,
    "verify_jti": False,
}
"""Times are not compared with our wall clock, which may be wrong: the lifetime is counted in another way."""


@dataclass(frozen=True)
class Claims:
    """The claims of a token that a worker reads; each is None where the token has none.

    Attributes:
        sub: the worker id.
        role: what the bearer is.
        service_id: the service it works for.
        iat: when the token was issued, in seconds since 1970 by the issuer's clock.
        exp: when it is over, likewise.
    """

    sub: object = None
    role: object = None
    service_id: str | None = None
    iat: float | None = None
    exp: float | None = None

    @classmethod
    def of(cls, payload: Mapping[str, Any]) -> Claims:
        """The claims of a token's payload; what has the wrong type counts as absent."""
        service_id = payload.get("service_id")
        return cls(
            sub=payload.get("sub"),
            role=payload.get("role"),
            service_id=service_id if isinstance(service_id, str) and service_id else None,
            iat=_seconds(payload.get("iat")),
            exp=_seconds(payload.get("exp")),
        )


def read_claims(token: str) -> Claims:
    """The claims of a token, unverified; none when it is opaque, that is, no JWT."""
    import jwt  # here, since most of a worker's life needs no token to be read

    try:
        return Claims.of(jwt.decode(token, options={"verify_signature": False}))
    except jwt.PyJWTError:
        return Claims()


class TokenVerifier:
    """Reads a token's claims and verifies its signature; times and audience are not judged.

    Not for several threads at a time: the token manager fetches one token at a time.

    Args:
        key: the shared secret (HS256 and its like) or a public key in PEM form; setting `jwt_key`.
        jwks: the address of a key set with public keys, and how to reach it; setting `jwks_url`.
        user_agent: the `User-Agent` of the requests for the key set.
    """

    def __init__(
        self, *, key: str | None = None, jwks: Endpoint | None = None, user_agent: str = "kiwi-worker"
    ) -> None:
        self._key = key
        self._jwks = jwks
        self._user_agent = user_agent
        self._keys: cachetools.TTLCache[str | None, object] = cachetools.TTLCache(
            _KEYS_KEPT, _KEYS_KEPT_SECONDS
        )

    def __call__(self, token: str) -> Claims:
        """The claims of a token whose signature is right.

        Raises:
            AuthenticationError: it is not, or the token is no JWT, or it is signed with an unknown key.
            SettingsError: the key is unusable, or the package for such keys is not installed.
            TokenUnavailable: the key set cannot be fetched just now.
            ProtocolError: what was fetched is no key set.
        """
        key, algorithms, setting = self._means(token)
        return _verified(token, key, algorithms, setting)

    def _means(self, token: str) -> tuple[object, list[str], str]:
        if self._jwks is not None:
            return self._key_from_set(token, self._jwks), _ASYMMETRIC, "jwks_url"
        assert self._key is not None, "a verifier needs a key or a key set"
        if "-----BEGIN" not in self._key:
            return self._key, _SYMMETRIC, "jwt_key"
        _need_public_key_support("jwt_key")
        return self._key, _ASYMMETRIC, "jwt_key"

    def _key_from_set(self, token: str, jwks: Endpoint) -> object:
        _need_public_key_support("jwks_url")
        kid = _key_id(token)
        key = self._keys.get(kid)
        if key is None:
            self._keys.update(_named(_public_keys(_fetched_set(jwks, self._user_agent))))
            key = self._keys.get(kid)
        if key is None:
            raise AuthenticationError(
                f"the token is signed with the key {kid!r}, which the key set does not have: check that "
                "jwks_url belongs to the middleware"
            )
        return key


def _fetched_set(jwks: Endpoint, user_agent: str) -> bytes:
    """It is fetched so seldom that no connection is kept for it."""
    client = SeldomClient(replace(jwks, url=jwks.origin), user_agent=user_agent)
    try:
        answer = client.call("GET", jwks.prefix or "/")
    except TransportError as error:
        raise TokenUnavailable(f"the key set at jwks_url cannot be fetched: {error}") from None
    finally:
        client.close()
    if is_transient(answer.status):
        raise TokenUnavailable(f"the key set at jwks_url was answered with status {answer.status}")
    if answer.status != 200:
        raise SettingsError("jwks_url", f"it was answered with status {answer.status}, not with a key set")
    return answer.body


def _named(keys: dict[str | None, object]) -> dict[str | None, object]:
    """A key set of one key is also for tokens that name no key."""
    return {None: next(iter(keys.values())), **keys} if len(keys) == 1 else keys


def _verified(token: str, key: Any, algorithms: list[str], setting: str) -> Claims:
    import jwt

    decode: Callable[..., dict[str, Any]] = jwt.decode
    try:
        return Claims.of(decode(token, key, algorithms=algorithms, options=_SIGNATURE_ONLY))
    except jwt.InvalidTokenError as error:
        raise AuthenticationError(
            f"the token could not be verified ({type(error).__name__}): check that {setting} belongs to the "
            "middleware"
        ) from None
    except (jwt.PyJWTError, ValueError, TypeError, NotImplementedError) as error:
        problem = f"the key does not fit the token ({type(error).__name__})"
        raise SettingsError(setting, problem) from None


def _key_id(token: str) -> str | None:
    import jwt

    try:
        kid = jwt.get_unverified_header(token).get("kid")
    except jwt.PyJWTError:
        raise AuthenticationError("the token is no JWT, so jwks_url cannot verify it") from None
    return kid if isinstance(kid, str) else None


def _public_keys(body: bytes) -> dict[str | None, object]:
    import jwt

    try:
        found = jwt.PyJWKSet.from_dict(msgspec.json.decode(body, type=dict[str, Any])).keys
    except (jwt.PyJWTError, msgspec.MsgspecError, ValueError, TypeError, AttributeError) as error:
        raise ProtocolError(
            f"jwks_url did not answer with a JSON Web Key Set that can be used ({type(error).__name__})"
        ) from None
    return {key.key_id: key.key for key in found}


def _need_public_key_support(setting: str) -> None:
    from jwt.algorithms import has_crypto

    if not has_crypto:
        raise SettingsError(setting, "verifying with public keys needs: pip install 'kiwi-worker[jwks]'")


def _seconds(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value)
