"""Worker and runtime through random sequences of what can happen to both."""

from __future__ import annotations

import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kiwi_worker.orbit import Client, OrbitWorker, TaskContext, TaskError
from kiwi_worker.testing import (
    DropAfter,
    DropBefore,
    Html502,
    MisbehavingServer,
    PartialBody,
    Redeliver,
    Status,
    TooManyRequests,
)
from kiwi_worker.testing.orbit_runtime import running_runtime

from .links import GREET

LIMIT_SECONDS = 40
ACTIONS = [
    "start",
    "start",
    "start failing",
    "start slow",
    "cancel",
    "restart",
    "kill",
    "new worker",
    "time out",
]
WORKFLOWS = GREET.replace('using = "ruby"', 'using = "python"').replace('timeout = "30s"', 'timeout = "1s"')
FINAL = {"COMPLETED", "FAILED", "CANCELLED", "TIMED_OUT"}


def new_worker(url: str, release: threading.Event) -> OrbitWorker:
    worker = OrbitWorker(
        server=url, worker_id="w", poll_wait=1, grace_period=1, concurrency=3, report_limit=0.5
    )

    @worker.task("greeting.compose", version="1.0.0")
    def compose(input: dict[str, Any], ctx: TaskContext) -> dict[str, Any]:
        name = input["name"]
        if name == "failing" and ctx.attempt == 1:
            raise TaskError("BUSY", "once")
        if name == "slow":
            ctx.cancelled.wait(0.3)
        if name == "over":
            release.wait(1.5)
        return {"message": f"Hello, {name}"}

    return worker


@settings(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck))
@given(actions=st.lists(st.sampled_from(ACTIONS), min_size=4, max_size=9))
def test_no_step_is_left_unresolved(actions: list[str], tmp_path_factory: Any) -> None:
    folder: Path = tmp_path_factory.mktemp("runtime")
    release = threading.Event()
    names = {"start": "Ada", "start failing": "failing", "start slow": "slow", "time out": "over"}
    with running_runtime(WORKFLOWS, db=folder / "orbit.db", session_timeout="3s") as runtime:
        worker, executions = new_worker(runtime.url, release), []
        with Client(server=runtime.url) as client:
            worker.start()
            try:
                for action in [*actions, "start"]:
                    if action in names:
                        executions.append(client.start("Greet", {"name": names[action]}))
                    elif action == "cancel" and executions:
                        client.cancel(executions[-1])
                    elif action in ("restart", "kill"):
                        runtime.kill() if action == "kill" else runtime.stop()
                        runtime.start()
                    elif action == "new worker":
                        worker.stop()
                        worker = new_worker(runtime.url, release)
                        worker.start()
                ended = {one: client.wait(one, timeout=LIMIT_SECONDS).status for one in executions}
            finally:
                release.set()
                worker.stop()
    assert set(ended.values()) <= FINAL, ended


FAULTS = st.sampled_from(
    [
        ("poll", DropAfter(20)),
        ("poll", PartialBody()),
        ("poll", Redeliver()),
        ("poll", Status(503)),
        ("complete", DropBefore()),
        ("complete", DropAfter(0)),
        ("complete", Status(503)),
        ("complete", Html502()),
        ("complete", TooManyRequests(0)),
        ("fail", DropAfter(0)),
        ("fail", Status(500)),
        ("heartbeat", DropBefore()),
        ("forget", None),
        ("cancel", None),
    ]
)


@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(faults=st.lists(FAULTS, max_size=5), failing=st.lists(st.booleans(), min_size=1, max_size=6))
def test_no_result_that_was_answered_is_sent_again(
    faults: list[tuple[str, Any]], failing: list[bool]
) -> None:
    with MisbehavingServer.orbit(session_timeout_seconds=3) as server:
        worker = OrbitWorker(server=server.url, worker_id="w", poll_wait=1, grace_period=2, report_limit=0.5)

        @worker.task("job", version="1.0.0")
        def job(input: dict[str, Any]) -> dict[str, Any]:
            if input["fails"]:
                raise TaskError("NO", retryable=False)
            return {}

        for call, fault in faults:
            if fault is not None:
                server.fault(call, fault)
        with worker:
            tasks = [server.enqueue_task("job", input={"fails": fails}) for fails in failing]
            for call, _ in faults:
                if call == "forget":
                    server.forget_sessions()
                elif call == "cancel":
                    server.cancel(server.wait_for_token(tasks[0]))
            until = time.monotonic() + LIMIT_SECONDS
            for task in tasks:
                server.wait_for_result(task, max(0.1, until - time.monotonic()))
    answered = Counter(
        call.body
        for call in server.calls
        if call.name in ("complete", "fail") and call.fault is None and call.status == 200
    )
    assert all(count == 1 for count in answered.values()), answered
