"""Latency and rate of calls, by threads that each keep a caller."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable

WARM = 50

MakeCaller = Callable[[], Callable[[int], object]]


def print_figures(make_caller: MakeCaller, callers: int, calls: int, idle_seconds: float = 0.0) -> None:
    """Call, and print the figures as JSON.

    Args:
        make_caller: gives a function that makes one call and waits for its result; asked once per thread.
        callers: threads.
        calls: all calls together; with `idle_seconds` the number of silences.
        idle_seconds: when not 0, the silence before each call.
    """
    if idle_seconds:
        seconds = _after_silence(make_caller(), calls, idle_seconds)
        print(json.dumps({"first_ms": seconds * 1e3}))
        return
    latencies, took = _busy(make_caller, callers, calls)
    latencies.sort()
    print(
        json.dumps(
            {
                "per_second": len(latencies) / took,
                "p50_ms": latencies[len(latencies) // 2] * 1e3,
                "p99_ms": latencies[int(len(latencies) * 0.99)] * 1e3,
            }
        )
    )


def _after_silence(call: Callable[[int], object], silences: int, idle_seconds: float) -> float:
    for number in range(WARM):
        call(number)
    seconds = []
    for number in range(silences):
        time.sleep(idle_seconds)
        since = time.perf_counter()
        call(number)
        seconds.append(time.perf_counter() - since)
    return sorted(seconds)[len(seconds) // 2]


def _busy(make_caller: MakeCaller, callers: int, calls: int) -> tuple[list[float], float]:
    latencies: list[float] = []
    ready = threading.Barrier(callers + 1)

    def run() -> None:
        call, mine = make_caller(), []
        for number in range(WARM):
            call(number)
        ready.wait()
        for number in range(calls // callers):
            since = time.perf_counter()
            call(number)
            mine.append(time.perf_counter() - since)
        latencies.extend(mine)

    threads = [threading.Thread(target=run) for _ in range(callers)]
    for thread in threads:
        thread.start()
    ready.wait()
    since = time.perf_counter()
    for thread in threads:
        thread.join()
    return latencies, time.perf_counter() - since
