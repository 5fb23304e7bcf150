"""Field reports on handlers: threads that die, handlers that exit, block, hang, or are async in disguise."""

from __future__ import annotations

import asyncio
import functools
import gc
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from programs import running
from worker_tools import eventually

from kiwi_worker import Context, Worker
from kiwi_worker.engine import supervision
from kiwi_worker.errors import DefinitionError
from kiwi_worker.kiwi.feedback import Feedbacks
from kiwi_worker.kiwi.heartbeat import Heartbeat
from kiwi_worker.kiwi.probe.listener import ProbeListener
from kiwi_worker.kiwi.receiving import Draining
from kiwi_worker.kiwi.tokens import TokenManager
from kiwi_worker.orbit import OrbitWorker
from kiwi_worker.testing import KiwiServer, MisbehavingServer, OrbitServer, Status

NewWorker = Callable[..., Worker]

THREADS: list[tuple[type, str]] = [
    (Draining, "receive"),
    (Heartbeat, "beat"),
    (Feedbacks, "_send"),
    (ProbeListener, "_hear"),
]


@pytest.mark.parametrize(("owner", "name"), THREADS)
def test_report_27_a_background_thread_that_raises_once_goes_on(
    server: KiwiServer, new_worker: NewWorker, monkeypatch: pytest.MonkeyPatch, owner: type, name: str
) -> None:
    monkeypatch.setattr(supervision, "PAUSE_SECONDS", 0.01)
    method, raised = getattr(owner, name), []

    def once(*arguments: Any) -> Any:
        if not raised:
            raised.append(True)
            raise RuntimeError("busy")
        return method(*arguments)

    monkeypatch.setattr(owner, name, once)
    worker = new_worker(server, heartbeat_delay=0.05, safety_interval=0.1)
    worker.method("hello")(lambda: "hello")
    with worker:
        worker.feedback("x", "first")
        server.enqueue("hello")
        eventually(lambda: raised)
        server.assert_answered_once(server.enqueue("hello"), "success")
        beats = len(server.heartbeats)
        server.wait_for_calls("heartbeat", beats + 2)
        worker.feedback("x", "second")
        server.wait_until(lambda: any(one["fc"] == "second" for one in server.feedbacks))
        assert server.probe().startswith("ACK:")


def test_report_27_a_refresh_that_raises_leaves_the_worker_working(
    server: KiwiServer, new_worker: NewWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervision, "PAUSE_SECONDS", 0.01)
    fetch, raised = TokenManager._fetched, []

    def once(manager: TokenManager) -> Any:
        if raised == [False]:
            raised.append(True)
            raise RuntimeError("busy")
        return fetch(manager)

    monkeypatch.setattr(TokenManager, "_fetched", once)
    worker = new_worker(server, heartbeat_delay=0.05, safety_interval=0.1)
    worker.method("hello")(lambda: "hello")
    with worker:
        server.wait_for_calls("heartbeat")
        raised.append(False)
        server.expire_tokens()
        eventually(lambda: len(raised) == 2)
        server.assert_answered_once(server.enqueue("hello"), "success")
        assert worker.failure is None


class Abort(BaseException):
    pass


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, GeneratorExit, Abort])
@pytest.mark.parametrize("is_async", [False, True])
def test_report_28_a_handler_that_would_exit_fails_its_own_call(
    server: KiwiServer, new_worker: NewWorker, error: type[BaseException], is_async: bool
) -> None:
    worker = new_worker(server, concurrency=1)

    def leave() -> None:
        raise error

    async def leave_async() -> None:
        raise error

    worker.method("leave")(leave_async if is_async else leave)
    worker.method("hello")(lambda: "hello")
    with worker:
        for _ in range(2):
            left = server.enqueue("leave")
            assert error.__name__ in server.assert_answered_once(left, "failed")["error_text"]
            server.assert_answered_once(server.enqueue("hello"), "success")


