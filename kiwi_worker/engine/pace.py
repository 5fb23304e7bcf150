"""How many slots work at once.

Python code of one process runs on one thread at a time. When calls are short and keep that one thread busy,
every further slot only takes the interpreter lock from it: measured, eight slots cost twice the processor
time of one for the same throughput. When calls wait (for a database, for a slow network), every slot is
needed. So while work waits, a look every few milliseconds at the processor time used tells whether to wake
another slot or to let one go to sleep. Nothing runs while nothing waits.
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
        if share < IDLE_SHARE or share > SPREAD_SHARE or not short:
            backlog.wanted = min(self._slots, max(FEWEST, backlog.active) * 2)
            for _ in range(backlog.wanted - backlog.active):
                backlog.wake()
        elif share > BUSY_SHARE and backlog.wanted > FEWEST:
            backlog.wanted -= 1
