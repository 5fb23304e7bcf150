"""Tasks of an ORBIT worker in processes of their own."""

from __future__ import annotations

import os
from typing import Any

from kiwi_worker.orbit import OrbitWorker, TaskError
from kiwi_worker.orbit.context import TaskContext
from kiwi_worker.orbit.tasks import TaskRegistry
from kiwi_worker.testing import MisbehavingServer

LIMIT_SECONDS = 30
tasks = TaskRegistry()


@tasks.task("tell", version="2.0.0", executor="process")
def tell(input: dict, ctx: TaskContext) -> dict[str, Any]:
    return {
        "pid": os.getpid(),
        "input": input,
        "execution": ctx.execution_id,
        "attempt": ctx.attempt,
        "in_time": 0 < (ctx.remaining_ms() or 0) <= 60_000,
    }


@tasks.task("refuse", version="2.0.0", executor="process")
def refuse(input: dict) -> None:
    raise TaskError("CARD_DECLINED", "no money", retryable=False, details={"left": 2**70, "tags": {"a"}})


@tasks.task("die", version="2.0.0", executor="process")
def die(input: dict) -> None:
    os._exit(9)


def test_a_task_in_a_process_has_its_context_its_errors_and_its_death() -> None:
    with MisbehavingServer.orbit() as server:
        worker = OrbitWorker(server=server.url, worker_id="w", process_pool_size=1)
        worker.include(tasks)
        with worker:
            told = server.enqueue_task("tell", "2.0.0", {"a": 1}, timeout_ms=60_000)
            output = server.wait_for_result(told, LIMIT_SECONDS).body["output"]
            assert output.pop("pid") != os.getpid()
            assert output == {"input": {"a": 1}, "execution": told, "attempt": 1, "in_time": True}

            refused = server.wait_for_result(server.enqueue_task("refuse", "2.0.0", {}), LIMIT_SECONDS).body
            assert (refused["error_code"], refused["retryable"]) == ("CARD_DECLINED", False)
            assert refused["details"]["left"] == 2**70

            died = server.wait_for_result(server.enqueue_task("die", "2.0.0", {}), LIMIT_SECONDS).body
            assert "exit status 9" in died["error_message"]
