"""Answers that are still to be delivered.

An answer is first tried by the slot that made it. What was not answered then, and everything async handlers
make, is delivered from here by a few reporter threads, again and again until the server answers. While the
server cannot be reached one report is tried at a time, with growing pauses; any call of the worker that
succeeds ends the pause for all.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from kiwi_worker.engine.binding import Binding, Report, Verdict, VerdictKind
from kiwi_worker.engine.stamps import Stamp
from kiwi_worker.transport.retry import Backoff

__all__ = ["Outbox"]

_logger = logging.getLogger("kiwi_worker.engine")

FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 5.0
CONNECT_SECONDS = 30.0
"""What an attempt may take beyond its own limit: to connect, and to get a new token and try once more."""


class _Entry:
    __slots__ = ("backoff", "report")

    def __init__(self, report: Report) -> None:
        self.report = report
        self.backoff: Backoff | None = None


class Outbox:
    """Reports on their way.

    Args:
        binding: sends them.
        start: starts a thread, with a task name and what it runs.
        reporters: how many threads deliver.
        limit: from how many reports on `full` is true; more are still taken.
        send_limit_seconds: how long one attempt may take.
        on_answered: called with the key of each report that got its final answer.
        on_change: called when the outbox was full and is not any more.

    Attributes:
        retries: how often an answer has to be sent again.
        unreachable: whether the server could not be reached lately.
        stamps: those of the reporter threads.
        progress_at: when an answer was delivered from here last, or the first came, on the monotonic clock.
    """

    def __init__(
        self,
        binding: Binding,
        *,
        start: Callable[[str, Callable[[], None]], object],
        reporters: int,
        limit: int,
        send_limit_seconds: float,
        on_answered: Callable[[str], None],
        on_change: Callable[[], None],
    ) -> None:
        self._binding = binding
        self._start = start
        self._reporters = reporters
        self._limit = limit
        self._send_limit = send_limit_seconds
        self._on_answered = on_answered
        self._on_change = on_change
        self._changed = threading.Condition()
        self._queue: list[tuple[float, int, _Entry]] = []
        self._order = itertools.count()
        self._sending = 0
        self._started = 0
        self._waiting = 0
        self._paused_until = 0.0
        self._pauses = Backoff(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS)
        self._closed = False
        self._lanes: list[Any] = []
        self.retries = 0
        self.unreachable = False
        self.stamps: list[Stamp] = []
        self.progress_at = 0.0

    def __len__(self) -> int:
        return len(self._queue) + self._sending

    @property
    def full(self) -> bool:
        """Whether so much waits here that nothing more should be received."""
        return len(self) >= self._limit

    def put(self, report: Report, verdict: Verdict | None = None) -> None:
        """Deliver a report; `verdict` tells how a first attempt elsewhere went."""
        with self._changed:
            if verdict is not None and verdict.replacement is not None:
                report, verdict = verdict.replacement, None
            entry = _Entry(report)
            if not len(self):
                self.progress_at = time.monotonic()
            self._push(0.0 if verdict is None else self._due_after(entry, verdict), entry)
            self._need_reporter()

    def wake(self) -> None:
        """The server answered something: what waits only because it was not reached is due now."""
        if not self.unreachable:
            return
        with self._changed:
            self.unreachable = False
            self._make_due()

    def _make_due(self) -> None:
        self._paused_until = 0.0
        self._pauses.reset()
        self._queue = [(0.0, order, entry) for _, order, entry in self._queue]
        heapq.heapify(self._queue)
        self._changed.notify_all()

    def nudge(self) -> None:
        """Let those who wait for room look up."""
        with self._changed:
            self._changed.notify_all()

    def wait_for_room(self, give_up: Callable[[], bool]) -> None:
        """Wait until it is not full; `give_up` is asked again after each `nudge`."""
        with self._changed:
            while self.full and not self._closed and not give_up():
                self._changed.wait()

    def flush(self, seconds: float) -> bool:
        """Try everything now, and wait until all is delivered; False when the time was over first."""
        until = time.monotonic() + seconds
        with self._changed:
            self._make_due()
            while self._queue or self._sending:
                left = until - time.monotonic()
                if left <= 0:
                    return False
                self._changed.wait(left)
        return True

    def close(self, seconds: float) -> list[Report]:
        """End the reporters, within this time; gives what was not delivered."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            lanes = list(self._lanes)
        for lane in lanes:
            lane.interrupt()
        with self._changed:
            self._changed.wait_for(lambda: not self._sending, seconds)
            return [entry.report for _, _, entry in sorted(self._queue, key=lambda item: item[1])]

    def _push(self, due: float, entry: _Entry) -> None:
        heapq.heappush(self._queue, (due, next(self._order), entry))

    def _need_reporter(self) -> None:
        if self._waiting:
            self._changed.notify()
        elif self._started < self._reporters and not self._closed:
            self._started += 1
            self._start(f"reporter-{self._started}", self._serve)

    def _serve(self) -> None:
        lane, stamp = self._binding.lane("report"), Stamp()
        with self._changed:
            self._lanes.append(lane)
            self.stamps.append(stamp)
        try:
            while (entry := self._take()) is not None:
                stamp.expect(2 * self._send_limit + CONNECT_SECONDS)
                self._deliver(entry, lane)
                stamp.rest()
        finally:
            lane.close()
            with self._changed:
                self._lanes.remove(lane)
                self.stamps.remove(stamp)

    def _take(self) -> _Entry | None:
        with self._changed:
            while not self._closed:
                delay = self._delay()
                if delay is not None and delay <= 0:
                    self._sending += 1
                    return heapq.heappop(self._queue)[2]
                self._waiting += 1
                self._changed.wait(delay)
                self._waiting -= 1
        return None

    def _delay(self) -> float | None:
        if not self._queue or (self.unreachable and self._sending):
            return None
        return max(self._queue[0][0], self._paused_until) - time.monotonic()

    def _deliver(self, entry: _Entry, lane: Any) -> None:
        verdict = None
        try:
            verdict = self._binding.report(entry.report, lane, self._send_limit)
        finally:
            with self._changed:
                was_full = self.full
                self._sending -= 1
                # A report whose sending raised goes back: nothing computed is ever dropped.
                self._settle(entry, verdict or Verdict(VerdictKind.RETRY))
                self._changed.notify_all()
        if verdict.kind is VerdictKind.ANSWERED:
            self.progress_at = time.monotonic()
            self._on_answered(entry.report.key)
        if was_full and not self.full:
            self._on_change()

    def _settle(self, entry: _Entry, verdict: Verdict) -> None:
        if verdict.replacement is not None:
            self._push(0.0, _Entry(verdict.replacement))
        elif verdict.kind is VerdictKind.RETRY:
            self._push(self._due_after(entry, verdict), entry)
        if verdict.reached and self.unreachable:
            self.unreachable = False
            self._paused_until = 0.0
            self._pauses.reset()

    def _due_after(self, entry: _Entry, verdict: Verdict) -> float:
        self.retries += 1
        now = time.monotonic()
        if not verdict.reached:
            # Slots that lose the server together see one failure and not many: one pause grows for it.
            if not self.unreachable or now >= self._paused_until:
                self._paused_until = now + self._pauses.next()
            self.unreachable = True
            return 0.0
        if verdict.after_seconds is not None:
            return now + verdict.after_seconds
        if entry.backoff is None:
            entry.backoff = Backoff(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS)
        return now + entry.backoff.next()
