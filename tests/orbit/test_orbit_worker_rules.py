"""The nine "Rules for implementers" of the ORBIT page, a test or more each, and what goes beyond them."""

from __future__ import annotations

import logging
import threading
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from kiwi_worker import Context, Worker
from kiwi_worker.errors import AuthenticationError, DefinitionError, RegistrationError, UnreachableError
from kiwi_worker.orbit import Client, OrbitWorker, TaskContext, TaskError
from kiwi_worker.testing import (
    DropAfter,
    DropBefore,
    Html502,
    MisbehavingServer,
    PartialBody,
    Redeliver,
    Stall,
    Status,
    TooManyRequests,
)
from kiwi_worker.testing.orbit_runtime import running_runtime

from .workers import LIMIT_SECONDS, NOT_LEADER, Server, echo, serving, worker_of

# 1. Register on session loss


def test_rule_1_after_a_lost_session_it_registers_once_and_goes_on(server: Server) -> None:
    with serving(server, echo, concurrency=4):
        server.wait_for_calls("poll", 4, ended=False)
        server.forget_sessions()
        done = server.enqueue_task("job", input={"n": 1})
        server.assert_completed_once(done, {"n": 1})
    assert len(server.registrations) == 2


def test_rule_1_a_404_without_the_code_is_a_proxys_and_loses_no_session(server: Server) -> None:
    with serving(server, echo):
        server.fault("poll", Status(404, body=b"<h1>no such page</h1>", content_type="text/html"), times=2)
        server.assert_completed_once(server.enqueue_task("job", input={"n": 1}), {"n": 1})
    assert len(server.registrations) == 1


# 2. Make result delivery survive outages


@pytest.mark.parametrize(
    "fault",
    [
        DropBefore(),
        DropAfter(0),
        Status(503),
        Html502(),
        TooManyRequests(0),
        Status(401),
        Status(408),
        Stall(1.5),
    ],
    ids=lambda fault: type(fault).__name__,
)
@pytest.mark.parametrize("call", ["complete", "fail"])
def test_rule_2_a_result_is_sent_until_the_runtime_answers(server: Server, fault: Any, call: str) -> None:
    def handle(input: dict[str, Any]) -> dict[str, Any]:
        if call == "fail":
            raise TaskError("NO")
        return {}

    server.fault(call, fault, times=2)
    with serving(server, handle, report_limit=0.5):
        result = server.wait_for_result(server.enqueue_task("job", input={}), LIMIT_SECONDS)
    assert result.call == call
    assert result.accepted


def test_rule_2_results_are_delivered_once_the_runtime_is_back(server: Server) -> None:
    release, started = threading.Event(), []

    def handle(input: dict[str, Any]) -> dict[str, Any]:
        started.append(input)
        release.wait(LIMIT_SECONDS)
        return input

    with serving(server, handle, concurrency=3):
        ids = [server.enqueue_task("job", input={"n": number}) for number in range(3)]
        server.wait_until(lambda: len(started) == 3)
        server.stop()
        release.set()
        server.forget_sessions()
        server.start()
        for number, one in enumerate(ids):
            server.assert_completed_once(one, {"n": number})


# 3. Treat answers as final


@pytest.mark.parametrize("status", [400, 403, 422])
def test_rule_3_a_result_that_was_refused_is_not_sent_again(server: Server, status: int) -> None:
    server.fault(
        "complete", Status(status, body=b'{"error":{"code":"FORBIDDEN","message":"no"}}'), times="always"
    )
    with serving(server, echo):
        server.enqueue_task("job", input={})
        server.wait_for_calls("complete")
    assert len(server.calls_named("complete")) == 1


