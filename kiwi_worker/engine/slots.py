"""The threads that do the work: each takes one piece at a time, runs it and answers it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from kiwi_worker.engine.backlog import Backlog
from kiwi_worker.engine.binding import Binding
from kiwi_worker.engine.outcomes import Ending, outcome_of
from kiwi_worker.engine.runner import Runner
from kiwi_worker.engine.work import Work
from kiwi_worker.errors import StartError

__all__ = ["SlotState", "Slots"]

_logger = logging.getLogger("kiwi_worker.engine")


class SlotState:
    """What one slot is at.

    Attributes:
        lane: the connection it uses.
        work: the work it claims, runs or answers; None while it waits for some.
        polling_at: since when it polls, on the monotonic clock; None while it does not.
    """

    __slots__ = ("lane", "polling_at", "work")

    def __init__(self, lane: Any) -> None:
        self.lane = lane
        self.work: Work | None = None
        self.polling_at: float | None = None


class Slots:
    """Up to `limit` threads, started when there is work for them.

    Args:
        limit: how many.
        binding: decodes what was received, or polls.
        runner: runs it.
        may_poll: whether a slot may ask for more work now; it may wait for that.
        start: starts a thread, with a task name and what it runs.

    Attributes:
        limit: how many there may be; fewer than asked for where the system gives no more threads.
        states: what each slot that was started is at.
    """

    def __init__(
        self,
        limit: int,
        *,
        binding: Binding,
        runner: Runner,
        may_poll: Callable[[], bool],
        start: Callable[[str, Callable[[], None]], object],
    ) -> None:
        self.limit = limit
        self.states: list[SlotState] = []
        self._binding = binding
        self._runner = runner
        self._may_poll = may_poll
        self._start = start
        self._starting = threading.Lock()
        self._started = 0
        self._polls = not binding.brings_batches
        self.backlog = Backlog(limit, self.start_one)

    def start_one(self) -> bool:
        """Start one more slot; False when all are there that there will be.

        Raises:
            StartError: not even the first can be started.
        """
        # Nobody may pass by while another starts one: that one may be the asker itself, just begun.
        with self._starting:
            if self._started >= self.limit:
                return False
            self.backlog.joined()
            try:
                self._start(f"slot-{self._started + 1}", self._serve)
            except RuntimeError as error:
                self.backlog.left()
                self._settle_for_fewer(error)
                return False
            self._started += 1
            return True

    def _settle_for_fewer(self, error: RuntimeError) -> None:
        if not self._started:
            raise StartError(f"no thread can be started to handle messages: {error}") from error
        _logger.error(
            "slot %d of %d cannot be started (%s): going on without; raise the limit of threads",
            self._started + 1,
            self.limit,
            error,
            extra={"action": "slots_missing"},
        )
        self.limit = self._started

    def start_all(self) -> None:
        """Start every slot."""
        while self.start_one():
            pass

    @property
    def busy(self) -> int:
        """How many slots are at work; one that polls counts as well, until it is told to stop."""
        if self._polls:
            return len(self.states)
        return self.backlog.active

    def interrupt(self) -> None:
        """End the calls that slots wait in."""
        for state in list(self.states):
            state.lane.interrupt()

    def interrupt_polls(self) -> None:
        """End the polls that slots wait in; slots that run something are left alone."""
        for state in list(self.states):
            if state.polling_at is not None:
                state.lane.interrupt()

    def _serve(self) -> None:
        state = SlotState(self._binding.lane("slot"))
        self.states.append(state)
        try:
            if self._polls:
                self._poll_and_run(state)
            else:
                self._take_and_run(state)
        finally:
            self.states.remove(state)
            state.lane.close()

    def _take_and_run(self, state: SlotState) -> None:
        own = threading.Lock()
        own.acquire()
        lane, take, admit = state.lane, self.backlog.take, self._binding.admit
        while (item := take(own)) is not None:
            work = item if item.__class__ is Work else admit(item)
            if work is not None:
                state.work = work
                self.run(work, lane)
                state.work = None

    def _poll_and_run(self, state: SlotState) -> None:
        lane, backlog = state.lane, self.backlog
        while self._may_poll():
            work = backlog.take_now() or self._poll(state)
            if work is not None:
                state.work = work
                self.run(work, lane)
                state.work = None
        while (work := backlog.take_now()) is not None:
            self.run(work, lane)

    def _poll(self, state: SlotState) -> Work | None:
        state.polling_at = time.monotonic()
        try:
            return self._binding.poll(state.lane)
        finally:
            state.polling_at = None

    def run(self, work: Work, lane: Any) -> None:
        """Run one piece of work, whatever goes wrong with it.

        Args:
            lane: the connection to claim and answer it on; None to leave the answer to the reporters.
        """
        try:
            self._runner.run(work, lane)
        except BaseException as error:
            _logger.critical(
                "running %s failed inside the engine",
                work.name,
                exc_info=error,
                extra={"action": "run_failed", "request_id": work.key, "method": work.name},
            )
            self._runner.finish(work, outcome_of(Ending.RAISED, error))
