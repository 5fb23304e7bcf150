"""Rate and latency of calls, by threads that each keep a caller."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

__all__ = ["Call", "Latency", "latency_of", "measure"]

Call = Callable[[int], object]
"""Makes one call, of this number, and waits for its result; calls that only warm up have negative numbers."""


class Latency(NamedTuple):
    """What many calls took.

    Attributes:
        per_second: how many ended in a second, of all callers together.
        p50_ms, p99_ms: milliseconds from call to result, of the median call and of the slowest but 1 %.
    """

    per_second: float
    p50_ms: float
    p99_ms: float


def latency_of(seconds: Sequence[float], took_seconds: float) -> Latency:
    """The figures of calls that took so long each, and so long together."""
    ordered = sorted(seconds)
    p50, p99 = (ordered[int(len(ordered) * share)] * 1e3 for share in (0.5, 0.99))
    return Latency(len(ordered) / took_seconds, p50, p99)


def measure(make_caller: Callable[[], Call], callers: int, calls: int, warm: int) -> Latency:
    """Call from several threads at once, each as often as the others.

    Args:
        make_caller: asked once by each thread.
        callers: how many threads.
        calls: how many calls together.
        warm: how many each makes before, which do not count.

    Raises:
        BaseException: what a call raised, the first of it; then the others end soon.
    """
    run = _Run(make_caller, max(1, calls // callers), warm, threading.Barrier(callers + 1))
    threads = [threading.Thread(target=run.thread, daemon=True) for _ in range(callers)]
    for thread in threads:
        thread.start()
    try:
        run.ready.wait()
    except threading.BrokenBarrierError:
        pass
    since = time.perf_counter()
    for thread in threads:
        thread.join()
    took = time.perf_counter() - since
    if run.errors:
        raise run.errors[0]
    return latency_of(run.seconds, took)


class _Run:
    def __init__(
        self, make_caller: Callable[[], Call], each: int, warm: int, ready: threading.Barrier
    ) -> None:
        self._make_caller = make_caller
        self._each = each
        self._warm = warm
        self.ready = ready
        self.seconds: list[float] = []
        self.errors: list[BaseException] = []

    def thread(self) -> None:
        try:
            self._calls()
        except threading.BrokenBarrierError:
            pass
        except BaseException as error:  # noqa: BLE001 - raised again by the thread that waits for this one
            self.errors.append(error)
            self.ready.abort()

    def _calls(self) -> None:
        call, mine = self._make_caller(), []
        for number in range(-self._warm, 0):
            call(number)
        self.ready.wait()
        for number in range(self._each):
            since = time.perf_counter()
            call(number)
            mine.append(time.perf_counter() - since)
            if self.errors:
                return
        self.seconds.extend(mine)
