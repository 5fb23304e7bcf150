"""The tables of the SQLite store, and how a connection to them is opened."""

from __future__ import annotations

import os
import sqlite3

from ...errors import SettingsError

__all__ = ["SCHEMA_VERSION", "connect", "create"]

SCHEMA_VERSION = 1

BUSY_SECONDS = 5.0
"""How long a connection waits for another process (a `service add` beside a running middleware)."""

TABLES = """
CREATE TABLE IF NOT EXISTS meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS services (service_id TEXT PRIMARY KEY, created_at REAL NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS secrets (
    secret_id TEXT PRIMARY KEY, service_id TEXT NOT NULL, role TEXT NOT NULL,
    salt BLOB NOT NULL, digest BLOB NOT NULL, created_at REAL NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS application_settings (
    service_id TEXT NOT NULL, name TEXT NOT NULL, value TEXT NOT NULL, PRIMARY KEY (service_id, name)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS workers (
    service_id TEXT NOT NULL, worker_id TEXT NOT NULL, registration BLOB NOT NULL,
    registered_at REAL NOT NULL, leaving INTEGER NOT NULL, gone INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (service_id, worker_id)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS calls (
    seq INTEGER PRIMARY KEY, request_id TEXT NOT NULL, service_id TEXT NOT NULL, method TEXT NOT NULL,
    params BLOB NOT NULL, lock_required INTEGER NOT NULL, created_at REAL NOT NULL, expires_at REAL NOT NULL,
    idempotency_key TEXT, fingerprint TEXT, worker_id TEXT, drained INTEGER NOT NULL, earlier TEXT
);
CREATE TABLE IF NOT EXISTS results (
    id INTEGER PRIMARY KEY, request_id TEXT NOT NULL, service_id TEXT NOT NULL, method TEXT NOT NULL,
    status TEXT NOT NULL, error_text TEXT, result BLOB, reason TEXT, worker_id TEXT,
    finished_at REAL NOT NULL, idempotency_key TEXT, fingerprint TEXT
);
CREATE UNIQUE INDEX IF NOT EXISTS results_by_request ON results (request_id);
CREATE TABLE IF NOT EXISTS feedback (
    id INTEGER PRIMARY KEY, request_id TEXT NOT NULL, service_id TEXT NOT NULL, source_type INTEGER NOT NULL,
    source_name TEXT NOT NULL, feedback_type INTEGER NOT NULL, content BLOB NOT NULL, at REAL NOT NULL
);
CREATE INDEX IF NOT EXISTS feedback_by_request ON feedback (request_id, id);
"""


def connect(path: str) -> sqlite3.Connection:
    """A connection without implicit transactions; commits reach the operating system, and the disk in time.

    What was committed survives the death of this process. `synchronous=NORMAL` also keeps the file whole when
    the power fails, though the last moments may then be missing.
    """
    connection = sqlite3.connect(
        path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False, cached_statements=64
    )
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=NORMAL")
    return connection


def create(path: str) -> None:
    """Make the file, readable by its owner only, and the tables in it.

    Raises:
        SettingsError: the path cannot be used, or the file is not a database of this version.
    """
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
        os.chmod(path, 0o600)
        connection = connect(path)
        try:
            _create_tables(path, connection)
        finally:
            connection.close()
    except (OSError, sqlite3.Error) as error:
        raise SettingsError("db", f"cannot use {path} as the middleware's database: {error}") from None


def _create_tables(path: str, connection: sqlite3.Connection) -> None:
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if version not in (0, SCHEMA_VERSION):
        raise SettingsError(
            "db", f"{path} was written by another version (schema {version}, ours is {SCHEMA_VERSION})"
        )
    connection.executescript(TABLES)
    connection.execute(f"PRAGMA user_version={SCHEMA_VERSION}")
