"""How many slots work at once.

Python code of one process runs on one thread at a time. When calls are short and keep that one thread busy,
every further slot only takes the interpreter lock from it: measured, eight slots cost twice the processor
time of one for the same throughput. When calls wait (for a database, for a slow network), every slot is
needed. So while work waits, a look every few milliseconds at the processor time used tells whether to wake
another slot or to let one go to sleep. Nothing runs while nothing waits.

That a processor is not fully used does not say that more slots would use it well: with short calls each of
them also takes the lock from the others. So where calls are short, more slots stay only when more gets done
with them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from kiwi_worker.engine.backlog import Backlog

__all__ = ["Pace"]

TICK_SECONDS = 0.002
FEWEST = 2
"""One slot sends and waits for the network while the other uses the interpreter; measured best for no-ops."""
IDLE_SHARE = 0.75
"""Below this share of one processor, slots are waiting for something else: more of them help."""
BUSY_SHARE = 0.97
"""Above this share, and not above `SPREAD_SHARE`, the interpreter lock is what slots wait for."""
SPREAD_SHARE = 1.3
"""Above this share, handlers run outside the interpreter lock: more slots help."""
SHORT_SECONDS = 0.0005
"""Calls that end at this rate are so short that taking turns gains nothing."""
FEW_PER_SECOND = 300
"""Of calls that end so seldom there are too few to compare: every slot is wanted for them at once."""
TRIAL_SECONDS = 0.02
SETTLE_SECONDS = 0.005
GAIN = 1.15
"""By which factor more has to be done for more slots to stay."""
FIRST_HOLD_SECONDS = 0.25
LONGEST_HOLD_SECONDS = 4.0
"""How long nothing is tried after a trial; longer after each that failed."""


class Pace:
    """Sets how many slots of a backlog may work.

    Args:
        backlog: whose slots.
        slots: the most there may be.
        start: starts the thread, with a task name and what it runs.
    """

    def __init__(
        self, backlog: Backlog, slots: int, start: Callable[[str, Callable[[], None]], object]
    ) -> None:
        self._backlog = backlog
        self._slots = slots
        self._start = start
        self._wanted = threading.Event()
        self._starting = threading.Lock()
        self._running = False
        self._awake = False
        self._hold_seconds = FIRST_HOLD_SECONDS
        self._hold_until = 0.0
        backlog.wanted = min(slots, FEWEST)
        backlog.on_wait = self._work_waits

    def _work_waits(self) -> None:
        if self._awake or self._slots == 1:
            return
        with self._starting:
            if self._awake:
                return
            self._awake = True
            self._wanted.set()
            if not self._running:
                self._running = True
                self._start("pace", self._serve)

    def close(self) -> None:
        """End the thread, once the backlog is closed."""
        self._wanted.set()

    def _serve(self) -> None:
        while not self._backlog.closed:
            while len(self._backlog) and not self._backlog.closed:
                self._look()
            self._wanted.clear()
            self._awake = False
            # What came before this was seen as awake put its item there first.
            if not len(self._backlog) and not self._backlog.closed:
                self._wanted.wait()

    def _look(self) -> None:
        backlog = self._backlog
        taken, used, since = backlog.taken, time.process_time(), time.perf_counter()
        time.sleep(TICK_SECONDS)
        passed = time.perf_counter() - since
        share = (time.process_time() - used) / passed
        short = (backlog.taken - taken) * SHORT_SECONDS > passed
        if share < IDLE_SHARE and (backlog.taken - taken) / passed > FEW_PER_SECOND:
            self._try()
        elif share < IDLE_SHARE or share > SPREAD_SHARE or not short:
            self._want(max(FEWEST, backlog.active) * 2)
        elif share > BUSY_SHARE and backlog.wanted > FEWEST:
            backlog.wanted -= 1

    def _want(self, slots: int) -> None:
        backlog = self._backlog
        backlog.wanted = min(self._slots, slots)
        for _ in range(backlog.wanted - backlog.active):
            backlog.wake()

    def _try(self) -> None:
        """Try twice as many slots, or half of them when all are at work, and keep what gets more done."""
        if time.monotonic() < self._hold_until:
            return
        before = self._backlog.wanted
        more = before < self._slots
        rate = self._rate()
        self._want(before * 2 if more else max(FEWEST, before // 2))
        time.sleep(SETTLE_SECONDS)
        better = self._rate() > rate * (GAIN if more else 1 / GAIN)
        if not better:
            self._want(before)
        self._hold_seconds = (
            FIRST_HOLD_SECONDS if better else min(LONGEST_HOLD_SECONDS, self._hold_seconds * 2)
        )
        if not (better and more):
            self._hold_until = time.monotonic() + self._hold_seconds

    def _rate(self) -> float:
        """How much is taken in a second, measured for a moment."""
        taken, since = self._backlog.taken, time.perf_counter()
        time.sleep(TRIAL_SECONDS)
        return (self._backlog.taken - taken) / (time.perf_counter() - since)
