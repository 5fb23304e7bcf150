"""Start hooks, stop hooks and resources; a worker object that lives more than once."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator

import pytest
from worker_tools import actions, eventually, running, worker_environment

from kiwi_worker import Context, Worker
from kiwi_worker.context import Resources
from kiwi_worker.errors import AuthenticationError, DefinitionError, HookError, StartError
from kiwi_worker.testing import HalfOpen, KiwiServer, Stall, Status

NewWorker = Callable[..., Worker]


def test_hooks_run_once_in_order_and_end_in_the_opposite_one(
    server: KiwiServer, new_worker: NewWorker
) -> None:
    worker, steps = new_worker(server, concurrency=4), []

    @worker.on_start
    def first() -> None:
        steps.append(f"first, {len(server.calls)} calls")

    @worker.resource
    def database() -> Iterator[str]:
        steps.append("database opens")
        yield "rows"
        steps.append("database closes")

    @worker.resource
    async def session(resources: Resources) -> AsyncIterator[str]:
        steps.append(f"session opens with {resources.database}")
        yield "session"
        steps.append("session closes")

    @worker.on_start
    async def last(resources: Resources) -> None:
        await asyncio.sleep(0)
        steps.append(f"last sees {sorted(resources)}")

    @worker.on_stop
    async def over(resources: Resources) -> None:
        steps.append(f"over sees {resources.session} of {resources.database}")

    @worker.method
    def read(ctx: Context) -> str:
        return ctx.resources.database + ctx.resources["session"]

    with worker:
        for request_id in [server.enqueue("read") for _ in range(20)]:
            assert server.assert_answered_once(request_id, "success")["result"] == "rowssession"
    assert steps == [
        "first, 0 calls",
        "database opens",
        "session opens with rows",
        "last sees ['database', 'session']",
        "over sees session of rows",
        "session closes",
        "database closes",
    ]


def test_resources_that_are_not_there_are_named(server: KiwiServer, new_worker: NewWorker) -> None:
    worker = new_worker(server)

    @worker.method
    def read(ctx: Context) -> str:
        return str(ctx.resources.database)

    with worker:
        answer = server.assert_answered_once(server.enqueue("read"), "failed")
    assert "database" in answer["error_text"]


@pytest.mark.parametrize("error", [ValueError("no disk"), SystemExit(3)], ids=repr)
@pytest.mark.parametrize("kind", ["plain", "async", "resource", "async resource"])
def test_a_start_hook_that_raises_fails_the_start(
    server: KiwiServer, new_worker: NewWorker, kind: str, error: BaseException
) -> None:
    worker, steps = new_worker(server), []

    @worker.resource
    def database() -> Iterator[None]:
        steps.append("opens")
        yield
        steps.append("closes")

    def plain() -> None:
        raise error

    async def later() -> None:
        raise error

    def resource() -> Iterator[None]:
        raise error
        yield

    async def later_resource() -> AsyncIterator[None]:
        raise error
        yield

    worker.on_stop(lambda: steps.append("stop hook"))
    if "resource" in kind:
        worker.resource(later_resource if "async" in kind else resource)
    else:
        worker.on_start(later if kind == "async" else plain)
    worker.on_start(lambda: steps.append("not reached"))
    with pytest.raises(HookError, match=type(error).__name__) as caught:
        worker.start()
    assert caught.value.exit_status == 1
    assert steps == ["opens", "closes"]
    assert not server.calls
    assert worker.probe_port is None


def test_a_stop_hook_that_raises_costs_no_other(
    server: KiwiServer, new_worker: NewWorker, caplog: pytest.LogCaptureFixture
) -> None:
    worker, steps = new_worker(server), []

    @worker.resource
    def database() -> Iterator[None]:
        yield
        steps.append("database closes")

    for error in (ValueError("one"), SystemExit("two"), KeyboardInterrupt()):

        def broken(error: BaseException = error) -> None:
            raise error

        worker.resource(_ending_with(broken, str(type(error).__name__)))
    worker.method("hello")(lambda: "hello")
    with caplog.at_level(logging.INFO), worker:
        server.assert_answered_once(server.enqueue("hello"), "success")
    assert steps == ["database closes"]
    assert actions(caplog.records).count("stop_hook_raised") == 3


def _ending_with(broken: Callable[[], None], name: str) -> Callable[[], Iterator[None]]:
    def resource() -> Iterator[None]:
        yield
        broken()

    resource.__name__ = name
    return resource


def test_a_resource_has_to_yield(server: KiwiServer, new_worker: NewWorker) -> None:
    worker = new_worker(server)
    with pytest.raises(DefinitionError, match="yield"):
        worker.resource(lambda: None)


def test_stop_hooks_run_after_a_start_that_failed_later(server: KiwiServer, new_worker: NewWorker) -> None:
    worker, steps = new_worker(server, auth_secret="wrong"), []
    worker.on_start(lambda: steps.append("start"))
    worker.on_stop(lambda: steps.append("stop"))
    with pytest.raises(AuthenticationError):
        worker.start()
    assert steps == ["start", "stop"]


def test_a_process_whose_start_hook_raises_exits_at_once(server: KiwiServer) -> None:
    program = """
