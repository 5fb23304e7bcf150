"""Asking for a token: the two grants of the token endpoint, and what its answer means.

Protocol page, "Authentication". The answer is a JSON object with `access_token` (`token` is understood too,
and so is a bare JSON string), and may hold `expires_in` (seconds) and `refresh_token`.
"""

from __future__ import annotations

import logging
import math
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import Any

import msgspec

from kiwi_worker.errors import (
    AuthenticationError,
    ProtocolError,
    SettingsError,
    TokenUnavailable,
    TransportError,
)
from kiwi_worker.kiwi.claims import Claims, read_claims
from kiwi_worker.transport import Answer, SeldomClient, is_transient, retry_after_seconds

__all__ = ["Grants", "Token"]

_log = logging.getLogger("kiwi_worker.kiwi")

PATH = "/worker/auth_token"
_CREDENTIALS_REFUSED = (400, 401, 403)
_VISIBLE_ASCII = re.compile(r"[\x21-\x7e]+")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class Token:
    """A token that was given out.

    Attributes:
        authorization: the full header value.
        lifetime_seconds: how long it may be used, counted from its answer; infinite when nothing tells.
        service_id: the service it works for.
        refresh_token: what the next token can be had for, or None.
    """

    authorization: str = field(repr=False)
    lifetime_seconds: float
    service_id: str
    refresh_token: str | None = field(default=None, repr=False)


class Grants:
    """Asks the token endpoint. Used by one thread at a time.

    Args:
        client: how to reach the middleware.
        service_id: the configured one; None when the token is to tell it.
        worker_id: this worker.
        secret: gives the secret; asked before each request that needs it.
        read: reads a token's claims, and verifies it if it is to be verified.
    """

    def __init__(
        self,
        client: SeldomClient,
        *,
        service_id: str | None,
        worker_id: str,
        secret: Callable[[], str],
        read: Callable[[str], Claims] | None = None,
    ) -> None:
        self._client = client
        self._service_id = service_id
        self._worker_id = worker_id
        self._secret = secret
        self._read = read or read_claims
        self._differing_service_id: str | None = None

    def client_credentials(self) -> Token:
        """A token for the service's secret.

        Raises:
            AuthenticationError: the credentials were refused, or the token is not this worker's.
            TokenUnavailable: the endpoint cannot be reached or is out of order just now.
            ProtocolError: what was answered is not what the protocol page says.
            SettingsError: the secret cannot be read, or there is no service_id.
        """
        form = {"grant_type": "client_credentials", "auth_secret": self._read_secret()}
        answer = self._post(form, self._service_id)
        if answer.status in _CREDENTIALS_REFUSED:
            raise AuthenticationError(self._refusal(answer.status), status=answer.status)
        _check_status(answer)
        return self._token(answer, None)

    def _refusal(self, status: int) -> str:
        if self._service_id is None:
            return (
                f"the middleware refused the credentials of worker {self._worker_id!r} (status {status}), "
                "which were sent without a service_id: set it, and check auth_secret"
            )
        return (
            f"the middleware refused the credentials of service {self._service_id!r}, worker "
            f"{self._worker_id!r} (status {status}): check service_id and auth_secret"
        )

    def refresh(self, token: Token) -> Token | None:
        """A token for the refresh token of an earlier one, or None when that is refused.

        Raises:
            TokenUnavailable, ProtocolError, AuthenticationError: as `client_credentials`.
        """
        if token.refresh_token is None:
            return None
        form = {"grant_type": "refresh_token", "refresh_token": token.refresh_token}
        answer = self._post(form, token.service_id)
        if 400 <= answer.status < 500 and not is_transient(answer.status):
            return None
        _check_status(answer)
        return self._token(answer, token.refresh_token)

    def _read_secret(self) -> str:
        try:
            return self._secret()
        except (OSError, UnicodeError) as error:
            # The error's own text may hold what was read.
            problem = f"the secret cannot be read ({type(error).__name__})"
            raise SettingsError("auth_secret_file", problem) from None

    def _post(self, form: dict[str, str], service_id: str | None) -> Answer:
        if service_id is not None:
            form["service_id"] = service_id
        form["worker_id"] = self._worker_id
        try:
            return self._client.call("POST", PATH, form=form)
        except TransportError as error:
            text = str(error)
        raise TokenUnavailable(f"no token could be fetched: {text}")

    def _token(self, answer: Answer, refresh_token: str | None) -> Token:
        members = _members(answer)
        access_token = _access_token(members)
        claims = self._read(access_token)
        self._check_bearer(claims)
        lifetime = _lifetime_seconds(members, claims, answer.header("date"))
        if lifetime <= 0:
            raise ProtocolError(f"the token that POST {PATH} gave out is over already ({lifetime:g} s left)")
        next_refresh_token = members.get("refresh_token")
        return Token(
            authorization=f"Bearer {access_token}",
            lifetime_seconds=lifetime,
            service_id=self._settled_service_id(claims.service_id),
            refresh_token=next_refresh_token if isinstance(next_refresh_token, str) else refresh_token,
        )

    def _check_bearer(self, claims: Claims) -> None:
        if claims.role is not None and claims.role != "worker":
            raise AuthenticationError(
                f"the token's role is {_shown(claims.role)}, not 'worker': check auth_secret"
            )
        if claims.sub is not None and claims.sub != self._worker_id:
            raise AuthenticationError(
                f"the token's sub is {_shown(claims.sub)}, not this worker's id {self._worker_id!r}: "
                "check worker_id"
            )

    def _settled_service_id(self, claimed: str | None) -> str:
        settled = claimed or self._service_id
        if settled is None:
            raise SettingsError("service_id", "the token does not tell it, so it has to be set")
        if self._service_id not in (None, settled) and settled != self._differing_service_id:
            self._differing_service_id = settled
            _log.warning(
                "the token is for service %r, the configured service_id is %r: going on as the token says",
                settled,
                self._service_id,
                extra={"action": "service_id_differs", "worker_id": self._worker_id},
            )
        return settled