def test_rule_3_a_result_that_was_not_accepted_is_not_sent_again(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    server.refuse_outputs("job")
    with serving(server, echo):
        result = server.wait_for_result(server.enqueue_task("job", input={}), LIMIT_SECONDS)
    assert not result.accepted
    assert len(server.calls_named("complete")) == 1
    assert "output violates the task contract" in caplog.text


def test_rule_3_a_result_too_large_becomes_one_final_failure(server: Server) -> None:
    with (
        MisbehavingServer.orbit(largest_body_bytes=2000) as small,
        serving(small, lambda _: {"x": "y" * 5000}),
    ):
        result = small.wait_for_result(small.enqueue_task("job", input={}), LIMIT_SECONDS)
    assert (result.call, result.body["error_code"], result.body["retryable"]) == (
        "fail",
        "RESULT_TOO_LARGE",
        False,
    )


def test_rule_3_a_result_too_large_for_grpc_becomes_one_final_failure(greet: Path) -> None:
    pytest.importorskip("grpc")
    workflows = greet.read_text().replace('using = "ruby"', 'using = "python"')
    with (
        running_runtime(workflows, grpc=True, max_body=20_000) as runtime,
        Client(server=runtime.url) as client,
    ):
        worker = OrbitWorker(server=runtime.grpc_url, proto="assumed", worker_id="w", grace_period=1)
        worker.task("greeting.compose", version="1.0.0")(lambda _: {"message": "x" * 100_000})
        with worker:
            execution = client.wait(client.start("Greet", {"name": "Ada"}), timeout=LIMIT_SECONDS)
    assert execution.error is not None
    assert execution.error.code == "RESULT_TOO_LARGE"


# 4. Make side effects idempotent


def test_rule_4_the_idempotency_key_is_the_same_over_retries(server: Server) -> None:
    keys: list[tuple[int, str]] = []

    def handle(input: dict[str, Any], ctx: TaskContext) -> dict[str, Any]:
        keys.append((ctx.attempt, ctx.idempotency_key))
        if ctx.attempt == 1:
            raise RuntimeError("not yet")
        return {}

    with serving(server, handle):
        server.assert_completed_once(server.enqueue_task("job", input={}, max_attempts=2), {})
    assert [attempt for attempt, _ in keys] == [1, 2]
    assert keys[0][1] == keys[1][1]


def test_rule_4_the_same_attempt_redelivered_to_its_worker_is_run_once_and_reported_twice(
    server: Server,
) -> None:
    runs, release = [], threading.Event()

    def handle(input: dict[str, Any]) -> dict[str, Any]:
        runs.append(input)
        release.wait(LIMIT_SECONDS)
        return {}

    server.fault("poll", Redeliver())
    with serving(server, handle):
        task = server.enqueue_task("job", input={})
        server.wait_for_token(task, 2)
        # The slot that got it again has taken it in once it polls the next time.
        server.wait_for_calls("poll", len(server.calls_named("poll")) + 1, ended=False)
        release.set()
        server.wait_until(lambda: len(server.results_of(task)) == 2)
    assert len(runs) == 1
    assert {result.body["token"] for result in server.results_of(task)} == set(server.tokens(task))


# 5. Heartbeat independently


def test_rule_5_no_handler_and_no_poll_holds_up_the_heartbeat(server: Server) -> None:
    until = time.monotonic() + 5

    def burn(input: dict[str, Any]) -> dict[str, Any]:
        while time.monotonic() < until:
            sum(range(1000))
        return {}

    with serving(server, burn, concurrency=9):
        ids = [server.enqueue_task("job", input={}) for _ in range(8)]
        for one in ids:
            server.wait_for_result(one, LIMIT_SECONDS)
    moments = [moment for _, moment in server.heartbeats if moment < until]
    gaps = [later - earlier for earlier, later in pairwise(moments)]
    assert len(server.registrations) == 1
    assert max(gaps) < 3, "the session would have been lost"


# 6. Honour cancellations


def test_rule_6_a_cancel_sets_the_event_and_a_late_result_is_still_sent(server: Server) -> None:
    def handle(input: dict[str, Any], ctx: TaskContext) -> dict[str, Any]:
        assert ctx.cancelled.wait(LIMIT_SECONDS)
        assert ctx.is_cancelled
        return {"late": True}

    with serving(server, handle):
        task = server.enqueue_task("job", input={})
        server.wait_for_token(task)
        server.cancel(task)
        server.wait_until(lambda: server.results_of(task))
    assert server.results_of(task)[0].body["output"] == {"late": True}


def test_rule_6_a_cancelled_async_handler_is_reported_as_cancelled(server: Server) -> None:
    import asyncio

    async def handle(input: dict[str, Any]) -> dict[str, Any]:
        await asyncio.sleep(LIMIT_SECONDS)
        return {}

    with serving(server, handle):
        task = server.enqueue_task("job", input={})
        server.wait_for_token(task)
        server.cancel(task)
        server.wait_until(lambda: server.results_of(task))
    body = server.results_of(task)[0].body
    assert (body["error_code"], body["retryable"]) == ("CANCELLED", False)


# 7. Announce contracts exactly


def test_rule_7_two_versions_side_by_side_and_warnings_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    with MisbehavingServer.orbit(warnings=("nobody uses job 1.0.0",)) as server:
        worker = worker_of(server)
        worker.task("job", version="1.0.0")(lambda _: {"version": 1})
        worker.task("job", version="2.0.0")(lambda _: {"version": 2})
        with worker:
            server.assert_completed_once(server.enqueue_task("job", "2.0.0", input={}), {"version": 2})
            server.assert_completed_once(server.enqueue_task("job", "1.0.0", input={}), {"version": 1})
        registration = server.registrations[0]
    assert registration["contracts"] == [
        {"task_name": "job", "contract_version": "1.0.0"},
        {"task_name": "job", "contract_version": "2.0.0"},
    ]
    assert registration["runtime"] == "python"
    assert registration["sdk"].startswith("kiwi-worker/")
    assert "nobody uses job 1.0.0" in caplog.text


def test_rule_7_names_of_the_runtime_and_empty_codes_are_refused_where_they_are_written() -> None:
    worker = OrbitWorker()
    with pytest.raises(DefinitionError, match="runtime's own"):
        worker.task("orbit.sleep", version="1.0.0")(echo)
    with pytest.raises(DefinitionError, match="code is empty"):
        TaskError("")


# 8. Return objects


@pytest.mark.parametrize(
    ("returned", "expected"),
    [
        (None, ("complete", {})),
        ({"a": 1}, ("complete", {"a": 1})),
        (5, ("fail", "INVALID_RESULT", False)),
        ([1], ("fail", "INVALID_RESULT", False)),
        (float("nan"), ("fail", "INVALID_RESULT", False)),
        (object(), ("fail", "INVALID_RESULT", False)),
    ],
    ids=["none", "object", "number", "list", "not a number", "no JSON"],
)
def test_rule_8_anything_but_an_object_is_an_invalid_result(
    server: Server, returned: Any, expected: tuple[Any, ...]
) -> None:
    with serving(server, lambda _: returned):
        result = server.wait_for_result(server.enqueue_task("job", input={}), LIMIT_SECONDS)
    if expected[0] == "complete":
        assert (result.call, result.body["output"]) == expected
    else:
        assert (result.call, result.body["error_code"], result.body["retryable"]) == expected


# 9. Unregister on shutdown, after in-flight tasks finish


def test_rule_9_it_unregisters_after_the_last_result(server: Server) -> None:
    started, release = threading.Event(), threading.Event()

    def handle(input: dict[str, Any]) -> dict[str, Any]:
        started.set()
        release.wait(LIMIT_SECONDS)
        return {}

    with serving(server, handle):
        task = server.enqueue_task("job", input={})
        assert started.wait(LIMIT_SECONDS)
        threading.Timer(0.3, release.set).start()
    server.assert_completed_once(task, {})
    names = [call.name for call in server.calls if call.name in ("complete", "unregister")]
    assert names == ["complete", "unregister"]


def test_rule_9_what_is_unfinished_after_the_grace_period_is_abandoned_and_not_failed(server: Server) -> None:
    started = threading.Event()

    def handle(input: dict[str, Any], ctx: TaskContext) -> dict[str, Any]:
        started.set()
        ctx.cancelled.wait(LIMIT_SECONDS)
        raise RuntimeError("cut off")

    worker = worker_of(server, grace_period=0)
    worker.task("job", version="1.0.0")(handle)
    worker.start()
    server.enqueue_task("job", input={})
    assert started.wait(LIMIT_SECONDS)
    assert not worker.stop()
    assert server.calls_named("fail") == []
    assert len(server.unregistered) == 1


# The outcomes of handlers


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ValueError("x"), {"error_code": "UNHANDLED_EXCEPTION", "error_message": "x", "retryable": True}),
        (SystemExit(3), {"error_code": "UNHANDLED_EXCEPTION", "error_message": "3", "retryable": True}),
        (
            TaskError("CARD_DECLINED", "no money", retryable=False, details={"left": 0}),
            {
                "error_code": "CARD_DECLINED",
                "error_message": "no money",
                "retryable": False,
                "details": {"left": 0},
            },
        ),
        (TaskError("X", details=object()), {"error_code": "X", "error_message": "", "retryable": True}),
    ],
    ids=["exception", "exit", "task error", "details without a JSON form"],
)
def test_what_a_handler_raises_is_what_is_reported(
    server: Server, error: BaseException, expected: dict[str, Any]
) -> None:
    def handle(input: dict[str, Any]) -> dict[str, Any]:
        raise error

    with serving(server, handle):
        result = server.wait_for_result(server.enqueue_task("job", input={}), LIMIT_SECONDS)
    assert {name: result.body[name] for name in expected} == expected