def test_report_28_a_signal_still_ends_the_process_afterwards(server: KiwiServer, tmp_path: Path) -> None:
    body = "\n@worker.method\ndef leave() -> None:\n    sys.exit(3)\n"
    with running(body, server, tmp_path, concurrency=1) as program:
        for _ in range(2):
            server.assert_answered_once(server.enqueue("leave"), "failed")
        program.signal()
        assert program.end() == 0


async def greet(name: str = "x") -> str:
    await asyncio.sleep(0)
    return f"hello {name}"


def passed_on(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*arguments: Any, **keywords: Any) -> Any:
        return function(*arguments, **keywords)

    return wrapper


def gives_awaitable(name: str = "x") -> Awaitable[str]:
    return greet(name)


class Service:
    async def __call__(self, name: str = "x") -> str:
        return await greet(name)

    async def bound(self, name: str = "x") -> str:
        return await greet(name)

    @classmethod
    async def of_class(cls, name: str = "x") -> str:
        return await greet(name)

    @staticmethod
    async def static(name: str = "x") -> str:
        return await greet(name)


FORMS: dict[str, Callable[..., Any]] = {
    "async def": greet,
    "partial": functools.partial(greet),
    "object": Service(),
    "wrapped": passed_on(greet),
    "returns an awaitable": gives_awaitable,
    "bound method": Service().bound,
    "class method": Service.of_class,
    "static method": Service.static,
}


@pytest.mark.parametrize("form", FORMS)
def test_report_29_async_in_every_form_is_awaited(
    server: KiwiServer, new_worker: NewWorker, form: str
) -> None:
    worker = new_worker(server)
    worker.method("greet")(FORMS[form])
    with worker:
        answer = server.assert_answered_once(server.enqueue("greet", {"name": "Ada"}), "success")
    assert answer["result"] == "hello Ada"


def test_report_29_generators_are_refused_with_a_reason(server: KiwiServer, new_worker: NewWorker) -> None:
    def numbers() -> Iterator[int]:
        yield 1

    worker = new_worker(server)
    with pytest.raises(DefinitionError, match="generator"):
        worker.method("numbers")(numbers)
    worker.method("hidden")(lambda: numbers())
    with worker:
        text = server.assert_answered_once(server.enqueue("hidden"), "error")["error_text"]
    assert "generator" in text


def test_report_30_a_cancelled_task_ends_alone_and_is_reported_as_cancelled(orbit: OrbitServer) -> None:
    worker = OrbitWorker(server=orbit.url, worker_id="w", poll_wait=1, grace_period=3, concurrency=2)
    release = threading.Event()

    @worker.task("hang", version="1.0.0")
    async def hang(input: dict[str, Any]) -> dict[str, Any]:
        await asyncio.sleep(3600)
        return {}

    @worker.task("steady", version="1.0.0")
    async def steady(input: dict[str, Any]) -> dict[str, Any]:
        while not release.is_set():
            await asyncio.sleep(0.01)
        return {"steady": True}

    with worker:
        hanging, going_on = orbit.enqueue_task("hang"), orbit.enqueue_task("steady")
        orbit.wait_for_token(going_on)
        orbit.cancel(orbit.wait_for_token(hanging))
        eventually(lambda: orbit.results_of(hanging))
        (result,) = orbit.results_of(hanging)
        assert "CANCELLED" in repr(result)
        release.set()
        orbit.assert_completed_once(going_on, {"steady": True})


def test_report_30_a_time_out_is_reported_as_one_and_its_slot_is_accounted_for(
    server: KiwiServer, new_worker: NewWorker
) -> None:
    worker = new_worker(server, async_concurrency=1)
    swallowed = threading.Event()

    @worker.method(time_limit=0.05)
    async def stubborn() -> str:
        for _ in range(2):
            try:
                await asyncio.sleep(0.3)
            except asyncio.CancelledError:
                swallowed.set()
        return "late"

    worker.method("hello")(greet)
    with worker:
        text = server.assert_answered_once(server.enqueue("stubborn"), "failed")["error_text"]
        assert "time" in text.lower()
        assert "cancel" not in text.lower()
        eventually(swallowed.is_set)
        server.assert_answered_once(server.enqueue("hello"), "success")
        assert worker.running() == []


