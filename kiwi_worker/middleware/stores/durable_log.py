"""The durable log of a ledger: the spool at once, the database soon after, on a thread of its own.

Nobody is answered before their step is in the spool. The writer thread brings what was spooled into SQLite
in one transaction at a time; while it works, more collects. When nothing can be written (a full disk) it is
tried again for as long as it takes, and nothing new is accepted meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from ..records import Call, Ending, Feedback
from ..roster import WorkerEntry
from ..store import StoreFailure
from .batch import ADDED, CHANGED, DRAINED, ENDED, OTHER, Batch
from .schema import connect
from .spool import Spool, encode_step

__all__ = ["DurableLog"]

logger = logging.getLogger("kiwi_worker.middleware.store")

RETRY_SECONDS = 0.5
TRANSFER_SECONDS = 0.05
"""How long steps may collect before they are brought into the database."""

TRANSFER_STEPS = 4000
"""How many steps may collect for that long."""

ADD_FEEDBACK = "INSERT OR REPLACE INTO feedback VALUES (?,?,?,?,?,?,?,?)"
ADD_WORKER = "INSERT OR REPLACE INTO workers VALUES (?,?,?,?,?,?)"


class DurableLog:
    """Implements the `Writes` of a ledger. Everything but the writer thread runs on the loop.

    Args:
        path: the database file.
        loop: the loop of the ledger.
        on_ended: told of each ending once it is durable.

    Attributes:
        finishing: the endings that are durable, and not in the database yet.
        failure: why nothing can be written at the moment, or None.
    """

    def __init__(
        self, path: str, loop: asyncio.AbstractEventLoop, on_ended: Callable[[Ending], None]
    ) -> None:
        self._connection = connect(path)
        self._loop = loop
        self._on_ended = on_ended
        self._spool = Spool(path)
        self._records: list[bytes] = []
        self._ended: list[Ending] = []
        self._written: list[asyncio.Future[None]] = []
        self._batch = Batch()
        self._queue: queue.SimpleQueue[tuple[int, Batch] | None] = queue.SimpleQueue()
        self._busy = False
        self._transfer_timer: asyncio.TimerHandle | None = None
        self._retry_timer: asyncio.TimerHandle | None = None
        self._transferred: list[asyncio.Future[None]] = []
        self._giving_up = threading.Event()
        self.finishing: dict[str, Ending] = {}
        self.failure: str | None = None
        self._bring_in()
        self._thread = threading.Thread(target=self._run, name="kiwi-middleware-commit", daemon=True)
        self._thread.start()

    # -- Writes

    def call_added(self, call: Call) -> None:
        self._step(
            ADDED,
            (
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
            ),
        )

    def call_changed(self, call: Call) -> None:
        earlier = msgspec.json.encode(call.earlier) if call.earlier else None
        self._step(CHANGED, (call.worker_id, call.drained, earlier, call.seq))

    def calls_drained(self, worker_id: str, calls: list[Call]) -> None:
        self._step(DRAINED, (worker_id, [call.seq for call in calls]))

    def call_ended(self, call: Call, ending: Ending) -> None:
        self._step(
            ENDED,
            (
                call.seq,
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
            ),
        )
        self.finishing[ending.request_id] = ending
        self._ended.append(ending)

    def worker_changed(self, worker: WorkerEntry) -> None:
        self._keep_worker(worker, gone=False)

    def worker_gone(self, worker: WorkerEntry) -> None:
        self._keep_worker(worker, gone=True)

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

    def execute(self, statement: str, values: Sequence[Any]) -> None:
        """Any other statement."""
        self._step(OTHER, (statement, values))

    # -- waiting

    def check(self) -> None:
        """Refuse new work while nothing can be made durable.

        Raises:
            StoreFailure: the last write failed and is being tried again.
        """
        if self.failure is not None:
            raise StoreFailure(self.failure)

    async def durable(self) -> None:
        """Returns when every step up to now is durable: at once, unless writing fails."""
        self._write()
        if self._records:
            future = self._loop.create_future()
            self._written.append(future)
            await future

    async def transferred(self) -> None:
        """Returns when every step up to now is in the database."""
        await self.durable()
        if self._batch.size or self._busy:
            future = self._loop.create_future()
            self._transferred.append(future)
            self._transfer()
            await future

    async def close(self) -> None:
        """Bring everything into the database, and end the thread. What cannot be brought in stays spooled."""
        if self.failure is not None:
            self._giving_up.set()
            logger.error("stopped while writing failed: %s", self.failure, extra={"action": "store_close"})
        else:
            await self.transferred()
        self._queue.put(None)
        await self._loop.run_in_executor(None, self._thread.join)
        self._spool.seal()
        for timer in (self._transfer_timer, self._retry_timer):
            if timer is not None:
                timer.cancel()

    # -- spool

    def _step(self, kind: int, values: Sequence[Any]) -> None:
        self._records.append(encode_step(kind, values))
        self._batch.step(kind, values)

    def _write(self) -> None:
        if not self._records:
            return
        try:
            self._spool.append(b"".join(self._records))
        except OSError as error:
            if self._retry_timer is None:
                self._retry_timer = self._loop.call_later(RETRY_SECONDS, self._write_again)
            self._failed(error)
            return
        self._records.clear()
        self._tell()
        if self._batch.size >= TRANSFER_STEPS:
            self._transfer()
        elif self._transfer_timer is None:
            self._transfer_timer = self._loop.call_later(TRANSFER_SECONDS, self._transfer)

    def _write_again(self) -> None:
        self._retry_timer = None
        self._write()
        self._recovered()

    def _tell(self) -> None:
        ended, self._ended = self._ended, []
        for ending in ended:
            self._on_ended(ending)
        written, self._written = self._written, []
        for future in written:
            _finish(future)

    # -- database

    def _bring_in(self) -> None:
        """What an earlier run had spooled and not transferred."""
        row = self._connection.execute("SELECT value FROM meta WHERE name='spooled'").fetchone()
        transferred = int(row[0]) if row is not None else 0
        batch = Batch()
        for kind, values in self._spool.steps_after(transferred):
            batch.step(kind, values)
        self._spool.start_after(transferred)
        if batch.size:
            batch.write(self._connection, self._spool.seal())
        self._spool.drop(self._spool.seal())

    def _transfer(self) -> None:
        if self._transfer_timer is not None:
            self._transfer_timer.cancel()
            self._transfer_timer = None
        # A batch and the file it is spooled in have to hold the same steps.
        if self._busy or self._records or not self._batch.size:
            return
        self._busy = True
        batch, self._batch = self._batch, Batch()
        self._queue.put((self._spool.seal(), batch))

    def _settle(self, number: int, batch: Batch) -> None:
        self._busy = False
        self._spool.drop(number)
        for request_id in batch.ended_requests():
            self.finishing.pop(request_id, None)
        if self._transferred and (self._batch.size or self._records):
            self._transfer()
            return
        waiting, self._transferred = self._transferred, []
        for future in waiting:
            _finish(future)
        if self._batch.size and self._transfer_timer is None:
            self._transfer_timer = self._loop.call_later(TRANSFER_SECONDS, self._transfer)

    def _run(self) -> None:
        while (job := self._queue.get()) is not None:
            number, batch = job
            if self._commit(batch, number):
                self._loop.call_soon_threadsafe(self._settle, number, batch)
        self._connection.close()

    def _commit(self, batch: Batch, number: int) -> bool:
        failed = False
        while True:
            try:
                batch.write(self._connection, number)
            except Exception as error:  # noqa: BLE001 - this thread must outlive whatever the database says
                failed = True
                if self._connection.in_transaction:
                    self._connection.rollback()
                self._loop.call_soon_threadsafe(self._failed, error)
                if self._giving_up.wait(RETRY_SECONDS):
                    return False
            else:
                if failed:
                    self._loop.call_soon_threadsafe(self._recovered)
                return True

    def _keep_worker(self, worker: WorkerEntry, *, gone: bool) -> None:
        registration = msgspec.json.encode(worker.registration)
        self.execute(
            ADD_WORKER,
            (
                worker.service_id,
                worker.worker_id,
                registration,
                worker.registered_at,
                worker.leaving,
                gone,
            ),
        )

    def _failed(self, error: Exception) -> None:
        if self.failure is None:
            logger.error("nothing can be written, trying again: %s", error, extra={"action": "store_failed"})
        self.failure = f"the middleware cannot write to its database: {error}"

    def _recovered(self) -> None:
        if self.failure is not None and not self._records:
            self.failure = None
            logger.warning("the database can be written again", extra={"action": "store_recovered"})


def _finish(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
