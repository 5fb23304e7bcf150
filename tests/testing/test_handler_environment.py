"""Handlers called with a context and no server answer what a worker would answer."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from kiwi_worker import Context, MethodError, MethodFailed, Registry, Worker
from kiwi_worker.errors import HookError
from kiwi_worker.orbit import OrbitWorker, TaskContext, TaskError, TaskRegistry
from kiwi_worker.testing import HandlerEnvironment, KiwiServer


def a_worker(**settings: Any) -> Worker:
    worker = Worker(**settings)

    @worker.method
    def hello(name: str, *, ctx: Context) -> str:
        ctx.feedback({"to": name}, type=7, persist=True)
        ctx.feedback("plain")
        return f"{ctx.settings['greeting']} {name}"

    @worker.method
    async def later(seconds: float) -> str:
        await asyncio.sleep(seconds)
        return "later"

    @worker.method
    def fails(how: str) -> Any:
        errors: dict[str, Callable[[], Any]] = {
            "raised": lambda: 1 / 0,
            "failed": lambda: _raise(MethodFailed("no")),
            "error": lambda: _raise(MethodError("wrong")),
            "exit": lambda: sys.exit(3),
            "unencodable": lambda: float("nan"),
        }
        return errors[how]()

    return worker


def _raise(error: Exception) -> Any:
    raise error


CALLS = [
    ("hello", {"name": "Ada"}),
    ("hello", ["Ada"]),
    ("hello", {"name": 5}),
    ("hello", {}),
    ("hello", {"name": "Ada", "more": 1}),
    ("hello", "nonsense"),
    ("unknown", None),
    ("later", {"seconds": 0}),
    *(("fails", {"how": how}) for how in ("raised", "failed", "error", "exit", "unencodable")),
]


@pytest.mark.parametrize("expose_errors", [True, False])
def test_answers_are_those_of_a_running_worker(
    kiwi: KiwiServer, running_worker: Callable[..., Worker], expose_errors: bool
) -> None:
    kiwi.settings = {"greeting": "hello"}
    running_worker(a_worker(), kiwi, expose_errors=expose_errors)
    worker = a_worker(expose_errors=expose_errors)
    with HandlerEnvironment(worker, settings={"greeting": "hello"}) as environment:
        for number, (method, params) in enumerate(CALLS):
            request_id = kiwi.enqueue(method, params, request_id=f"request-{number}")
            expected = kiwi.wait_for_response(request_id)
            assert environment.call(method, params, request_id=request_id).body == expected


def test_feedback_is_recorded() -> None:
    with HandlerEnvironment(a_worker(feedback_type=4), settings={"greeting": "hi"}) as environment:
        answer = environment.call("hello", {"name": "Ada"}).assert_success("hi Ada")
    assert [(one.content, one.type, one.persist) for one in answer.feedback] == [
        ({"to": "Ada"}, 7, True),
        ("plain", 4, False),
    ]


def test_plain_handlers_run_on_the_thread_of_the_test() -> None:
    registry = Registry()
    registry.method("thread")(lambda: threading.current_thread().name)
    with HandlerEnvironment(registry) as environment:
        environment.call("thread").assert_success(threading.current_thread().name)


def test_a_handler_for_a_process_runs_here() -> None:
    registry, seen = Registry(), []

    @registry.method(executor="process")
    def note() -> None:
        seen.append(1)

    with HandlerEnvironment(registry) as environment:
        environment.call(note).assert_success(None)
    assert seen == [1]


def test_cancelled_before_and_while_it_runs() -> None:
    worker, at_work = a_worker(), threading.Event()

    @worker.method
    def waits(*, ctx: Context) -> str:
        ctx.feedback("at work")
        at_work.set()
        ctx.cancelled.wait()
        return f"cancelled {ctx.is_cancelled}"

    with HandlerEnvironment(worker) as environment:
        environment.call(waits, cancelled=True).assert_success("cancelled True")
        at_work.clear()
        call = environment.start(waits)
        assert at_work.wait(10)
        assert (call.done, call.feedback[0].content) == (False, "at work")
        call.cancel()
        call.wait().assert_success("cancelled True")
        call = environment.start("later", [60])
        call.cancel()
        call.wait().assert_failed("cancelled")


def test_time_limits_and_what_a_handler_sees_of_them() -> None:
    registry = Registry()

    @registry.method
    def sees(*, ctx: Context) -> bool:
        left = ctx.remaining_seconds()
        return left is not None and 0 < left <= 30

    @registry.method
    def slow(*, ctx: Context) -> None:
        ctx.cancelled.wait()

    @registry.method
    async def forever() -> None:
        await asyncio.Event().wait()

    with HandlerEnvironment(registry) as environment:
        environment.call(sees, time_limit=30).assert_success(True)
        environment.call(sees).assert_success(False)
        environment.call(slow, time_limit=0.05).assert_failed("time limit of 0.05 s")
        environment.call(forever, time_limit=0.05).assert_failed("TimeLimit")
        with pytest.raises(TimeoutError, match=r"not answered for within 0.05 s"):
            environment.call(forever, timeout=0.05)


def test_a_worker_that_stops() -> None:
    registry = Registry()
    registry.method("stopping")(_is_stopping)
    with HandlerEnvironment(registry) as environment:
        environment.call("stopping").assert_success(False)
        environment.stop_worker()
        environment.call("stopping").assert_success(True)


def _is_stopping(*, ctx: Context) -> bool:
    return ctx.is_stopping


def test_hooks_and_handler_middleware_run_as_in_a_worker() -> None:
    worker, seen = Worker(), []

    @worker.resource
    def database() -> Iterator[str]:
        seen.append("open")
        yield "real"
        seen.append("closed")

    @worker.around
    @contextmanager
    def noting(ctx: Context) -> Iterator[None]:
        seen.append(ctx.method)
        yield

    @worker.method
    def which(*, ctx: Context) -> str:
        return str(ctx.resources.database)

    with HandlerEnvironment(worker) as environment:
        environment.call(which).assert_success("real")
    assert seen == ["open", "which", "closed"]
    with HandlerEnvironment(worker, resources={"database": "fake"}) as environment:
        environment.call(which).assert_success("fake")
    assert seen == ["open", "which", "closed", "which"]


def test_a_start_hook_that_raises_is_seen() -> None:
    worker = a_worker()
    worker.on_start(lambda: _raise(ValueError("no database")))
    environment = HandlerEnvironment(worker)
    with pytest.raises(HookError, match="no database"):
        environment.open()
    environment.close()


def test_limits_of_a_method_hold() -> None:
    registry, inside, go = Registry(), [], threading.Event()

    @registry.method(concurrency=1)
    def one_at_a_time() -> int:
        inside.append(1)
        go.wait()
        return inside.count(1)

    with HandlerEnvironment(registry) as environment:
        calls = [environment.start(one_at_a_time) for _ in range(3)]
        go.set()
        assert sorted(call.wait().result for call in calls) == [1, 2, 3]


def test_assertions_tell_what_was_answered_instead() -> None:
    with HandlerEnvironment(a_worker()) as environment:
        answer = environment.call("fails", {"how": "failed"})
        with pytest.raises(AssertionError, match=r"^failed: no$"):
            answer.assert_success()
        with pytest.raises(AssertionError, match="the status is failed, not error: no"):
            answer.assert_error()
        with pytest.raises(AssertionError, match="'yes' is not in 'no'"):
            answer.assert_failed("yes")
        with pytest.raises(AssertionError, match="the result is 'later', not 'now'"):
            environment.call("later", [0]).assert_success("now")


def test_misuse_is_told() -> None:
    environment = HandlerEnvironment(a_worker())
    with pytest.raises(LookupError, match="is no handler of"):
        environment.call(print)
    environment.call("later", [0], request_id="1")
    with pytest.raises(ValueError, match="'1' was used already"):
        environment.call("later", [0], request_id="1")
    environment.close()
    environment.close()
    with pytest.raises(RuntimeError, match="was closed"):
        environment.call("later", [0])


def test_nothing_is_left_behind() -> None:
    before = set(threading.enumerate())
    with HandlerEnvironment(a_worker()) as environment:
        environment.start("later", [60])
        environment.call("later", [0], time_limit=10)
    assert set(threading.enumerate()) <= before


# Tasks


def tasks() -> TaskRegistry:
    registry = TaskRegistry()

    @registry.task("charge", version="1.0.0")
    def charge(given: dict[str, int], ctx: TaskContext) -> dict[str, Any]:
        if given.get("amount", 0) > 100:
            raise TaskError("DECLINED", "too much", retryable=False, details={"limit": 100})
        return {"attempt": ctx.attempt, "redelivery": ctx.redelivery, "execution": ctx.execution_id}

    @registry.task("charge", version="2.0.0")
    async def charge_later(given: dict[str, int]) -> None:
        await asyncio.sleep(0)

    return registry


def test_tasks_are_called_with_their_delivery() -> None:
    with HandlerEnvironment(tasks()) as environment:
        answer = environment.call(
            "charge", {"amount": 1}, version="1.0.0", attempt=2, redelivery=True, execution_id="e"
        )
        answer.assert_success({"attempt": 2, "redelivery": True, "execution": "e"})
        environment.call("charge", {}, version="2.0.0").assert_success({})
        answer = environment.call("charge", {"amount": 200})
        answer.assert_failed("too much", code="DECLINED", retryable=False)
        assert answer.body["details"] == {"limit": 100}
        environment.call("charge", [1]).assert_failed(code="INVALID_INPUT", retryable=False)
        environment.call("refund", {}).assert_failed("serves no refund", code="UNKNOWN_TASK", retryable=True)


def test_a_cancelled_task_and_one_that_the_end_cuts_off() -> None:
    worker = OrbitWorker()

    @worker.task("wait", version="1")
    async def wait(given: dict[str, Any]) -> None:
        await asyncio.Event().wait()

    environment = HandlerEnvironment(worker)
    call = environment.start(wait)
    call.cancel()
    call.wait().assert_failed(code="CANCELLED", retryable=False)
    call = environment.start(wait)
    environment.close()
    assert call.wait().status == "abandoned"
