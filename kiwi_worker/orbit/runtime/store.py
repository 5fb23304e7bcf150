"""Where the dev runtime keeps its executions: nowhere but in memory, or in an SQLite file.

Sessions are never kept, as the page has it ("every session is forgotten"); tokens are, as part of the
executions they were issued for.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import msgspec

from kiwi_worker.errors import SettingsError
from kiwi_worker.orbit.runtime.model import Execution, WorkerRecord

_TABLES = """
CREATE TABLE IF NOT EXISTS executions (
    number INTEGER PRIMARY KEY, id TEXT UNIQUE NOT NULL, record BLOB NOT NULL
);
CREATE TABLE IF NOT EXISTS workers (id TEXT PRIMARY KEY, record BLOB NOT NULL);
"""
_REPLACE = "ON CONFLICT (id) DO UPDATE SET record = excluded.record"
_PUT_EXECUTION = f"INSERT INTO executions (id, record) VALUES (?, ?) {_REPLACE}"
_PUT_WORKER = f"INSERT INTO workers VALUES (?, ?) {_REPLACE}"


class Store(Protocol):
    """What the runtime needs of a store. Every call is done, for good, when it returns."""

    def executions(self) -> list[Execution]:
        """All executions kept, in the order they were first saved."""

    def workers(self) -> list[WorkerRecord]:
        """All workers kept."""

    def save(self, changed: Mapping[str, Execution | None]) -> None:
        """Write these executions, all or none; None removes one."""

    def save_worker(self, worker: WorkerRecord) -> None:
        """Write one worker."""

    def close(self) -> None:
        """Let go of the file."""


class MemoryStore:
    """Keeps nothing: the runtime's own memory is all there is."""

    def executions(self) -> list[Execution]:
        """None."""
        return []

    def workers(self) -> list[WorkerRecord]:
        """None."""
        return []

    def save(self, changed: Mapping[str, Execution | None]) -> None:
        """Do nothing."""

    def save_worker(self, worker: WorkerRecord) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


class SqliteStore:
    """An SQLite file, held by one runtime at a time.

    A record is on its way to the disk when a call returns, which outlives the process; a power cut may take
    the last moments with it.

    Raises:
        SettingsError: if the file cannot be opened, is no database, or is in use by another runtime.
    """

    def __init__(self, path: Path) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # inputs and outputs are in it: a new one is its owner's alone
            os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
            self._connection = self._open(path)
        except (sqlite3.Error, OSError) as error:
            raise SettingsError("db", f"cannot use {path}: {error}; is another runtime using it?") from None

    @staticmethod
    def _open(path: Path) -> sqlite3.Connection:
        connection = sqlite3.connect(path, isolation_level=None, timeout=2.0)
        try:
            connection.execute("PRAGMA locking_mode = EXCLUSIVE")
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")
            connection.executescript(_TABLES)
        except sqlite3.Error:
            connection.close()
            raise
        return connection

    def executions(self) -> list[Execution]:
        """All executions in the file."""
        rows = self._connection.execute("SELECT record FROM executions ORDER BY number")
        return [msgspec.json.decode(record, type=Execution) for (record,) in rows]

    def workers(self) -> list[WorkerRecord]:
        """All workers in the file."""
        rows = self._connection.execute("SELECT record FROM workers ORDER BY rowid")
        return [msgspec.json.decode(record, type=WorkerRecord) for (record,) in rows]

    def save(self, changed: Mapping[str, Execution | None]) -> None:
        """Write these executions in one transaction."""
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            for execution_id, execution in changed.items():
                self._put(execution_id, execution)
        except BaseException:
            self._connection.execute("ROLLBACK")
            raise
        self._connection.execute("COMMIT")

    def _put(self, execution_id: str, execution: Execution | None) -> None:
        if execution is None:
            self._connection.execute("DELETE FROM executions WHERE id = ?", (execution_id,))
        else:
            self._connection.execute(_PUT_EXECUTION, (execution_id, msgspec.json.encode(execution)))

    def save_worker(self, worker: WorkerRecord) -> None:
        """Write one worker."""
        self._connection.execute(_PUT_WORKER, (worker.worker_id, msgspec.json.encode(worker)))

    def close(self) -> None:
        """Close the file."""
        self._connection.close()
