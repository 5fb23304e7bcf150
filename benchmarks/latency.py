"""Latency and rate of calls, by threads that each keep a caller."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

from kiwi_worker.bench.latency import Call, measure

WARM = 50

MakeCaller = Callable[[], Call]


def print_figures(make_caller: MakeCaller, callers: int, calls: int, idle_seconds: float = 0.0) -> None:
    """Call, and print the figures as JSON.

    Args:
        make_caller: gives a function that makes one call and waits for its result; asked once per thread.
        callers: threads.
        calls: all calls together; with `idle_seconds` the number of silences.
        idle_seconds: when not 0, the silence before each call.
    """
    if idle_seconds:
        figures = {"first_ms": _after_silence(make_caller(), calls, idle_seconds) * 1e3}
    else:
        figures = measure(make_caller, callers, calls, WARM)._asdict()
    print(json.dumps(figures))


def _after_silence(call: Call, silences: int, idle_seconds: float) -> float:
    for number in range(WARM):
        call(number)
    seconds = []
    for number in range(silences):
        time.sleep(idle_seconds)
        since = time.perf_counter()
        call(number)
        seconds.append(time.perf_counter() - since)
    return sorted(seconds)[len(seconds) // 2]