def test_input_that_does_not_fit_and_tasks_never_announced(server: Server) -> None:
    def handle(input: dict[str, int]) -> dict[str, Any]:
        return {}

    with serving(server, handle):
        result = server.wait_for_result(server.enqueue_task("job", input=[1]), LIMIT_SECONDS)
        assert (result.body["error_code"], result.body["retryable"]) == ("INVALID_INPUT", False)
        result = server.wait_for_result(server.enqueue_task("job", input={"a": "b"}), LIMIT_SECONDS)
        assert "expected `int`, got `str` - at `$[...]`" in result.body["error_message"]


def test_one_function_is_a_method_and_a_task_in_one_process(server: Server) -> None:
    def greet(input: dict[str, Any], *, ctx: Context) -> dict[str, Any]:
        ctx.feedback("on it")
        return {"hello": input["name"], "request": bool(ctx.request_id)}

    with MisbehavingServer.kiwi() as kiwi:
        method_worker = Worker(
            middleware_url=kiwi.url,
            service_id="test-service",
            auth_secret="test-secret",
            run_mode="eager",
            wait=1,
            grace_period=1,
        )
        method_worker.method(greet)
        with method_worker, serving(server, greet):
            request = kiwi.enqueue("greet", {"input": {"name": "Ada"}})
            task = server.enqueue_task("job", input={"name": "Ada"})
            server.assert_completed_once(task, {"hello": "Ada", "request": True})
            assert kiwi.wait_for_response(request, LIMIT_SECONDS)["result"] == {
                "hello": "Ada",
                "request": True,
            }


