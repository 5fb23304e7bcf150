"""The two token endpoints, one for each role: anonymous, form-encoded (page: "Authentication")."""

from __future__ import annotations

import re

from .credentials import find_secret
from .exchange import Exchange
from .problems import bad_request, unauthorized
from .store import Store
from .tokens import TokenAuthority, dead_refresh_token

__all__ = ["Authentication"]

SUBJECT = re.compile(r"[^\x00-\x1f\x7f]{1,200}")


class Authentication:
    """Tokens for workers and clients.

    Args:
        store: knows the secrets.
        tokens: makes the tokens.
    """

    def __init__(self, store: Store, tokens: TokenAuthority) -> None:
        self._store = store
        self._tokens = tokens

    async def worker_token(self, x: Exchange) -> None:
        """`POST /worker/auth_token`"""
        await self._token(x, "worker", "worker_id")

    async def client_token(self, x: Exchange) -> None:
        """`POST /client/auth_token`"""
        await self._token(x, "client", "client_id")

    async def _token(self, x: Exchange, role: str, subject_field: str) -> None:
        form = await x.form()
        grant_type = _field(form, "grant_type")
        if grant_type == "client_credentials":
            await self._by_secret(x, form, role, subject_field)
        elif grant_type == "refresh_token":
            await self._by_refresh_token(x, form, role, subject_field)
        else:
            raise bad_request("grant_type must be client_credentials or refresh_token")

    async def _by_secret(self, x: Exchange, form: dict[str, str], role: str, subject_field: str) -> None:
        service_id, secret = _field(form, "service_id"), _field(form, "auth_secret")
        subject = _subject(form, subject_field, service_id if role == "client" else None)
        record = find_secret(secret, role, await self._store.secrets(service_id))
        if record is None:
            raise unauthorized("no such service, or not its secret for this role")
        await x.reply_json(self._tokens.issue(role, service_id, subject, record.secret_id))

    async def _by_refresh_token(
        self, x: Exchange, form: dict[str, str], role: str, subject_field: str
    ) -> None:
        claims = self._tokens.refresh_claims(_field(form, "refresh_token"), role)
        if form.get("service_id", claims.service_id) != claims.service_id:
            raise dead_refresh_token()
        if form.get(subject_field, claims.sub) != claims.sub:
            raise dead_refresh_token()
        if all(r.secret_id != claims.secret_id for r in await self._store.secrets(claims.service_id)):
            raise dead_refresh_token()
        await x.reply_json(self._tokens.issue(role, claims.service_id, claims.sub, claims.secret_id))


def _field(form: dict[str, str], name: str) -> str:
    if not form.get(name):
        raise bad_request(f"the form lacks {name}")
    return form[name]


def _subject(form: dict[str, str], name: str, default: str | None) -> str:
    subject = form.get(name) or default
    if subject is None or SUBJECT.fullmatch(subject) is None:
        raise bad_request(f"{name} must be 1 to 200 characters, none of them a control character")
    return subject
