"""Services, their secrets and settings, in SQLite; used by commands and by the store."""

from __future__ import annotations

import re
import secrets
import sqlite3
import time

from ...errors import SettingsError
from ..credentials import ROLES, SERVICE_NAME, new_secret
from ..store import SecretRecord
from .schema import connect, create

__all__ = ["Directory"]


class Directory:
    """The seldom part of the database; every method is one transaction and may block for a moment.

    Args:
        path: the database file; made, with mode 0600, when it is not there.
    """

    def __init__(self, path: str) -> None:
        create(path)
        self._connection = connect(path)

    def __enter__(self) -> Directory:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the file."""
        self._connection.close()

    @property
    def connection(self) -> sqlite3.Connection:
        """The connection, for further reading on the same thread."""
        return self._connection

    def signing_key(self) -> str:
        """The key of all tokens: made once, kept in the database."""
        fresh = secrets.token_urlsafe(48)
        self._connection.execute("INSERT OR IGNORE INTO meta VALUES ('signing_key', ?)", (fresh,))
        return str(self._connection.execute("SELECT value FROM meta WHERE name='signing_key'").fetchone()[0])

    def services(self) -> list[str]:
        """The names of all services."""
        return [row[0] for row in self._connection.execute("SELECT service_id FROM services ORDER BY 1")]

    def add_service(self, service_id: str) -> dict[str, str]:
        """Make a service; the fresh secret of each role, by role. They cannot be read again.

        Raises:
            SettingsError: the name cannot be one, or there is such a service already.
        """
        if re.fullmatch(SERVICE_NAME, service_id) is None:
            raise SettingsError("NAME", "a service name is 1 to 64 letters, digits, '.', '_' or '-'")
        row = (service_id, time.time())
        if self._connection.execute("INSERT OR IGNORE INTO services VALUES (?,?)", row).rowcount == 0:
            raise SettingsError(
                "NAME", f"there is a service {service_id} already; add a secret to it instead"
            )
        return {role: self.add_secret(service_id, role)[0] for role in ROLES}

    def remove_service(self, service_id: str) -> None:
        """Forget a service, its secrets and its settings. Tokens it has live on until they expire."""
        self._need(service_id)
        for table in ("services", "secrets", "application_settings"):
            self._connection.execute(f"DELETE FROM {table} WHERE service_id=?", (service_id,))

    def add_secret(self, service_id: str, role: str) -> tuple[str, str]:
        """A further secret for a role: itself, which cannot be read again, and its id."""
        self._need(service_id)
        secret, record = new_secret(service_id, role)
        values = (record.secret_id, service_id, role, record.salt, record.digest, record.created_at)
        self._connection.execute("INSERT INTO secrets VALUES (?,?,?,?,?,?)", values)
        return secret, record.secret_id

    def remove_secret(self, secret_id: str) -> None:
        """Forget a secret: it and the refresh tokens it brought are refused from now on."""
        if self._connection.execute("DELETE FROM secrets WHERE secret_id=?", (secret_id,)).rowcount == 0:
            raise SettingsError("SECRET_ID", f"there is no secret {secret_id}")

    def secrets(self, service_id: str) -> list[SecretRecord]:
        """The secrets of a service, oldest first; none when there is no such service."""
        rows = self._connection.execute(
            "SELECT secret_id, service_id, role, salt, digest, created_at FROM secrets WHERE service_id=?"
            " ORDER BY created_at",
            (service_id,),
        )
        return [
            SecretRecord(secret_id=i, service_id=s, role=r, salt=salt, digest=digest, created_at=at)
            for i, s, r, salt, digest, at in rows
        ]

    def application_settings(self, service_id: str) -> dict[str, str]:
        """The settings that a registration of this service is answered with."""
        rows = self._connection.execute(
            "SELECT name, value FROM application_settings WHERE service_id=? ORDER BY name", (service_id,)
        )
        return dict(rows.fetchall())

    def set_application_setting(self, service_id: str, name: str, value: str | None) -> None:
        """Set one of them; None removes it. Workers get it at their next registration."""
        self._need(service_id)
        if value is None:
            statement, values = (
                "DELETE FROM application_settings WHERE service_id=? AND name=?",
                (service_id, name),
            )
            self._connection.execute(statement, values)
        else:
            row = (service_id, name, value)
            self._connection.execute("INSERT OR REPLACE INTO application_settings VALUES (?,?,?)", row)

    def _need(self, service_id: str) -> None:
        if service_id not in self.services():
            known = ", ".join(self.services()) or "none yet"
            raise SettingsError("NAME", f"there is no service {service_id}; known: {known}")