# Polls that end ambiguously, servers that fail


def test_a_poll_that_broke_off_is_followed_by_a_new_session_and_the_lost_task_comes_again(
    server: Server,
) -> None:
    server.fault("poll", PartialBody())
    with serving(server, echo):
        task = server.enqueue_task("job", input={"n": 1})
        server.assert_completed_once(task, {"n": 1})
        server.wait_until(lambda: len(server.unregistered) == 1)
    assert len(server.registrations) == 2


def test_a_server_that_is_not_the_leader_or_refuses_is_left_for_the_next() -> None:
    with MisbehavingServer.orbit() as gone:
        address = gone.url
    with MisbehavingServer.orbit() as follower, MisbehavingServer.orbit() as leader:
        follower.fault("*", Status(503, body=NOT_LEADER), times="always")
        worker = worker_of(leader, server=[address, follower.url, leader.url])
        worker.task("job", version="1.0.0")(echo)
        with worker:
            leader.assert_completed_once(leader.enqueue_task("job", input={"n": 1}), {"n": 1})


# Start and credentials


@pytest.mark.parametrize(
    ("status", "code", "error", "exit_status"),
    [
        (403, "FORBIDDEN", AuthenticationError, 77),
        (401, "UNAUTHENTICATED", AuthenticationError, 77),
        (400, "RESERVED_TASK", RegistrationError, 78),
    ],
)
def test_a_refused_registration_ends_the_start(
    server: Server, status: int, code: str, error: type[Exception], exit_status: int
) -> None:
    body = b'{"error":{"code":"%b","message":"no"}}' % code.encode()
    server.fault("register", Status(status, body=body, content_type="application/json"), times="always")
    with pytest.raises(error) as caught, serving(server, echo):
        pass
    assert caught.value.exit_status == exit_status  # type: ignore[attr-defined]


def test_a_runtime_that_is_not_there_within_the_start_limit() -> None:
    with MisbehavingServer.orbit() as gone:
        address = gone.url
    worker = OrbitWorker(server=address, start_limit=0.3)
    with pytest.raises(UnreachableError):
        worker.start()


def test_a_token_file_is_read_again_when_the_token_is_refused(tmp_path: Path, caplog: Any) -> None:
    file = tmp_path / "token"
    file.write_text("first\n")
    caplog.set_level(logging.DEBUG)
    with MisbehavingServer.orbit(token="first") as server, serving(server, echo, token_file=str(file)):
        server.wait_for_calls("poll", ended=False)
        file.write_text("second\n")
        server.change_token("second")
        server.assert_completed_once(server.enqueue_task("job", input={"n": 1}), {"n": 1})
    assert "first" not in caplog.text
    assert "second" not in caplog.text
