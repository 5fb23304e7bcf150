"""What one ORBIT task costs the worker's process over HTTP, against bare POSTs to the same runtime.

    python orbit_task_cost.py [TASKS] [ROUNDS]

A task is two calls, a poll and a result. It is compared with three POSTs by http.client and two by a bare
socket, in turns.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import time
from typing import Any

from ceiling import BareSocket
from measure import Figures

from kiwi_worker.orbit import Client, OrbitWorker
from kiwi_worker.testing.orbit_runtime import RunningRuntime, running_runtime

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


def run_tasks(url: str, tasks: int) -> None:
    """A worker that serves what is queued: print the CPU of one task."""
    worker = OrbitWorker(server=url, worker_id="bench", grace_period=1, poll_wait=2)
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


def run_posts(kind: str, url: str, count: int) -> None:
    """So many POSTs: print the CPU of one."""
    host, port = url.removeprefix("http://").split(":")
    if kind == "http.client":
        import http.client

        connection = http.client.HTTPConnection(host, int(port))

        def post() -> None:
            connection.request("POST", "/v1/workers/poll", BODY, {"content-type": "application/json"})
            connection.getresponse().read()
    else:
        bare = BareSocket(host, int(port))

        def post() -> None:
            bare.call(b"POST", b"/v1/workers/poll", BODY)

    for _ in range(WARM):
        post()
    before = cpu_seconds()
    for _ in range(count):
        post()
    print(json.dumps({"cpu_us": (cpu_seconds() - before) / count * 1e6}))


def figures_of(*arguments: object) -> Figures:
    """The figures a run of this script prints."""
    command = [sys.executable, __file__, *map(str, arguments)]
    done = subprocess.run(command, env=os.environ, capture_output=True, text=True, check=True)
    figures: Figures = json.loads(done.stdout.strip().splitlines()[-1])
    return figures


def one_round(runtime: RunningRuntime, tasks: int) -> tuple[Figures, float, float]:
    """Tasks, three http.client POSTs, two bare ones."""
    with Client(server=runtime.url) as client:
        for number in range(tasks):
            client.start("Bench", {"n": number})
    task = figures_of("tasks", runtime.url, tasks)
    return (
        task,
        3 * figures_of("http.client", runtime.url, 2000)["cpu_us"],
        2 * figures_of("socket", runtime.url, 2000)["cpu_us"],
    )


def main(tasks: int, rounds: int) -> None:
    """Take turns and print the ratios."""
    three, two = [], []
    for number in range(rounds):
        with running_runtime(WORKFLOW) as runtime:
            task, http_client, bare = one_round(runtime, tasks)
        three.append(task["cpu_us"] / http_client)
        two.append(task["cpu_us"] / bare)
        print(
            f"round {number + 1}: {task['per_second']:.0f} tasks/s, {task['cpu_us']:.0f} µs a task; three "
            f"http.client POSTs {http_client:.0f} µs ({three[-1]:.2f}); "
            f"two bare POSTs {bare:.0f} µs ({two[-1]:.2f})",
            flush=True,
        )
    print(f"a task costs {statistics.median(three):.2f} times three http.client POSTs")
    print(f"and {statistics.median(two):.2f} times two bare ones")


if __name__ == "__main__":
    if sys.argv[1:2] == ["tasks"]:
        run_tasks(sys.argv[2], int(sys.argv[3]))
    elif sys.argv[1:2] in (["http.client"], ["socket"]):
        run_posts(sys.argv[1], sys.argv[2], int(sys.argv[3]))
    else:
        given = [int(word) for word in sys.argv[1:]]
        main(*(given + [5000, 3][len(given) :]))
