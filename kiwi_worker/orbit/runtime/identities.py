"""Who may call what (ORBIT page, "Authentication")."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from kiwi_worker.errors import SettingsError
from kiwi_worker.orbit.runtime.refusal import forbidden, unauthenticated
from kiwi_worker.orbit.runtime.tables import Table, read_toml

_WORKER_PATHS = ("/v1/workers/", "/v1/tasks/")


@dataclass(frozen=True)
class Identity:
    """One entry of the workers file: a worker id and what it may do."""

    worker_id: str
    token_sha256: str | None = field(default=None, repr=False)
    client_cert: str | None = None
    runtime: str | None = None
    tasks: tuple[str, ...] = ()

    def check_registration(self, worker_id: str, runtime: str, task_names: Iterable[str]) -> None:
        """Raise `Refused` (403) when the registration breaks one of this identity's rules."""
        if worker_id != self.worker_id:
            raise forbidden(f"this credential belongs to worker `{self.worker_id}`, not `{worker_id}`")
        if self.runtime is not None and runtime.lower() != self.runtime.lower():
            raise forbidden(f"worker `{self.worker_id}` must announce runtime `{self.runtime}`")
        refused = [name for name in task_names if not self.may_serve(name)]
        if refused:
            allowed = ", ".join(self.tasks)
            raise forbidden(
                f"worker `{self.worker_id}` may not serve: {', '.join(refused)} (allowed: {allowed})"
            )

    def may_serve(self, task_name: str) -> bool:
        """Whether the name matches a pattern (`*` stands for anything); without patterns all do."""
        return not self.tasks or any(_glob(pattern, task_name) for pattern in self.tasks)


def _glob(pattern: str, name: str) -> bool:
    return re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), name, re.DOTALL) is not None


@dataclass(frozen=True)
class Caller:
    """Whose request it is. An open runtime treats everybody as its administrator."""

    kind: Literal["admin", "worker"]
    identity: Identity | None = None

    def check_path(self, path: str) -> None:
        """Raise `Refused` (403) when this credential may not call `path` at all."""
        if self.kind == "worker" and not path.startswith(_WORKER_PATHS):
            raise forbidden("worker credentials may only call /v1/workers/* and /v1/tasks/*")

    def check_session(self, worker_id: str) -> None:
        """Raise `Refused` (403) unless a session of `worker_id` may be used."""
        if self.identity is not None and self.identity.worker_id != worker_id:
            raise forbidden(f"session belongs to worker `{worker_id}`, not `{self.identity.worker_id}`")

    def check_token(self, worker_id: str) -> None:
        """Raise `Refused` (403) unless a task token issued to `worker_id` may be answered."""
        if self.identity is not None and self.identity.worker_id != worker_id:
            raise forbidden(f"task token was issued to worker `{worker_id}`, not `{self.identity.worker_id}`")


ADMIN = Caller("admin")


class Credentials:
    """Everything that is accepted as a credential.

    Args:
        admin_token: may call every endpoint.
        worker_token: may call the worker endpoints.
        identities: the workers file.
    """

    def __init__(
        self,
        admin_token: str | None = None,
        worker_token: str | None = None,
        identities: Sequence[Identity] | None = None,
    ) -> None:
        self.required = admin_token is not None or identities is not None
        self._identities = tuple(identities or ())
        self._callers: list[tuple[str, Caller]] = [
            (entry.token_sha256, Caller("worker", entry)) for entry in self._identities if entry.token_sha256
        ]
        if worker_token is not None:
            self._callers.insert(0, (_digest(worker_token), Caller("worker")))
        if admin_token is not None:
            self._callers.insert(0, (_digest(admin_token), ADMIN))

    def caller(self, authorization: str | None, certificate_names: Sequence[str] | None = None) -> Caller:
        """Who sent this request.

        Args:
            authorization: the header or metadata value.
            certificate_names: the DNS names and the common name of the client's certificate, or None
                when it presented none.

        Raises:
            Refused: 401 when no credential was valid, 403 when only a certificate was and nobody has it.
        """
        if not self.required:
            return ADMIN
        caller = self._by_token(authorization) or self._by_certificate(certificate_names or ())
        if caller is not None:
            return caller
        if certificate_names is None:
            raise unauthenticated()
        raise forbidden("the client certificate matches no worker of the workers file")

    def _by_token(self, authorization: str | None) -> Caller | None:
        scheme, _, token = (authorization or "").partition(" ")
        if scheme.lower() != "bearer":
            return None
        digest = _digest(token.strip())
        # every entry is compared, in constant time, so that the time taken tells nothing
        found = [caller for expected, caller in self._callers if hmac.compare_digest(expected, digest)]
        return found[0] if found else None

    def _by_certificate(self, names: Sequence[str]) -> Caller | None:
        lowered = {name.lower() for name in names}
        for entry in self._identities:
            if entry.client_cert is not None and entry.client_cert.lower() in lowered:
                return Caller("worker", entry)
        return None


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()


def load_identities(path: Path) -> tuple[Identity, ...]:
    """The entries of a workers file, as `[[workers]]` tables with `worker_id`, `token_sha256` or
    `client_cert` (or both), and optionally `runtime` and `tasks`.

    Raises:
        SettingsError: if the file cannot be read, or something in it is not understood.
    """
    top = Table(read_toml(path, "workers_file"), "workers_file")
    entries = top.take("workers", list)
    top.done()
    return tuple(_identity(Table(entry, f"workers_file.workers[{i}]")) for i, entry in enumerate(entries))


def _identity(table: Table) -> Identity:
    identity = Identity(
        worker_id=table.text("worker_id"),
        token_sha256=_hex(table),
        client_cert=table.text("client_cert", None),
        runtime=table.text("runtime", None),
        tasks=table.texts("tasks"),
    )
    table.done()
    if identity.token_sha256 is None and identity.client_cert is None:
        raise SettingsError(table.key, "needs `token_sha256` or `client_cert`")
    return identity


def _hex(table: Table) -> str | None:
    digest: str | None = table.text("token_sha256", None)
    if digest is not None and re.fullmatch("[0-9a-fA-F]{64}", digest) is None:
        raise SettingsError(f"{table.key}.token_sha256", "must be 64 hexadecimal digits")
    return digest and digest.lower()
