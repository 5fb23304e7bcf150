"""What one ORBIT task costs the worker's process over HTTP, and what bare POSTs to the same runtime cost.

    python orbit_task_cost.py tasks COUNT SLOTS
    python orbit_task_cost.py socket|http.client COUNT THREADS

A task is two calls, a poll and a result, so POSTs are counted two by two.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from ceiling import BareSocket

from kiwi_worker.orbit import Client, OrbitWorker
from kiwi_worker.testing.orbit_runtime import running_runtime

WORKFLOW = """
[[workflow]]
name = "Bench"
version = "1.0.0"
[workflow.step]
name = "job"
task = "bench.job"
contract_version = "1.0.0"
"""
WARM = 100
SPARE = 200
LOOK_SECONDS = 0.05
BODY = b'{"worker_session_id": "nobody", "wait_ms": 1}'


def cpu_seconds() -> float:
    """User and system time of this process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def run_tasks(url: str, tasks: int, slots: int) -> None:
    """A worker that serves what is queued: print the CPU of one task."""
    worker = OrbitWorker(server=url, worker_id="bench", grace_period=1, poll_wait=2, concurrency=slots)
    marks: list[tuple[int, float, float]] = []

    @worker.task("bench.job", version="1.0.0")
    def job(value: dict[str, Any]) -> dict[str, Any]:
        return value

    with worker:
        engine = worker._engine
        assert engine is not None
        counters = engine.runner.counters
        for goal in (WARM, tasks - SPARE):
            while counters.answered < goal:
                # Looking more often would cost more than what is measured.
                time.sleep(LOOK_SECONDS)
            marks.append((counters.answered, cpu_seconds(), time.perf_counter()))
    (first, cpu, since), (last, cpu_end, until) = marks
    count = last - first
    print(json.dumps({"cpu_us": (cpu_end - cpu) / count * 1e6, "per_second": count / (until - since)}))


def run_posts(kind: str, url: str, count: int, threads: int) -> None:
    """So many POSTs, from so many threads together: print the CPU of two."""
    host, port = url.removeprefix("http://").split(":")
    begin, end = threading.Barrier(threads + 1), threading.Barrier(threads + 1)

    def post_all() -> None:
        post = poster(kind, host, int(port))
        for _ in range(WARM):
            post()
        begin.wait()
        for _ in range(count // threads):
            post()
        end.wait()

    for _ in range(threads):
        threading.Thread(target=post_all).start()
    begin.wait()
    before, since = cpu_seconds(), time.perf_counter()
    end.wait()
    seconds, used = time.perf_counter() - since, cpu_seconds() - before
    print(json.dumps({"cpu_us": used / count * 2e6, "per_second": count / 2 / seconds}))


def poster(kind: str, host: str, port: int) -> Callable[[], object]:
    """What makes one POST over a kept connection."""
    if kind == "socket":
        bare = BareSocket(host, port)
        return lambda: bare.call(b"POST", b"/v1/workers/poll", BODY)
    import http.client

    connection = http.client.HTTPConnection(host, port)

    def post() -> None:
        connection.request("POST", "/v1/workers/poll", BODY, {"content-type": "application/json"})
        connection.getresponse().read()

    return post


def main(kind: str, count: int, threads: int) -> None:
    """Start a runtime, run what was asked for in a process of its own, and pass its figures on."""
    with running_runtime(WORKFLOW) as runtime:
        if kind == "tasks":
            with Client(server=runtime.url) as client:
                for number in range(count):
                    client.start("Bench", {"n": number})
        command = [sys.executable, __file__, "measure", kind, runtime.url, str(count), str(threads)]
        subprocess.run(command, check=True)


if __name__ == "__main__":
    if sys.argv[1] == "measure":
        measured, url, number, slots = sys.argv[2:]
        if measured == "tasks":
            run_tasks(url, int(number), int(slots))
        else:
            run_posts(measured, url, int(number), int(slots))
    else:
        main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
