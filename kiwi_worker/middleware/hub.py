"""Who waits for what: workers for messages, callers for endings, streams for feedback."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

from .exchange import Departure, Disconnected
from .probe import Prober
from .records import Call, Ending, Feedback
from .roster import WorkerEntry
from .settings import MiddlewareSettings
from .store import Store

__all__ = ["FeedbackLine", "Hub"]

T = TypeVar("T")

logger = logging.getLogger("kiwi_worker.middleware.hub")

STREAM_BACKLOG = 1000
"""Pieces of feedback kept for a stream whose reader is slow; the oldest give way."""


class FeedbackLine:
    """What one open stream has still to send."""

    def __init__(self) -> None:
        self.waiting: deque[Feedback] = deque(maxlen=STREAM_BACKLOG)
        self._news = asyncio.Event()

    def put(self, feedback: Feedback) -> None:
        """One more piece."""
        self.waiting.append(feedback)
        self._news.set()

    def wake(self) -> None:
        """There is something to look at, be it an ending."""
        self._news.set()

    async def news(self, seconds: float) -> None:
        """Wait for any of that, at most so long."""
        try:
            await asyncio.wait_for(self._news.wait(), seconds)
        except asyncio.TimeoutError:
            return
        self._news.clear()


class Hub:
    """The `Listener` of a store, and everything that hangs without holding a thread.

    Args:
        store: where things are kept.
        settings: the bounds.
    """

    def __init__(self, store: Store, settings: MiddlewareSettings) -> None:
        self.store = store
        self.settings = settings
        self.prober = Prober()
        self.closing = False
        self._drains: dict[WorkerEntry, list[asyncio.Future[bool]]] = {}
        self._callers: dict[str, list[asyncio.Future[Ending | None]]] = {}
        self._lines: dict[str, list[FeedbackLine]] = {}
        self._sweeper: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        """Open the store and begin to watch the time."""
        self._loop = asyncio.get_running_loop()
        await self.prober.open()
        await self.store.open(self)
        self._sweeper = asyncio.ensure_future(self._sweep())

    def end_waits(self) -> None:
        """The middleware stops: whoever waits is answered now, with what there is."""
        self.closing = True
        for worker in list(self._drains):
            self.worker_stops(worker)
        for waiting in self._callers.values():
            for future in waiting:
                _settle(future, None)
        for lines in self._lines.values():
            for line in lines:
                line.wake()

    async def close(self) -> None:
        """Stop, and make durable what is under way."""
        self.end_waits()
        if self._sweeper is not None:
            self._sweeper.cancel()
        await self.prober.close()
        await self.store.close()

    # -- Listener

    def worker_has_work(self, worker: WorkerEntry, call: Call) -> None:
        for future in self._drains.get(worker, ()):
            if not future.done():
                future.set_result(True)
                return
        if worker.registration.run_mode == "Lazy" and not worker.waiting:
            self.prober.poke(worker, call.request_id)

    def worker_stops(self, worker: WorkerEntry) -> None:
        self.prober.drained(worker)
        for future in self._drains.get(worker, ()):
            _settle(future, False)

    def call_ended(self, ending: Ending) -> None:
        for future in self._callers.get(ending.request_id, ()):
            _settle(future, ending)
        for line in self._lines.get(ending.request_id, ()):
            line.wake()

    def feedback_came(self, feedback: Feedback) -> None:
        for line in self._lines.get(feedback.request_id, ()):
            line.put(feedback)

    # -- workers

    async def drain(self, worker: WorkerEntry, wait_seconds: float, gone: Departure) -> list[Call]:
        """What is in the worker's inbox, waiting so long for it. An answer nobody can read is put back.

        Raises:
            Disconnected: the worker closed its connection meanwhile.
        """
        taken = await self._take(worker, gone)
        until = self._loop.time() + wait_seconds
        while not taken and wait_seconds > 0 and await self._work_comes(worker, until, gone):
            taken = await self._take(worker, gone)
        if gone.happened:
            raise Disconnected
        return taken

    def put_back(self, worker: WorkerEntry, calls: list[Call]) -> None:
        """The answer with these calls was not received; they are drained again."""
        task = asyncio.ensure_future(self.store.put_back(worker, calls))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _take(self, worker: WorkerEntry, gone: Departure) -> list[Call]:
        if gone.happened:
            raise Disconnected
        self.prober.drained(worker)
        taken = await self.store.take_all(worker)
        if taken and gone.happened:
            await self.store.put_back(worker, taken)
            raise Disconnected
        return taken

    async def _work_comes(self, worker: WorkerEntry, until: float, gone: Departure) -> bool:
        if self.closing:
            return False
        future: asyncio.Future[bool] = self._loop.create_future()
        timer = self._loop.call_at(until, _settle, future, False)
        gone.tell(lambda: _settle(future, False))
        self._drains.setdefault(worker, []).append(future)
        worker.waiting += 1
        try:
            return await future
        finally:
            timer.cancel()
            worker.waiting -= 1
            self._drains[worker].remove(future)
            if not self._drains[worker]:
                del self._drains[worker]

    # -- callers

    @contextmanager
    def ending_of(self, request_id: str) -> Iterator[asyncio.Future[Ending | None]]:
        """A future of this call's ending; None in it means that nobody waits any longer."""
        future: asyncio.Future[Ending | None] = self._loop.create_future()
        self._callers.setdefault(request_id, []).append(future)
        try:
            yield future
        finally:
            self._callers[request_id].remove(future)
            if not self._callers[request_id]:
                del self._callers[request_id]

    async def within(self, future: asyncio.Future[Ending | None], seconds: float) -> Ending | None:
        """What such a future brings within that time, else None."""
        if self.closing or seconds <= 0:
            return future.result() if future.done() else None
        timer = self._loop.call_later(seconds, _settle, future, None)
        try:
            return await future
        finally:
            timer.cancel()

    async def outcome(self, service_id: str, request_id: str, seconds: float) -> Call | Ending | None:
        """How a call ended, waiting so long for it; else the open call, or None when there is none."""
        with self.ending_of(request_id) as future:
            found = await self.store.fetch(service_id, request_id)
            if isinstance(found, Call):
                return await self.within(future, seconds) or found
            return found

    @contextmanager
    def line_of(self, request_id: str) -> Iterator[FeedbackLine]:
        """The feedback of this call from now on."""
        line = FeedbackLine()
        self._lines.setdefault(request_id, []).append(line)
        try:
            yield line
        finally:
            self._lines[request_id].remove(line)
            if not self._lines[request_id]:
                del self._lines[request_id]

    # -- time

    async def _sweep(self) -> None:
        pause = min(0.5, self.settings.heartbeat_delay / 4)
        while True:
            await asyncio.sleep(pause)
            try:
                await self.store.sweep()
            except Exception:
                logger.exception("a sweep failed; the next one goes on", extra={"action": "sweep_failed"})


def _settle(future: asyncio.Future[T], value: T) -> None:
    if not future.done():
        future.set_result(value)
