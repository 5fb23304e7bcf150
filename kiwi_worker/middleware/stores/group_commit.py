"""One writer thread, many operations per transaction.

The event loop collects what has to become durable while the thread commits what was collected before: under
load a transaction holds many operations, and an idle middleware answers after one short commit. Nobody is
answered before the transaction with their operation is committed.

A commit that fails (a full disk) is tried again for as long as it takes; meanwhile nothing new is accepted.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import sqlite3
import threading
from collections.abc import Callable
from typing import Any

import msgspec

from ..records import Call, Ending, Feedback
from ..roster import WorkerEntry
from ..store import StoreFailure
from .schema import connect

__all__ = ["GroupCommit"]

logger = logging.getLogger("kiwi_worker.middleware.store")

RETRY_SECONDS = 0.5

ADD_CALL = "INSERT OR REPLACE INTO calls VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?)"
CHANGE_CALL = "UPDATE calls SET worker_id=?, drained=?, earlier=? WHERE seq=?"
REMOVE_CALL = "DELETE FROM calls WHERE seq=?"
ADD_RESULT = (
    "INSERT OR IGNORE INTO results (request_id, service_id, method, status, error_text, result, reason,"
    " worker_id, finished_at, idempotency_key, fingerprint) VALUES (?,?,?,?,?,?,?,?,?,?,?)"
)
ADD_FEEDBACK = "INSERT OR REPLACE INTO feedback VALUES (?,?,?,?,?,?,?,?)"
ADD_WORKER = "INSERT OR REPLACE INTO workers VALUES (?,?,?,?,?,?)"


class Batch:
    """What one transaction will make durable, and who waits for it."""

    __slots__ = ("added", "changed", "ended", "futures", "other", "removed", "results")

    def __init__(self) -> None:
        self.added: dict[int, tuple[Any, ...]] = {}
        self.changed: dict[int, tuple[Any, ...]] = {}
        self.removed: list[tuple[int]] = []
        self.results: list[tuple[Any, ...]] = []
        self.ended: list[Ending] = []
        self.other: list[tuple[str, tuple[Any, ...]]] = []
        self.futures: list[asyncio.Future[None]] = []

    def write(self, connection: sqlite3.Connection) -> None:
        """Carry everything out in one transaction."""
        connection.execute("BEGIN IMMEDIATE")
        for statement, values in self.other:
            connection.execute(statement, values)
        if self.added:
            connection.executemany(ADD_CALL, self.added.values())
        if self.changed:
            connection.executemany(CHANGE_CALL, self.changed.values())
        if self.removed:
            connection.executemany(REMOVE_CALL, self.removed)
        if self.results:
            connection.executemany(ADD_RESULT, self.results)
        connection.execute("COMMIT")


class GroupCommit:
    """The durable log of a ledger: implements its `Writes`.

    Args:
        path: the database file.
        loop: the loop of the ledger; everything but the thread itself runs on it.
        on_ended: told of each ending once it is durable.
    """

    def __init__(
        self, path: str, loop: asyncio.AbstractEventLoop, on_ended: Callable[[Ending], None]
    ) -> None:
        self._connection = connect(path)
        self._loop = loop
        self._on_ended = on_ended
        self._batch = Batch()
        self._queue: queue.SimpleQueue[Batch | None] = queue.SimpleQueue()
        self._busy = False
        self._scheduled = False
        self._giving_up = threading.Event()
        self.finishing: dict[str, Ending] = {}
        self.failure: str | None = None
        self._thread = threading.Thread(target=self._run, name="kiwi-middleware-commit", daemon=True)
        self._thread.start()

    # -- Writes

    def call_added(self, call: Call) -> None:
        self._batch.added[call.seq] = (
            call.seq,
            call.request_id,
            call.service_id,
            call.method,
            call.params,
            call.lock_required,
            call.created_at,
            call.expires_at,
            call.idempotency_key,
            call.fingerprint,
            call.worker_id,
            call.drained,
            None,
        )
        self._schedule()

    def call_changed(self, call: Call) -> None:
        earlier = msgspec.json.encode(call.earlier) if call.earlier else None
        self._batch.changed[call.seq] = (call.worker_id, call.drained, earlier, call.seq)
        self._schedule()

    def call_ended(self, call: Call, ending: Ending) -> None:
        batch = self._batch
        if batch.added.pop(call.seq, None) is None:
            batch.removed.append((call.seq,))
        batch.changed.pop(call.seq, None)
        batch.results.append(
            (
                ending.request_id,
                ending.service_id,
                ending.method,
                ending.status,
                ending.error_text,
                ending.result,
                ending.reason,
                ending.worker_id,
                ending.finished_at,
                call.idempotency_key,
                call.fingerprint,
            )
        )
        batch.ended.append(ending)
        self.finishing[ending.request_id] = ending
        self._schedule()

    def worker_changed(self, worker: WorkerEntry) -> None:
        self._write_worker(worker, gone=False)

    def worker_gone(self, worker: WorkerEntry) -> None:
        self._write_worker(worker, gone=True)

    def feedback_kept(self, service_id: str, feedback: Feedback) -> None:
        """A piece of feedback that its worker asked to keep."""
        values = (
            feedback.feedback_id,
            feedback.request_id,
            service_id,
            feedback.source_type,
            feedback.source_name,
            feedback.feedback_type,
            feedback.content,
            feedback.at,
        )
        self.execute(ADD_FEEDBACK, values)

    def execute(self, statement: str, values: tuple[Any, ...]) -> None:
        """Any other statement, before the calls of the same transaction."""
        self._batch.other.append((statement, values))
        self._schedule()

    # -- waiting

    def check(self) -> None:
        """Refuse new work while nothing can be made durable.

        Raises:
            StoreFailure: the last commit failed and is being tried again.
        """
        if self.failure is not None:
            raise StoreFailure(self.failure)

    def committed(self) -> asyncio.Future[None]:
        """Done when everything written so far is durable. One future each, so that one may be cancelled."""
        future: asyncio.Future[None] = self._loop.create_future()
        self._batch.futures.append(future)
        self._schedule()
        return future

    async def close(self) -> None:
        """Commit what is left, and end the thread; a commit that keeps failing is given up."""
        if self.failure is not None:
            self._giving_up.set()
        try:
            await self.committed()
        except StoreFailure as failure:
            logger.error("what was under way is lost: %s", failure, extra={"action": "store_close"})
        self._queue.put(None)
        await self._loop.run_in_executor(None, self._thread.join)

    # -- inside

    def _write_worker(self, worker: WorkerEntry, *, gone: bool) -> None:
        registration = msgspec.json.encode(worker.registration)
        values = (
            worker.service_id,
            worker.worker_id,
            registration,
            worker.registered_at,
            worker.leaving,
            gone,
        )
        self.execute(ADD_WORKER, values)

    def _schedule(self) -> None:
        if not self._scheduled and not self._busy:
            self._scheduled = True
            # Two turns of the loop: a worker that waits is woken in the first and drains in the second, so
            # that a call and the drain that takes it share one transaction.
            self._loop.call_soon(self._loop.call_soon, self._flush)

    def _flush(self) -> None:
        self._scheduled = False
        self._busy = True
        batch, self._batch = self._batch, Batch()
        self._queue.put(batch)

    def _settle(self, batch: Batch, failure: str | None) -> None:
        self._busy = False
        for future in batch.futures:
            if not future.done():
                if failure is None:
                    future.set_result(None)
                else:
                    future.set_exception(StoreFailure(failure))
        for ending in batch.ended:
            self.finishing.pop(ending.request_id, None)
            if failure is None:
                self._on_ended(ending)
        if (
            self._batch.futures
            or self._batch.added
            or self._batch.ended
            or self._batch.changed
            or self._batch.other
        ):
            self._flush()

    def _run(self) -> None:
        while (batch := self._queue.get()) is not None:
            failure = self._commit(batch)
            self._loop.call_soon_threadsafe(self._settle, batch, failure)
        self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        self._connection.close()

    def _commit(self, batch: Batch) -> str | None:
        while True:
            try:
                batch.write(self._connection)
            except Exception as error:  # noqa: BLE001 - this thread must outlive whatever the database says
                self._failed(error)
                if self._giving_up.wait(RETRY_SECONDS):
                    return self.failure
            else:
                self._recovered()
                return None

    def _failed(self, error: Exception) -> None:
        if self._connection.in_transaction:
            self._connection.rollback()
        if self.failure is None:
            logger.error(
                "the database cannot be written, trying again: %s", error, extra={"action": "store_failed"}
            )
        self.failure = f"the database cannot be written: {error}"

    def _recovered(self) -> None:
        if self.failure is not None:
            self.failure = None
            logger.warning("the database can be written again", extra={"action": "store_recovered"})
