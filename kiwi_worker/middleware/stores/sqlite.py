"""The SQLite store: everything open is in memory, the file is the durable log of it.

One process owns the file while it runs. A step changes memory at once, on the event loop, and returns when
it is durable (`durable_log`); because the log keeps the order of the steps, nobody ever sees a call, a lock
or an answer that a `kill -9` could take back. Finished calls are only in the file.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import msgspec

from ...errors import SettingsError
from ..ledger import Ledger
from ..records import Call, Ending, Feedback, Registration, Verdict
from ..roster import WorkerEntry
from ..settings import MiddlewareSettings
from ..store import Listener, SecretRecord
from .directory import Directory
from .durable_log import DurableLog

try:
    import fcntl
except ImportError:  # Windows has no flock; two middlewares on one file are not noticed there
    fcntl = None  # type: ignore[assignment]

__all__ = ["SqliteStore"]

T = TypeVar("T")

DROP_INTERVAL = 5.0
"""Seconds between two looks for results that are over their retention."""

DROP_AT_ONCE = 5000
"""Results dropped in one look, so that no transaction gets long."""

MISSED_HEARTBEATS = 3
"""A worker that missed so many is dead (design: "three heartbeats missed")."""

ENDING_COLUMNS = ", ".join(Ending.__struct_fields__)


class SqliteStore:
    """A `Store` on one SQLite file.

    Args:
        settings: where the file is, and the bounds.
    """

    def __init__(self, settings: MiddlewareSettings) -> None:
        self._settings = settings
        self._silent_seconds = settings.heartbeat_delay * MISSED_HEARTBEATS
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="kiwi-middleware-read")
        self._swept_at = time.monotonic()
        self._drop_at = 0.0
        self._numbers = itertools.count(1)
        self._feedback_numbers = itertools.count(1)

    async def open(self, listener: Listener) -> None:
        """Take the file, load what is open, and start the writer thread.

        Raises:
            SettingsError: the file cannot be used, or another middleware runs on it.
        """
        self._loop = asyncio.get_running_loop()
        self._listener = listener
        self._owned = _own(self._settings.db + ".lock", self._settings.db)
        self._directory = Directory(self._settings.db)
        self._log = DurableLog(self._settings.db, self._loop, listener.call_ended)
        self._ledger = Ledger(
            self._log,
            listener.worker_has_work,
            queue_length=self._settings.queue_length,
            max_queue_bytes=self._settings.max_queue_bytes,
        )
        self._load()
        await self._log.durable()

    async def close(self) -> None:
        """Commit what is under way and let go of the file."""
        await self._log.close()
        await self._read(self._directory.close)
        self._reader.shutdown()
        os.close(self._owned)

    # -- services, secrets, settings

    async def signing_key(self) -> str:
        return await self._read(self._directory.signing_key)

    async def secrets(self, service_id: str) -> list[SecretRecord]:
        return await self._read(lambda: self._directory.secrets(service_id))

    async def application_settings(self, service_id: str) -> dict[str, str]:
        return await self._read(lambda: self._directory.application_settings(service_id))

    # -- workers

    async def worker(self, service_id: str, worker_id: str) -> WorkerEntry | None:
        worker = self._ledger.worker(service_id, worker_id)
        if worker is not None:
            worker.seen_at = time.monotonic()
        return worker

    async def workers(self, service_id: str) -> list[WorkerEntry]:
        return list(self._ledger.roster(service_id).workers.values())

    async def register(self, registration: Registration) -> None:
        self._log.check()
        before = self._ledger.worker(registration.service_id, registration.worker_id)
        if before is not None:
            self._listener.worker_stops(before)
        self._ledger.register(registration, time.monotonic())
        await self._log.durable()

    async def leave(self, worker: WorkerEntry) -> None:
        self._log.check()
        self._ledger.leave(worker)
        self._listener.worker_stops(worker)
        await self._log.durable()

    async def take_all(self, worker: WorkerEntry) -> list[Call]:
        if not worker.inbox:
            return []
        self._log.check()
        taken = self._ledger.take_all(worker)
        await self._log.durable()
        return taken

    async def put_back(self, worker: WorkerEntry, calls: list[Call]) -> None:
        self._ledger.put_back(worker, calls)
        await self._log.durable()

    async def try_lock(self, worker: WorkerEntry, request_id: str) -> Verdict:
        self._log.check()
        verdict = self._ledger.try_lock(worker, request_id)
        if verdict is Verdict.unknown:
            return await self._late_or_unknown(worker.service_id, request_id)
        await self._log.durable()
        return verdict

    async def put_answer(
        self,
        service_id: str,
        worker_id: str,
        request_id: str,
        *,
        status: str,
        error_text: str | None,
        result: bytes | None,
    ) -> Verdict:
        self._log.check()
        verdict = self._ledger.answer(
            service_id, worker_id, request_id, status=status, error_text=error_text, result=result
        )
        if verdict is Verdict.unknown:
            return await self._late_or_unknown(service_id, request_id)
        if verdict is Verdict.done:
            await self._log.durable()
        return verdict

    async def add_feedback(
        self, service_id: str, worker_id: str, feedback: Feedback, *, persist: bool
    ) -> Verdict:
        feedback.feedback_id = next(self._feedback_numbers)
        verdict = self._ledger.remember_feedback(service_id, worker_id, feedback, persist=persist)
        if verdict is Verdict.unknown and await self._was_given(service_id, worker_id, feedback.request_id):
            verdict = Verdict.late
        if verdict in (Verdict.done, Verdict.late):
            self._listener.feedback_came(feedback)
            if persist:
                self._log.check()
                self._log.feedback_kept(service_id, feedback)
                await self._log.durable()
        return verdict

    # -- callers

    async def enqueue(self, call: Call) -> str:
        self._log.check()
        call.seq = next(self._numbers)
        request_id = self._ledger.enqueue(call)
        await self._log.durable()
        return request_id

    async def fetch(self, service_id: str, request_id: str) -> Call | Ending | None:
        found: Call | Ending | None = self._ledger.calls.get(request_id) or self._log.finishing.get(
            request_id
        )
        if found is None:
            found = await self._read(lambda: self._ending(request_id))
        return found if found is not None and found.service_id == service_id else None

    async def cancel(self, service_id: str, request_id: str) -> Verdict:
        self._log.check()
        if self._ledger.cancel(service_id, request_id) is Verdict.unknown:
            return await self._late_or_unknown(service_id, request_id)
        await self._log.durable()
        return Verdict.done

    async def feedback(self, call: Call | Ending, after: int) -> list[Feedback]:
        await self._log.transferred()
        kept = await self._read(lambda: self._kept_feedback(call.request_id, after))
        recent = getattr(call, "recent_feedback", None) or ()
        both = {f.feedback_id: f for f in (*kept, *recent) if f.feedback_id > after}
        return [both[number] for number in sorted(both)]

    # -- time

    async def sweep(self) -> None:
        now = time.monotonic()
        self._excuse_silence(now)
        self._ledger.expire(now)
        self._ledger.place_strays(now, self._settings.unknown_method_delay)
        for worker in self._ledger.bury(now, self._silent_seconds):
            self._listener.worker_stops(worker)
        await self._log.durable()
        if now >= self._drop_at:
            self._drop_at = now + DROP_INTERVAL
            await self._drop_old_results()

    def facts(self) -> dict[str, Any]:
        return {
            "open_calls": len(self._ledger.calls),
            "workers": sum(1 for _ in self._ledger.workers()),
            "failure": self._log.failure,
        }

    # -- inside

    async def _read(self, read: Callable[[], T]) -> T:
        return await self._loop.run_in_executor(self._reader, read)

    async def _late_or_unknown(self, service_id: str, request_id: str) -> Verdict:
        ending = await self.fetch(service_id, request_id)
        return Verdict.unknown if ending is None else Verdict.late

    async def _was_given(self, service_id: str, worker_id: str, request_id: str) -> bool:
        if not request_id:
            return True
        ending = await self.fetch(service_id, request_id)
        return ending is not None and ending.worker_id == worker_id

    def _excuse_silence(self, now: float) -> None:
        """A middleware that was itself stopped for a while heard nobody, and blames nobody for it."""
        slept = now - self._swept_at
        self._swept_at = now
        if slept > max(2.0, self._silent_seconds / MISSED_HEARTBEATS):
            for worker in self._ledger.workers():
                worker.seen_at += slept

    def _load(self) -> None:
        connection, now, wall = self._directory.connection, time.monotonic(), time.time()
        for registration, registered_at, leaving in connection.execute(
            "SELECT registration, registered_at, leaving FROM workers WHERE gone=0"
        ):
            known = msgspec.json.decode(registration, type=Registration)
            self._ledger.restore_worker(known, registered_at, now, leaving=bool(leaving))
        for row in connection.execute("SELECT registration FROM workers WHERE gone=1"):
            known = msgspec.json.decode(row[0], type=Registration)
            self._ledger.roster(known.service_id).known_methods.update(known.methods)
        last = 0
        for row in connection.execute("SELECT * FROM calls ORDER BY seq"):
            last = row[0]
            self._ledger.restore_call(_call(row, now, wall))
        self._numbers = itertools.count(last + 1)
        newest = connection.execute("SELECT coalesce(max(id), 0) FROM feedback").fetchone()[0]
        self._feedback_numbers = itertools.count(newest + 1)
        for service_id, key, request_id, fingerprint in connection.execute(
            "SELECT service_id, idempotency_key, request_id, fingerprint FROM results"
            " WHERE idempotency_key IS NOT NULL"
        ):
            self._ledger.keys[service_id, key] = (request_id, fingerprint)

    def _ending(self, request_id: str) -> Ending | None:
        row = self._directory.connection.execute(
            f"SELECT {ENDING_COLUMNS} FROM results WHERE request_id=?", (request_id,)
        ).fetchone()
        return None if row is None else Ending(**dict(zip(Ending.__struct_fields__, row, strict=True)))

    def _kept_feedback(self, request_id: str, after: int) -> list[Feedback]:
        rows = self._directory.connection.execute(
            "SELECT id, request_id, source_type, source_name, feedback_type, content, at FROM feedback"
            " WHERE request_id=? AND id>? ORDER BY id",
            (request_id, after),
        )
        return [
            Feedback(
                feedback_id=i, request_id=r, source_type=t, source_name=n, feedback_type=ft, content=c, at=at
            )
            for i, r, t, n, ft, c, at in rows
        ]

    async def _drop_old_results(self) -> None:
        last, keys = await self._read(self._old_results)
        if last is None:
            return
        for key in keys:
            self._ledger.keys.pop(key, None)
        drop = "DELETE FROM feedback WHERE request_id IN (SELECT request_id FROM results WHERE id<=?)"
        self._log.execute(drop, (last,))
        self._log.execute("DELETE FROM results WHERE id<=?", (last,))
        self._log.execute(
            "DELETE FROM feedback WHERE request_id='' AND at<?",
            (time.time() - self._settings.result_retention,),
        )
        await self._log.durable()

    def _old_results(self) -> tuple[int | None, list[tuple[str, str]]]:
        connection = self._directory.connection
        newest = connection.execute("SELECT coalesce(max(id), 0) FROM results").fetchone()[0]
        last = connection.execute(
            "SELECT max(id) FROM (SELECT id, finished_at FROM results ORDER BY id LIMIT ?)"
            " WHERE finished_at<? OR id<=?",
            (
                DROP_AT_ONCE,
                time.time() - self._settings.result_retention,
                newest - self._settings.max_results,
            ),
        ).fetchone()[0]
        keys = connection.execute(
            "SELECT service_id, idempotency_key FROM results WHERE id<=? AND idempotency_key IS NOT NULL",
            (last,),
        )
        return last, keys.fetchall()


def _call(row: tuple[Any, ...], now: float, wall: float) -> Call:
    return Call(
        seq=row[0],
        request_id=row[1],
        service_id=row[2],
        method=row[3],
        params=row[4],
        lock_required=bool(row[5]),
        created_at=row[6],
        expires_at=row[7],
        accepted_at=now,
        deadline=now + row[7] - wall,
        idempotency_key=row[8],
        fingerprint=row[9],
        worker_id=row[10],
        drained=bool(row[11]),
        earlier=tuple(msgspec.json.decode(row[12])) if row[12] else (),
    )


def _own(lock_path: str, db: str) -> int:
    try:
        lock = os.open(lock_path, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise SettingsError("db", f"cannot use {db} as the middleware's database: {error}") from None
    if fcntl is not None:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(lock)
            raise SettingsError(
                "db", f"another middleware runs on {db}; stop it or name another file"
            ) from None
    return lock
