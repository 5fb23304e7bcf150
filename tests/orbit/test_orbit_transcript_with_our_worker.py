"""The transcript of the ORBIT page, with our worker in the place of curl, over both bindings."""

from __future__ import annotations

import threading
from typing import Any

from kiwi_worker.orbit import TaskContext, TaskError

from .links import Link

LIMIT_SECONDS = 20


def test_a_retryable_failure_is_tried_again_with_the_same_idempotency_key(link: Link) -> None:
    worker = link.worker()
    seen: list[TaskContext] = []

    @worker.task("greeting.compose", version="1.0.0")
    def compose(input: dict[str, Any], ctx: TaskContext) -> dict[str, Any]:
        seen.append(ctx)
        if ctx.attempt == 1:
            raise TaskError("GREETER_BUSY", "try again later", details={"queue_depth": 42})
        return {"message": f"Hello, {input['name']}"}

    with link.client() as client, worker:
        assert client.start("Greet", {"name": "Ada"}, execution_id="greet-ada") == "greet-ada"
        execution = client.wait("greet-ada", timeout=LIMIT_SECONDS)
    assert (execution.status, execution.output) == ("COMPLETED", {"message": "Hello, Ada"})
    first, second = seen
    assert (first.execution_id, first.workflow, first.workflow_version) == ("greet-ada", "Greet", "1.0.0")
    assert (first.step_id, first.attempt, second.attempt) == ("compose", 1, 2)
    assert first.idempotency_key == second.idempotency_key == "greet-ada/compose"
    assert first.request_id != second.request_id
    assert not first.redelivery
    assert first.deadline_ms is not None
    remaining = first.remaining_ms()
    assert remaining is not None
    assert remaining <= 30_000


def test_a_code_that_is_not_retryable_fails_the_step_on_the_first_attempt(link: Link) -> None:
    worker = link.worker()
    attempts = []

    @worker.task("greeting.compose", version="1.0.0")
    async def compose(input: dict[str, Any], ctx: TaskContext) -> dict[str, Any]:
        attempts.append(ctx.attempt)
        raise TaskError("INVALID_NAME", "name is blank")

    with link.client() as client, worker:
        execution = client.wait(client.start("Greet", {"name": ""}), timeout=LIMIT_SECONDS)
    assert execution.status == "FAILED"
    assert execution.error is not None
    assert execution.error.code == "INVALID_NAME"
    assert execution.error.message == "step `compose` failed: name is blank"
    assert attempts == [1]


def test_output_that_violates_the_contract_is_refused_and_fails_the_step(link: Link) -> None:
    worker = link.worker()
    calls = []

    @worker.task("greeting.compose", version="1.0.0")
    def compose(input: dict[str, Any]) -> dict[str, Any]:
        calls.append(input)
        return {"msg": 1}

    with link.client() as client, worker:
        execution = client.wait(client.start("Greet", {"name": "Bo"}), timeout=LIMIT_SECONDS)
    assert execution.error is not None
    assert execution.error.code == "OUTPUT_CONTRACT_VIOLATION"
    assert "$.message: missing required field `message` of type String" in execution.error.message
    assert calls == [{"name": "Bo"}]


def test_a_cancelled_workflow_cancels_the_task_with_the_next_heartbeat(link: Link) -> None:
    worker = link.worker()
    started, told = threading.Event(), threading.Event()

    @worker.task("greeting.compose", version="1.0.0")
    def compose(input: dict[str, Any], ctx: TaskContext) -> dict[str, Any]:
        started.set()
        if ctx.cancelled.wait(LIMIT_SECONDS):
            told.set()
        return {"message": "too late"}

    with link.client() as client, worker:
        execution_id = client.start("Greet", {"name": "Cy"})
        assert started.wait(LIMIT_SECONDS)
        client.cancel(execution_id, reason="customer withdrew")
        assert told.wait(LIMIT_SECONDS)
        client.wait(execution_id, timeout=LIMIT_SECONDS)


def test_a_worker_that_unregisters_while_it_holds_a_task_leaves_it_to_another(link: Link) -> None:
    first, second = link.worker(grace_period=0), link.worker()
    started, seen = threading.Event(), []

    @first.task("greeting.compose", version="1.0.0")
    def hold(input: dict[str, Any], ctx: TaskContext) -> dict[str, Any]:
        started.set()
        ctx.cancelled.wait(LIMIT_SECONDS)
        raise RuntimeError("abandoned")

    @second.task("greeting.compose", version="1.0.0")
    def compose(input: dict[str, Any], ctx: TaskContext) -> dict[str, Any]:
        seen.append((ctx.attempt, ctx.redelivery, ctx.idempotency_key))
        return {"message": "Hello, Di"}

    with link.client() as client:
        with first:
            client.start("Greet", {"name": "Di"}, execution_id="greet-redeliver")
            assert started.wait(LIMIT_SECONDS)
        with second:
            execution = client.wait("greet-redeliver", timeout=LIMIT_SECONDS)
    assert execution.output == {"message": "Hello, Di"}
    assert seen == [(1, True, "greet-redeliver/compose")]