def _check_status(answer: Answer) -> None:
    if 200 <= answer.status < 300:
        return
    if is_transient(answer.status):
        raise TokenUnavailable(
            f"no token could be fetched: POST {PATH} was answered with status {answer.status}",
            retry_seconds=retry_after_seconds(answer) or 0.0,
        )
    raise ProtocolError(
        f"POST {PATH} was answered with status {answer.status}, not with a token: check middleware_url"
    )


def _members(answer: Answer) -> Mapping[str, Any]:
    try:
        value = msgspec.json.decode(answer.body.removeprefix(_BYTE_ORDER_MARK))
    except (msgspec.MsgspecError, ValueError, RecursionError):
        raise _unexpected(f"{len(answer.body)} bytes that are no JSON") from None
    if isinstance(value, str):
        return {"access_token": value}
    if not isinstance(value, dict):
        raise _unexpected(f"JSON of another kind ({type(value).__name__})")
    return value


def _access_token(members: Mapping[str, Any]) -> str:
    for name in ("access_token", "token"):
        if members.get(name) is not None:
            return _usable(name, members[name])
    raise _unexpected("an object without access_token")


def _usable(name: str, token: object) -> str:
    """A token goes into a header line as it is, so nothing may be in it that would end the line."""
    if not isinstance(token, str):
        raise _unexpected(f"an object whose {name} is no string but {type(token).__name__}")
    if not _VISIBLE_ASCII.fullmatch(token):
        raise _unexpected(f"an object whose {name} is empty or holds characters that no token has")
    return token


def _unexpected(what: str) -> ProtocolError:
    return ProtocolError(
        f"POST {PATH} was to answer with a JSON object that holds access_token, and gave {what}"
    )


def _lifetime_seconds(members: Mapping[str, Any], claims: Claims, date: str | None) -> float:
    stated = members.get("expires_in")
    if stated is not None:
        return _stated_seconds(stated)
    if claims.exp is None:
        return math.inf
    issued = _wall_clock(date)
    if issued is None:
        issued = claims.iat
    return claims.exp - (time.time() if issued is None else issued)


def _stated_seconds(stated: object) -> float:
    """Some servers state the number as a string."""
    if isinstance(stated, (int, float, str)) and not isinstance(stated, bool):
        try:
            seconds = float(stated)
        except (ValueError, OverflowError):
            seconds = math.nan
        if math.isfinite(seconds):
            return seconds
    raise _unexpected(f"an expires_in that is no number of seconds ({type(stated).__name__})")


def _wall_clock(date: str | None) -> float | None:
    if date is None:
        return None
    try:
        return parsedate_to_datetime(date).timestamp()
    except (ValueError, TypeError, OverflowError, IndexError):
        return None


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:100]}…"
