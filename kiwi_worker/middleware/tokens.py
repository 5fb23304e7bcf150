"""Tokens: issued to who knows a secret, checked on every other call (the page's section "Authentication").

A token is a JWT signed with a key that only this middleware has: `sub` (the worker or client id), `role`
(`worker` or `client`), `service_id`, `iat`, `exp`. A refresh token is one too, marked by its role, and holds
only as long as the secret that brought it.
"""

from __future__ import annotations

import time
from typing import Any

import jwt
import msgspec
from cachetools import LRUCache

from .problems import Problem, forbidden, unauthorized
from .settings import MiddlewareSettings

__all__ = ["Claims", "RefreshClaims", "TokenAuthority"]

CHECKED_TOKENS = 10_000
"""Tokens whose signature was checked, remembered so that a call costs one look-up."""


class Claims(msgspec.Struct, frozen=True):
    """What a good token says."""

    sub: str
    role: str
    service_id: str
    exp: float


class RefreshClaims(msgspec.Struct, frozen=True):
    """What a good refresh token says; `secret_id` is the secret that brought it."""

    sub: str
    role: str
    service_id: str
    exp: float
    secret_id: str


class TokenAuthority:
    """Issues and checks tokens.

    Args:
        key: the signing key.
        settings: the lifetimes.
    """

    def __init__(self, key: str, settings: MiddlewareSettings) -> None:
        self._key = key
        self._lifetimes = {
            "worker": settings.worker_token_lifetime,
            "client": settings.client_token_lifetime,
        }
        self._refresh_lifetime = settings.refresh_token_lifetime
        self._checked: LRUCache[bytes, Claims] = LRUCache(CHECKED_TOKENS)

    def issue(self, role: str, service_id: str, subject: str, secret_id: str) -> dict[str, Any]:
        """The answer of a token endpoint."""
        lifetime = self._lifetimes[role]
        facts = {"sub": subject, "service_id": service_id}
        refresh = {**facts, "role": f"{role}-refresh", "secret_id": secret_id}
        return {
            "access_token": self._sign({**facts, "role": role}, lifetime),
            "token_type": "Bearer",
            "expires_in": int(lifetime) if lifetime == int(lifetime) else lifetime,
            "refresh_token": self._sign(refresh, self._refresh_lifetime),
        }

    def check(self, authorization: bytes | None, role: str) -> Claims:
        """The claims of an Authorization header.

        Raises:
            Problem: 401 when there is no good token in it, 403 when the token has another role.
        """
        claims = None if authorization is None else self._checked.get(authorization)
        if claims is None:
            claims = self._decode(authorization)
        if claims.exp <= time.time():
            raise unauthorized("the token has expired; ask for a new one")
        if claims.role != role:
            raise forbidden(f"this route needs a token with role {role}")
        return claims

    def refresh_claims(self, token: str, role: str) -> RefreshClaims:
        """The claims of a refresh token.

        Raises:
            Problem: 401, it is dead or was never one.
        """
        try:
            claims = msgspec.convert(jwt.decode(token, self._key, algorithms=["HS256"]), RefreshClaims)
        except (jwt.InvalidTokenError, msgspec.ValidationError):
            raise dead_refresh_token() from None
        if claims.role != f"{role}-refresh":
            raise dead_refresh_token()
        return claims

    def _decode(self, authorization: bytes | None) -> Claims:
        if authorization is None or authorization[:7].lower() != b"bearer ":
            raise unauthorized("send an Authorization header: Bearer, a space, the token")
        try:
            payload = jwt.decode(authorization[7:].strip(), self._key, algorithms=["HS256"])
            claims = msgspec.convert(payload, Claims)
        except (jwt.InvalidTokenError, msgspec.ValidationError):
            raise unauthorized("the token is not one of ours, or has expired; ask for a new one") from None
        self._checked[authorization] = claims
        return claims

    def _sign(self, facts: dict[str, Any], lifetime: float) -> str:
        now = time.time()
        return jwt.encode({**facts, "iat": int(now), "exp": now + lifetime}, self._key, algorithm="HS256")


def dead_refresh_token() -> Problem:
    """401: the refresh token is expired, revoked or foreign."""
    return unauthorized("the refresh token is dead; authenticate with client_credentials again")
