"""Drives the core: gives it the time, writes what changed, and wakes who waits.

One event loop owns it; both bindings call it from there, so nothing here needs a lock.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time
from typing import Any

from kiwi_worker.orbit.runtime.core import RuntimeCore
from kiwi_worker.orbit.runtime.identities import Caller
from kiwi_worker.orbit.runtime.messages import Ack, Assignment, Registered, Registration
from kiwi_worker.orbit.runtime.model import Execution, Failure, WorkerRecord
from kiwi_worker.orbit.runtime.polls import Poll, wait_of
from kiwi_worker.orbit.runtime.refusal import Refused, stopping
from kiwi_worker.orbit.runtime.sessions import Session
from kiwi_worker.orbit.runtime.store import Store

_logger = logging.getLogger("kiwi_worker.orbit.runtime")


class Clock:
    """Unix epoch milliseconds that never jump: the wall clock is read once, then the monotonic one."""

    def __init__(self) -> None:
        self._offset = time.time() - time.monotonic()

    def now_ms(self) -> int:
        """The time, in milliseconds since the Unix epoch."""
        return int((self._offset + time.monotonic()) * 1000)


class Driver:
    """The runtime as the bindings see it. To be made inside a running event loop.

    Args:
        core: fresh, or with what the store held restored into it by `load`.
        store: written to before any answer goes out.
    """

    def __init__(self, core: RuntimeCore, store: Store) -> None:
        self._core, self._store, self._clock = core, store, Clock()
        self._loop = asyncio.get_running_loop()
        self._polls: dict[Poll, asyncio.Future[None]] = {}
        self._waits: dict[str, set[asyncio.Future[None]]] = {}
        self._unsaved: dict[str, Execution | None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._armed_ms: int | None = None
        self._stopping = False

    def load(self) -> None:
        """Take over what an earlier process left in the store."""
        self._core.restore(self._store.executions(), self._store.workers(), self._clock.now_ms())
        self._settle()

    def stop(self) -> None:
        """End every waiting call; from now on polls come back without a task at once."""
        self._stopping = True
        self._core.end_polls()
        self._settle()
        for futures in self._waits.values():
            _resolve(futures)
        if self._timer is not None:
            self._timer.cancel()

    def close(self) -> None:
        """Let go of the store."""
        self._store.close()

    def register(self, caller: Caller, request: Registration) -> Registered:
        """See `RuntimeCore.register`."""
        answer = self._core.register(caller, request, self._clock.now_ms())
        self._settle()
        self._store.save_worker(self._core.worker(request.worker_id))
        for warning in answer.warnings:
            extra = {"action": "worker_warned", "worker_id": request.worker_id}
            _logger.warning("worker %s: %s", request.worker_id, warning, extra=extra)
        return answer

    def heartbeat(self, caller: Caller, session_id: str) -> list[str]:
        """See `RuntimeCore.heartbeat`."""
        cancels = self._core.heartbeat(caller, session_id, self._clock.now_ms())
        self._settle()
        return cancels

    def unregister(self, caller: Caller, session_id: str) -> None:
        """See `RuntimeCore.unregister`."""
        self._core.unregister(caller, session_id, self._clock.now_ms())
        self._settle()

    async def poll(self, caller: Caller, session_id: str, wait_ms: int | None) -> Assignment | None:
        """Wait for a task; cancelled, it takes none."""
        wait_ms = 0 if self._stopping else wait_ms
        poll = self._core.poll(caller, session_id, wait_ms, self._clock.now_ms())
        if not poll.done:
            self._polls[poll] = self._loop.create_future()
        self._settle()
        if not poll.done:
            await self._answered(poll)
        if poll.refused is not None:
            raise poll.refused
        return poll.assignment

    async def _answered(self, poll: Poll) -> None:
        try:
            await self._polls[poll]
        except asyncio.CancelledError:
            self._core.withdraw(poll)
            raise
        finally:
            self._polls.pop(poll, None)

    def complete(self, caller: Caller, token: str, output: Any) -> Ack:
        """See `RuntimeCore.complete`."""
        ack = self._core.complete(caller, token, output, self._clock.now_ms())
        self._settle()
        return ack

    def fail(self, caller: Caller, token: str, failure: Failure, *, retryable: bool) -> Ack:
        """See `RuntimeCore.fail`."""
        ack = self._core.fail(caller, token, failure, self._clock.now_ms(), retryable=retryable)
        self._settle()
        return ack

    def start(self, workflow: str, value: Any, execution_id: str | None) -> tuple[str, bool]:
        """See `RuntimeCore.start`."""
        started = self._core.start(workflow, value, execution_id, self._clock.now_ms())
        self._settle()
        return started

    def cancel(self, execution_id: str, reason: str | None) -> Execution:
        """See `RuntimeCore.cancel`."""
        execution = self._core.cancel(execution_id, reason, self._clock.now_ms())
        self._settle()
        return execution

    def execution(self, execution_id: str) -> Execution:
        """See `RuntimeCore.execution`."""
        execution = self._core.execution(execution_id, self._clock.now_ms())
        self._settle()
        return execution

    def executions(self) -> list[Execution]:
        """See `RuntimeCore.executions`."""
        executions = self._core.executions(self._clock.now_ms())
        self._settle()
        return executions

    def workers(self) -> list[tuple[WorkerRecord, list[Session]]]:
        """See `RuntimeCore.workers`."""
        workers = self._core.workers(self._clock.now_ms())
        self._settle()
        return workers

    def set_leader(self, leader: bool) -> None:
        """The development switch: everything is refused with `NOT_LEADER` while it is off."""
        self._core.leader = leader

    async def wait(self, execution_id: str, timeout_ms: int | None) -> Execution:
        """The execution, once it is finished or the time is over; limited as a poll's wait is."""
        execution = self.execution(execution_id)
        if not execution.finished and not self._stopping:
            await self._finished(execution_id, wait_of(timeout_ms) / 1000)
        if not execution.finished and self._stopping:
            # an answer as if the time were over would send the client into a circle
            raise stopping()
        return execution

    async def _finished(self, execution_id: str, timeout_seconds: float) -> None:
        future: asyncio.Future[None] = self._loop.create_future()
        futures = self._waits.setdefault(execution_id, set())
        futures.add(future)
        try:
            await asyncio.wait([future], timeout=timeout_seconds)
        finally:
            futures.discard(future)
            if not futures:
                self._waits.pop(execution_id, None)

    def _settle(self) -> None:
        refused = self._save()
        for poll in self._core.take_answered():
            poll.refused = poll.refused or refused
            _resolve({future} if (future := self._polls.get(poll)) else ())
        self._arm()
        if refused is not None:
            raise refused

    def _save(self) -> Refused | None:
        changed = self._core.take_changed()
        self._unsaved.update(changed)
        for execution_id, execution in changed.items():
            if execution is None or execution.finished:
                _resolve(self._waits.get(execution_id, ()))
        try:
            if self._unsaved:
                self._store.save(self._unsaved)
        except sqlite3.Error as error:
            _logger.exception("cannot write to the store", extra={"action": "store_failed"})
            return Refused(500, "STORAGE_FAILURE", f"the store cannot be written: {error}")
        self._unsaved.clear()
        return None

    def _arm(self) -> None:
        at_ms = self._core.next_event_ms()
        if at_ms == self._armed_ms or self._stopping:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._armed_ms, self._timer = at_ms, None
        if at_ms is not None:
            delay = max(0, at_ms - self._clock.now_ms()) / 1000
            self._timer = self._loop.call_later(delay, self._ring)

    def _ring(self) -> None:
        self._timer = self._armed_ms = None
        self._core.advance(self._clock.now_ms())
        try:
            self._settle()
        except Refused:
            # logged where it happened; what could not be written is tried again with the next change
            return


def _resolve(futures: Any) -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)