def test_report_32_a_killed_handler_process_fails_its_message_only(
    server: KiwiServer, tmp_path: Path
) -> None:
    body = """
@worker.method(executor="process")
def die() -> None:
    os._exit(9)

@worker.method(executor="process")
def live() -> str:
    return "alive"
"""
    with running(body, server, tmp_path) as program:
        for _ in range(2):
            assert "9" in server.assert_answered_once(server.enqueue("die"), "failed")["error_text"]
            server.assert_answered_once(server.enqueue("live"), "success")
        program.signal()
        assert program.end() == 0


def test_report_34_a_blocked_handler_is_answered_at_its_limit_and_its_lost_slot_shows(
    server: KiwiServer, new_worker: NewWorker
) -> None:
    worker = new_worker(server, concurrency=2)
    release = threading.Event()
    worker.method("block", time_limit=0.1)(lambda: release.wait(30) and None)
    worker.method("hello")(lambda: "hello")
    with worker:
        text = server.assert_answered_once(server.enqueue("block"), "failed")["error_text"]
        assert "time" in text.lower()
        for _ in range(3):
            server.assert_answered_once(server.enqueue("hello"), "success")
        engine = worker._engine
        assert engine is not None
        assert engine.runner.counters.lost_slots == 1
        release.set()
        eventually(lambda: engine.runner.counters.lost_slots == 0)
    assert len([one for one in server.responses if one["status"] == "failed"]) == 1


def test_report_34_a_busy_handler_does_not_hold_up_the_others(
    server: KiwiServer, new_worker: NewWorker
) -> None:
    worker = new_worker(server, concurrency=2)
    release = threading.Event()

    @worker.method
    def spin() -> int:
        turns = 0
        while not release.is_set():
            turns += 1
        return turns

    worker.method("hello")(lambda: "hello")
    with worker:
        spinning = server.enqueue("spin")
        eventually(lambda: worker.running())
        for _ in range(5):
            server.assert_answered_once(server.enqueue("hello"), "success")
        release.set()
        server.assert_answered_once(spinning, "success")


def test_report_35_no_feedback_is_collected_before_it_is_sent(
    server: KiwiServer, new_worker: NewWorker
) -> None:
    worker = new_worker(server)

    @worker.method
    async def talk(ctx: Context) -> int:
        for number in range(100):
            ctx.feedback(f"{ctx.request_id} {number}")
            if number % 10 == 0:
                gc.collect(0)
                await asyncio.sleep(0)
        return 100

    with worker:
        requests = [server.enqueue("talk") for _ in range(20)]
        for request in requests:
            server.assert_answered_once(request, "success")
        gc.collect()
        server.wait_until(lambda: len(server._feedbacks) == 2000, 20)
        feedbacks = worker._binding.feedbacks  # type: ignore[union-attr]
        assert feedbacks.flush(10)
        assert (feedbacks.sent, feedbacks.dropped) == (2000, 0)
    assert len({one["fc"] for one in server.feedbacks}) == 2000


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ("\nimport no_such_module_at_all\n", "no_such_module_at_all"),
        ("\n@worker.on_start\ndef fails() -> None:\n    raise LookupError('no database')\n", "no database"),
    ],
)
def test_report_36_a_start_that_fails_says_why_and_ends(
    server: KiwiServer, tmp_path: Path, body: str, text: str
) -> None:
    with running(body, server, tmp_path) as program:
        status, seconds = program.seconds_to_end()
    assert status != 0
    assert seconds < 5
    assert text in program.errors


@pytest.mark.parametrize("status", [400, 403, 404, 422])
def test_report_36_a_refused_registration_ends_the_process(tmp_path: Path, status: int) -> None:
    with MisbehavingServer.kiwi() as server:
        server.fault("register", Status(status, b'{"error": "unwanted"}'), times="always")
        with running("", server, tmp_path) as program:
            ended, seconds = program.seconds_to_end()
    assert ended == 78
    assert seconds < 5
    assert str(status) in program.errors