from kiwi_worker import Worker
worker = Worker()

@worker.on_start
def connect():
    raise ConnectionError("no database")

worker.run()
"""
    since = time.monotonic()
    with running(program, **worker_environment(server)) as process:
        status, output, errors = process.end()
    assert time.monotonic() - since < 5
    assert (status, output) == (1, "")
    assert errors == "kiwi-worker: start hook `connect` raised ConnectionError: no database\n"


# Several lives of one object


@pytest.mark.parametrize("run_mode", ["lazy", "eager"])
def test_a_worker_may_start_again(server: KiwiServer, new_worker: NewWorker, run_mode: str) -> None:
    worker, starts = new_worker(server, run_mode=run_mode, wait=5), []
    worker.on_start(lambda: starts.append(1))

    @worker.method
    def hello() -> str:
        return "hello"

    @worker.method
    async def later(ctx: Context) -> str:
        ctx.feedback("x")
        return "later"

    for life in range(1, 4):
        worker.start()
        for method in ("hello", "later"):
            server.assert_answered_once(server.enqueue(method), "success")
        assert worker.stop()
        assert len(starts) == life
        assert len(server.registrations) == life
        assert len(server.calls_named("shutdown")) == life
    assert len(server.feedbacks) == 3


def test_a_start_that_failed_may_be_tried_again(server: KiwiServer, new_worker: NewWorker) -> None:
    worker = new_worker(server)
    worker.method("hello")(lambda: "hello")
    server.fault("register", Status(403, b'{"error": "no"}'))
    with pytest.raises(StartError):
        worker.start()
    with worker:
        server.assert_answered_once(server.enqueue("hello"), "success")


def test_a_worker_that_runs_cannot_be_started(server: KiwiServer, new_worker: NewWorker) -> None:
    worker = new_worker(server)
    worker.method("hello")(lambda: "hello")
    with worker:
        with pytest.raises(StartError, match="running already"):
            worker.start()
        server.assert_answered_once(server.enqueue("hello"), "success")


def test_stopping_what_does_not_run_is_harmless(server: KiwiServer, new_worker: NewWorker) -> None:
    worker = new_worker(server)
    assert worker.stop()
    assert worker.stop()
    assert worker.running() == []
    worker.feedback("nightly", "dropped")
    assert not server.calls


# A stop while the start is under way


def test_a_start_that_waits_for_the_middleware_gives_up(new_worker: NewWorker) -> None:
    worker, steps = new_worker("http://127.0.0.1:9"), []
    worker.on_start(lambda: steps.append("start"))
    worker.on_stop(lambda: steps.append("stop"))
    thread = threading.Thread(target=worker.start)
    thread.start()
    eventually(lambda: steps)
    assert worker.stop()
    thread.join(20)
    assert not thread.is_alive()
    assert steps == ["start", "stop"]


def test_a_slow_start_hook_is_over_before_its_resources_end(
    server: KiwiServer, new_worker: NewWorker
) -> None:
    worker, steps, opening, go = new_worker(server), [], threading.Event(), threading.Event()

    @worker.resource
    def database() -> Iterator[None]:
        opening.set()
        assert go.wait(20)
        steps.append("opened")
        yield
        steps.append("closed")

    starting = threading.Thread(target=worker.start)
    starting.start()
    assert opening.wait(20)
    stopping = threading.Thread(target=worker.stop)
    stopping.start()
    eventually(lambda: worker._engine is not None and worker._engine._stopping.is_set())
    go.set()
    starting.join(20)
    stopping.join(20)
    assert steps == ["opened", "closed"]
    assert not server.calls, "it does not connect any more"


def test_a_registration_that_comes_through_during_the_stop_is_taken_back(
    server: KiwiServer, new_worker: NewWorker
) -> None:
    worker = new_worker(server)
    worker.method("hello")(lambda: "hello")
    stalled = server.fault("register", Stall(0.5))
    starting = threading.Thread(target=worker.start)
    starting.start()
    eventually(lambda: stalled.struck)
    assert worker.stop()
    starting.join(20)
    assert len(server.registrations) == 1
    assert server.shutdowns == ["worker-1"]
    assert not server.calls_named("drain")
    assert not server.calls_named("heartbeat")


def test_a_registration_that_hangs_holds_the_stop_up_for_the_grace_period_only(
    server: KiwiServer, new_worker: NewWorker
) -> None:
    worker = new_worker(server, grace_period=0.2)
    worker.method("hello")(lambda: "hello")
    hung = server.fault("register", HalfOpen())
    starting = threading.Thread(target=worker.start, daemon=True)
    starting.start()
    eventually(lambda: hung.struck)
    worker.stop()
    assert starting.is_alive()
    server.stop()  # ends the hanging call
    starting.join(20)
    assert not starting.is_alive()
