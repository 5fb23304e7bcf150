"""The token desk of the misbehaving Kiwi server: issues, knows and forgets tokens."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import jwt

from kiwi_worker.testing.wire import Reply

__all__ = ["IssuedToken", "TokenDesk", "TokenShape"]

TokenShape = Literal["object", "token", "string", "opaque"]
"""How the token answer looks: an object with `access_token`, one with `token`, a bare JSON string, or an
object whose `access_token` is no JWT."""


@dataclass(frozen=True)
class IssuedToken:
    """A token the desk gave out; `expires_at` counts on the monotonic clock."""

    worker_id: str
    expires_at: float


@dataclass(eq=False)
class TokenDesk:
    """Answers `POST /worker/auth_token` and knows who a bearer token belongs to.

    Callers hold the server's lock.

    Args:
        service_id: the service it knows.
        auth_secret: its secret.
        lifetime_seconds: how long a token holds.
        shape: how the answer looks.
        send_expires_in: whether the answer states the lifetime.
        refresh_tokens: whether it hands out refresh tokens, each good for one use.
        claims: claims to add, or to put in place of the true ones.
    """

    service_id: str
    auth_secret: str = field(repr=False)
    lifetime_seconds: float = 3600.0
    shape: TokenShape = "object"
    send_expires_in: bool = True
    refresh_tokens: bool = False
    claims: Mapping[str, object] = field(default_factory=dict)
    key: str = field(default_factory=lambda: secrets.token_hex(32), repr=False)
    _issued: dict[str, IssuedToken] = field(default_factory=dict, repr=False)
    _refreshing: dict[str, str] = field(default_factory=dict, repr=False)

    def answer(self, form: Mapping[str, str], clock_offset_seconds: float, expired: bool) -> Reply:
        """The answer to a token request: a token, 400 for a wrong form, 401 for wrong credentials."""
        grant = form.get("grant_type")
        if grant not in ("client_credentials", "refresh_token") or not form.get("worker_id"):
            return Reply(400, b'{"error": "invalid_request"}')
        if not (self._is_refreshed(form) if grant == "refresh_token" else self._is_credentialed(form)):
            return Reply(401, b'{"error": "invalid_client"}')
        return Reply(200, json.dumps(self._grant(form["worker_id"], clock_offset_seconds, expired)).encode())

    def owner(self, authorization: str | None) -> str | None:
        """The worker a header `Bearer …` belongs to, or None when the token is unknown or over."""
        issued = self._issued.get(_bearer(authorization))
        return issued.worker_id if issued is not None and issued.expires_at > time.monotonic() else None

    def expire(self, authorization: str | None) -> None:
        """Let this token be over."""
        self._issued.pop(_bearer(authorization), None)

    def expire_all(self, *, refresh_tokens_too: bool = False) -> None:
        """Let every token be over."""
        self._issued.clear()
        if refresh_tokens_too:
            self._refreshing.clear()

    def _is_credentialed(self, form: Mapping[str, str]) -> bool:
        return form.get("service_id") == self.service_id and form.get("auth_secret") == self.auth_secret

    def _is_refreshed(self, form: Mapping[str, str]) -> bool:
        return self._refreshing.pop(form.get("refresh_token", ""), None) == form["worker_id"]

    def _grant(self, worker_id: str, clock_offset_seconds: float, expired: bool) -> object:
        lifetime = -1.0 if expired else self.lifetime_seconds
        token = self._token(worker_id, time.time() + clock_offset_seconds, lifetime)
        self._issued[token] = IssuedToken(worker_id, time.monotonic() + lifetime)
        if self.shape == "string":
            return token
        answer: dict[str, object] = {"token" if self.shape == "token" else "access_token": token}
        answer["token_type"] = "Bearer"
        if self.send_expires_in:
            answer["expires_in"] = int(lifetime)
        if self.refresh_tokens:
            answer["refresh_token"] = self._refresh_token(worker_id)
        return answer

    def _token(self, worker_id: str, now: float, lifetime: float) -> str:
        if self.shape == "opaque":
            return secrets.token_urlsafe(24)
        claims = {
            "sub": worker_id,
            "role": "worker",
            "service_id": self.service_id,
            "iat": int(now),
            "exp": int(now + lifetime),
            "jti": secrets.token_hex(8),
            **self.claims,
        }
        return jwt.encode(claims, self.key, algorithm="HS256")

    def _refresh_token(self, worker_id: str) -> str:
        token = secrets.token_urlsafe(24)
        self._refreshing[token] = worker_id
        return token


def _bearer(authorization: str | None) -> str:
    scheme, _, token = (authorization or "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""
