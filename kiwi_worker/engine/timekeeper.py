"""Things to do at a moment; one thread, which sleeps until the next one and exists only once it is needed."""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections.abc import Callable

__all__ = ["Alarm", "Timekeeper"]


class Alarm:
    """Something to be done at a moment; `cancel` it when it is not needed any more."""

    __slots__ = ("at", "run")

    def __init__(self, at: float, run: Callable[[], None]) -> None:
        self.at = at
        self.run: Callable[[], None] | None = run

    def cancel(self) -> None:
        """Do not do it; harmless when it was done already."""
        self.run = None


class Timekeeper:
    """Runs alarms when they are due, on the monotonic clock.

    Args:
        start: starts the thread, with a task name and what it runs.
    """

    def __init__(self, start: Callable[[str, Callable[[], None]], object]) -> None:
        self._start = start
        self._changed = threading.Condition()
        self._alarms: list[tuple[float, int, Alarm]] = []
        self._count = itertools.count()
        self._purge_at = 1000
        self._running = False
        self._closed = False

    def at(self, moment: float, run: Callable[[], None]) -> Alarm:
        """Run something at a moment of the monotonic clock; it must not block."""
        alarm = Alarm(moment, run)
        with self._changed:
            if len(self._alarms) > self._purge_at:
                self._purge()
            heapq.heappush(self._alarms, (moment, next(self._count), alarm))
            if not self._running and not self._closed:
                self._running = True
                self._start("timekeeper", self._serve)
            elif self._alarms[0][2] is alarm:
                self._changed.notify()
        return alarm

    def close(self) -> None:
        """Forget all alarms and end the thread."""
        with self._changed:
            self._closed = True
            self._alarms.clear()
            self._changed.notify()

    def _serve(self) -> None:
        while True:
            alarm = self._next()
            if alarm is None:
                return
            run = alarm.run
            if run is not None:
                run()

    def _next(self) -> Alarm | None:
        with self._changed:
            while not self._closed:
                self._drop_cancelled()
                if not self._alarms:
                    self._changed.wait()
                    continue
                left = self._alarms[0][0] - time.monotonic()
                if left <= 0:
                    return heapq.heappop(self._alarms)[2]
                self._changed.wait(left)
        return None

    def _purge(self) -> None:
        # Most alarms are cancelled long before they are due; they must not pile up until then.
        self._alarms = [entry for entry in self._alarms if entry[2].run is not None]
        heapq.heapify(self._alarms)
        self._purge_at = 2 * len(self._alarms) + 1000

    def _drop_cancelled(self) -> None:
        while self._alarms and self._alarms[0][2].run is None:
            heapq.heappop(self._alarms)
