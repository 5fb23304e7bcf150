"""The page's "worker loop in pseudocode", line by line."""

from __future__ import annotations

import json
import threading
from itertools import pairwise
from typing import Any

import pytest

from kiwi_worker.orbit import TaskContext, TaskError
from kiwi_worker.testing import DropBefore, MisbehavingServer, Status

from .workers import LIMIT_SECONDS, UNKNOWN_SESSION, Server, echo, serving, worker_of


def bodies(server: Server, name: str) -> list[dict[str, Any]]:
    return [json.loads(call.body) for call in server.calls_named(name)]


def test_session_hb_is_register() -> None:
    with MisbehavingServer.orbit() as server, serving(server, echo):
        server.wait_for_calls("poll", ended=False)
        server.wait_for_calls("heartbeat")
        assert next(call.name for call in server.calls) == "register"
        assert {body["worker_session_id"] for body in bodies(server, "heartbeat")} == set(server.sessions)


def test_spawn_every_heartbeat_interval_ms() -> None:
    with MisbehavingServer.orbit(session_timeout_seconds=3) as server, serving(server, echo):
        server.wait_for_calls("heartbeat", 5)
        moments = [moment for _, moment in server.heartbeats]
    # A sixth of the time-out: not much more often, and never so rarely that the session is lost.
    assert moments[-1] - moments[0] > 4 * 0.5 * 0.8
    assert max(later - earlier for earlier, later in pairwise(moments)) < 3


def test_r_is_heartbeat_of_session_and_on_404_session_is_register(server: Server) -> None:
    server.fault("heartbeat", Status(404, body=UNKNOWN_SESSION))
    with serving(server, echo):
        server.wait_for_calls("heartbeat", 2)
        first, second = (body["worker_session_id"] for body in bodies(server, "heartbeat")[:2])
    assert len(server.registrations) == 2
    assert first != second


def test_for_token_in_r_cancel_signal_cancel(server: Server) -> None:
    def handle(input: dict[str, Any], ctx: TaskContext) -> dict[str, Any]:
        return {"cancelled": ctx.cancelled.wait(LIMIT_SECONDS)}

    with serving(server, handle):
        task = server.enqueue_task("job", input={})
        server.cancel(server.wait_for_token(task))
        server.assert_completed_once(task, {"cancelled": True})


def test_repeat_n_times_in_parallel(server: Server) -> None:
    together = threading.Barrier(5)

    def handle(input: dict[str, Any]) -> dict[str, Any]:
        together.wait(LIMIT_SECONDS)
        return {}

    with serving(server, handle, concurrency=5):
        for task in [server.enqueue_task("job", input={}) for _ in range(5)]:
            server.assert_completed_once(task)


def test_task_is_poll_with_wait_ms_and_on_404_register_and_retry(server: Server) -> None:
    server.fault("poll", Status(404, body=UNKNOWN_SESSION))
    with serving(server, echo, poll_wait=20, concurrency=1):
        server.wait_for_calls("poll", 2, ended=False)
        first, second = bodies(server, "poll")
    assert (first["wait_ms"], second["wait_ms"]) == (20000, 20000)
    assert first["worker_session_id"] != second["worker_session_id"]


@pytest.mark.parametrize(("seconds", "milliseconds"), [(60, 60000), (3600, 60000), (0.25, 250)])
def test_the_wait_is_capped_where_the_page_caps_it(server: Server, seconds: float, milliseconds: int) -> None:
    with serving(server, echo, poll_wait=seconds):
        server.wait_for_calls("poll", ended=False)
    assert bodies(server, "poll")[0]["wait_ms"] == milliseconds


def test_if_no_task_204_continue(server: Server) -> None:
    with serving(server, echo, poll_wait=0.2, concurrency=1):
        polls = server.wait_for_calls("poll", 4)
    assert {call.status for call in polls} == {204}
    assert len(server.registrations) == 1


def test_output_is_handler_of_input_and_task(server: Server) -> None:
    def handle(input: dict[str, Any], task: TaskContext) -> dict[str, Any]:
        return {"input": input, "execution": task.execution_id, "step": task.step_id, "task": task.method}

    with serving(server, handle):
        task = server.enqueue_task("job", input={"n": 1})
        output = server.assert_completed_once(task).body["output"]
    assert output == {"input": {"n": 1}, "execution": task, "step": output["step"], "task": "job"}


def test_send_with_retry_complete_with_token_and_output(server: Server) -> None:
    with serving(server, echo):
        task = server.enqueue_task("job", input={"n": 1})
        token = server.wait_for_token(task)
        server.assert_completed_once(task)
    assert bodies(server, "complete") == [{"token": token, "output": {"n": 1}}]


def test_except_task_error_fail_with_its_code_message_retryable_and_details(server: Server) -> None:
    def handle(input: dict[str, Any]) -> dict[str, Any]:
        raise TaskError("GREETER_BUSY", "try again later", retryable=True, details={"queue_depth": 42})

    with serving(server, handle):
        task = server.enqueue_task("job", input={})
        token = server.wait_for_token(task)
        server.wait_for_result(task)
    assert bodies(server, "fail") == [
        {
            "token": token,
            "error_code": "GREETER_BUSY",
            "error_message": "try again later",
            "retryable": True,
            "details": {"queue_depth": 42},
        }
    ]


def test_except_any_other_error_fail_with_unhandled_exception_and_its_text(server: Server) -> None:
    def handle(input: dict[str, Any]) -> dict[str, Any]:
        raise LookupError("no such card")

    with serving(server, handle):
        task = server.enqueue_task("job", input={})
        token = server.wait_for_token(task)
        server.wait_for_result(task)
    assert bodies(server, "fail") == [
        {
            "token": token,
            "error_code": "UNHANDLED_EXCEPTION",
            "error_message": "no such card",
            "retryable": True,
        }
    ]


def test_on_shutdown_stop_polling_wait_for_handlers_unregister(server: Server) -> None:
    started, release = threading.Event(), threading.Event()

    def handle(input: dict[str, Any]) -> dict[str, Any]:
        started.set()
        release.wait(LIMIT_SECONDS)
        return {}

    worker = worker_of(server, grace_period=LIMIT_SECONDS)
    worker.task("job", version="1.0.0")(handle)
    worker.start()
    task = server.enqueue_task("job", input={})
    assert started.wait(LIMIT_SECONDS)
    server.wait_for_calls("poll", 2, ended=False)
    ended: list[bool] = []
    stopper = threading.Thread(target=lambda: ended.append(worker.stop()))
    stopper.start()
    server.wait_until(lambda: all(call.outcome != "pending" for call in server.calls_named("poll")))
    polls, beats = len(server.calls_named("poll")), len(server.heartbeats)
    server.wait_until(lambda: len(server.heartbeats) >= beats + 2, what="heartbeats while handlers end")
    release.set()
    stopper.join(LIMIT_SECONDS)
    assert ended == [True]
    assert len(server.calls_named("poll")) == polls
    server.assert_completed_once(task)
    assert [call.name for call in server.calls if call.name != "heartbeat"][-2:] == ["complete", "unregister"]


def test_send_with_retry_goes_on_at_connection_errors_and_5xx_and_stops_on_any_other_answer(
    server: Server,
) -> None:
    for fault in (DropBefore(), Status(500), Status(503), Status(404, body=UNKNOWN_SESSION)):
        server.fault("complete", fault)
    with serving(server, echo):
        server.enqueue_task("job", input={})
        server.wait_for_calls("complete", 4)
    assert len(server.calls_named("complete")) == 4
    assert len({call.body for call in server.calls_named("complete")}) == 1
