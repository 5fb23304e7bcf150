"""No background thread dies unseen: it is started again, or the worker ends with an error."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from worker_tools import actions, eventually, running, worker_environment

from kiwi_worker import Context, Worker
from kiwi_worker.engine import supervision
from kiwi_worker.engine.supervision import ThreadFailed
from kiwi_worker.testing import KiwiServer, MisbehavingServer, Status

NewWorker = Callable[..., Worker]


class Defect(Exception):
    """What a thread raises that must not."""


class Rig:
    """A worker whose every background thread can be made to raise."""

    def __init__(self, server: KiwiServer, worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
        self.server = server
        self.worker = worker
        self.raised = 0
        self._patch = monkeypatch
        self._asked = threading.Event()
        worker.method("hello")(lambda: "hello")
        worker.method("nap")(lambda: time.sleep(0.005))
        worker.method("talk")(self._talk)
        worker.method("later")(self._later)
        worker.method("slow", time_limit=0.01)(self._slow)

    @staticmethod
    def _talk(ctx: Context) -> None:
        ctx.feedback("x")

    @staticmethod
    async def _later() -> str:
        await asyncio.sleep(0)
        return "later"

    @staticmethod
    async def _slow() -> None:
        await asyncio.sleep(60)

    def break_thread(self, owner: object, name: str, times: int) -> None:
        """Let a method of this object raise so many times, then do its work again."""
        method = getattr(owner, name)

        def broken(*arguments: Any, **keywords: Any) -> Any:
            if self.raised < times:
                self.raised += 1
                raise Defect(name)
            return method(*arguments, **keywords)

        self._patch.setattr(owner, name, broken)

    def call(self, method: str) -> None:
        """Have it called, whatever becomes of it."""
        self.server.enqueue(method)
        with contextlib.suppress(LookupError):
            self.server.send_probe_bytes(b'{"PacketId": "%d"}' % self.raised)


def _receiver(rig: Rig, times: int) -> None:
    rig.break_thread(rig.worker._binding, "receive", times)
    rig.call("hello")


def _slot(rig: Rig, times: int) -> None:
    rig.break_thread(rig.worker._engine.slots.backlog, "take", times)  # type: ignore[union-attr]
    rig.call("hello")


def _heartbeat(rig: Rig, times: int) -> None:
    rig.break_thread(rig.worker._binding._heartbeat, "beat", times)  # type: ignore[union-attr]


def _probe(rig: Rig, times: int) -> None:
    rig.break_thread(rig.worker._binding._probe._sockets, "turn", times)  # type: ignore[union-attr]
    rig.call("hello")


def _feedback(rig: Rig, times: int) -> None:
    rig.break_thread(rig.worker._binding.feedbacks, "_send", times)  # type: ignore[union-attr]
    rig.call("talk")
    for _ in range(min(times, 20)):
        rig.worker.feedback("x", "y")


def _reporter(rig: Rig, times: int) -> None:
    rig.break_thread(rig.worker._binding, "report", times)
    for _ in range(30):
        rig.server.enqueue("later")


def _timekeeper(rig: Rig, times: int) -> None:
    rig.break_thread(rig.worker._engine.timekeeper, "_next", times)  # type: ignore[union-attr]
    rig.call("slow")


def _loop(rig: Rig, times: int) -> None:
    engine = rig.worker._engine
    assert engine is not None

    def exit_in_a_callback() -> None:
        if rig.raised < times:
            rig.raised += 1
            loop.call_soon(exit_in_a_callback)
            raise SystemExit

    loop = engine.loop._running_loop()
    loop.call_soon_threadsafe(exit_in_a_callback)


THREADS: dict[str, Callable[[Rig, int], None]] = {
    "receiver": _receiver,
    "slot-1": _slot,
    "heartbeat": _heartbeat,
    "probe": _probe,
    "feedback": _feedback,
    "reporter-1": _reporter,
    "timekeeper": _timekeeper,
    "async-loop": _loop,
}


@pytest.fixture
def rig(server: KiwiServer, new_worker: NewWorker, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    monkeypatch.setattr(supervision, "PAUSE_SECONDS", 0.001)
    worker = new_worker(server, heartbeat_delay=0.05, safety_interval=0.05, grace_period=0.1, reporters=1)
    made = Rig(server, worker, monkeypatch)
    with worker:
        server.wait_for_calls("drain")
        yield made
        monkeypatch.undo()


@pytest.mark.parametrize("thread", THREADS)
def test_a_thread_that_raises_is_started_again(
    rig: Rig, thread: str, caplog: pytest.LogCaptureFixture
) -> None:
    server = rig.server
    with caplog.at_level(logging.INFO):
        THREADS[thread](rig, 2)
        eventually(lambda: rig.raised == 2)
        eventually(lambda: actions(caplog.records).count("restart_thread") == 2)
        for method, status in (("hello", "success"), ("later", "success"), ("slow", "failed")):
            server.assert_answered_once(server.enqueue(method), status)
        beats = len(server.calls_named("heartbeat"))
        server.wait_for_calls("heartbeat", beats + 2)
        told = len(server.calls_named("feedback"))
        rig.worker.feedback("x", "y")
        server.wait_for_calls("feedback", told + 1)
        assert server.probe().startswith("ACK:")
    assert rig.worker.failure is None
    assert rig.worker._crew.restarts == 2  # type: ignore[union-attr]
    tasks = {getattr(record, "thread_task", None) for record in caplog.records} - {None}
    assert {task.rstrip("0123456789") for task in tasks} == {thread.rstrip("0123456789")}


@pytest.mark.parametrize("thread", THREADS)
def test_a_thread_that_keeps_raising_ends_the_worker(rig: Rig, thread: str) -> None:
    THREADS[thread](rig, 10**9)
    eventually(lambda: rig.worker.failure is not None)
    failure = rig.worker.failure
    assert isinstance(failure, ThreadFailed)
    assert failure.task.rstrip("0123456789") == thread.rstrip("0123456789")
    assert failure.exit_status == 1
    rig.raised = 10**9


def test_a_worker_process_with_a_broken_thread_exits_with_an_error(server: KiwiServer) -> None:
    program = """
from kiwi_worker import Worker
from kiwi_worker.engine import supervision
from kiwi_worker.kiwi.receiving import Draining
supervision.PAUSE_SECONDS = 0.001
worker = Worker()
worker.method("hello")(lambda: "hello")
def broken(*_):
    raise ZeroDivisionError("a defect")
Draining.receive = broken
worker.run()
"""
    with running(program, **worker_environment(server)) as process:
        status, _, errors = process.end()
    assert status == 1
    lines = [line for line in errors.splitlines() if line.startswith("kiwi-worker: ")]
    assert len(lines) == 1
    assert "receiver" in lines[0]
    assert server.shutdowns == ["worker-1"]


def test_every_thread_has_a_name(server: KiwiServer, new_worker: NewWorker) -> None:
    before = set(threading.enumerate())
    worker = new_worker(server)
    worker.method("hello")(lambda: "hello")
    with worker:
        server.assert_answered_once(server.enqueue("hello"), "success")
        names = [thread.name for thread in set(threading.enumerate()) - before]
    ours = [name for name in names if not name.startswith("misbehaving-server")]
    assert ours
    assert all(name.startswith("worker-1-") for name in ours), ours


def test_a_message_that_breaks_the_engine_is_answered(
    server: KiwiServer, new_worker: NewWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = new_worker(server)
    worker.method("hello")(lambda: "hello")
    with worker:
        engine = worker._engine
        assert engine is not None
        call, raised = engine.runner._call, []

        def broken(*arguments: Any) -> Any:
            if not raised:
                raised.append(True)
                raise Defect("inside")
            return call(*arguments)

        monkeypatch.setattr(engine.runner, "_call", broken)
        server.assert_answered_once(server.enqueue("hello"), "failed")
        server.assert_answered_once(server.enqueue("hello"), "success")


def test_tasks_of_a_handler_that_raise_system_exit_end_nothing(
    server: KiwiServer, new_worker: NewWorker
) -> None:
    worker, release = new_worker(server), asyncio.Event()

    async def exit_now() -> None:
        raise SystemExit(3)

    @worker.method
    async def careless() -> str:
        task = asyncio.create_task(exit_now())
        await asyncio.sleep(0.01)
        return str(task.done())

    @worker.method
    async def wait() -> str:
        await release.wait()
        return "waited"

    @worker.method
    async def let_go() -> None:
        release.set()

    with worker:
        waiting = server.enqueue("wait")
        eventually(lambda: worker.running())
        server.assert_answered_once(server.enqueue("careless"), "success")
        server.assert_answered_once(server.enqueue("let_go"), "success")
        server.assert_answered_once(waiting, "success")


def test_several_workers_in_one_process_share_nothing(server: KiwiServer, new_worker: NewWorker) -> None:
    with MisbehavingServer.kiwi(service_id="other", auth_secret="other-secret") as other:
        workers = [
            new_worker(server),
            new_worker(server, run_mode="eager", wait=5),
            new_worker(other, service_id="other", auth_secret="other-secret"),
        ]
        for number, worker in enumerate(workers):
            worker.method("who")(lambda number=number: number)
        with workers[0], workers[1], workers[2]:
            server.wait_for_registration(2)
            for number in (0, 1):
                request_id = server.enqueue("who", worker_id=f"worker-{number + 1}")
                assert server.assert_answered_once(request_id, "success")["result"] == number
            assert other.assert_answered_once(other.enqueue("who"), "success")["result"] == 2
            workers[0].stop()
            request_id = server.enqueue("who", worker_id="worker-2")
            assert server.assert_answered_once(request_id, "success")["result"] == 1
        other.assert_protocol_kept()


def test_a_token_refused_for_good_does_not_end_a_running_worker(
    server: KiwiServer, new_worker: NewWorker
) -> None:
    worker = new_worker(server, heartbeat_delay=0.05)
    worker.method("hello")(lambda: "hello")
    with worker:
        server.wait_for_calls("drain")
        refusing = server.fault("token", Status(401), times="always")
        server.expire_tokens()
        eventually(lambda: refusing.struck)
        request_id = server.enqueue("hello")
        refusing.disarm()
        server.assert_answered_once(request_id, "success", timeout=15)
        assert worker.failure is None


def _allow_slots(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the system have threads for so many slots and no more."""
    start = threading.Thread.start

    def start_or_fail(thread: threading.Thread) -> None:
        _, is_slot, number = thread.name.rpartition("-slot-")
        if is_slot and int(number) > most:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_or_fail)


def test_a_worker_goes_on_with_the_slots_the_system_gives(
    server: KiwiServer,
    new_worker: NewWorker,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    _allow_slots(2, monkeypatch)
    worker = new_worker(server, run_mode="eager", concurrency=6)
    worker.method("nap")(lambda: time.sleep(0.01))
    ids = [server.enqueue("nap") for _ in range(20)]
    with worker:
        for request_id in ids:
            server.assert_answered_once(request_id, "success")
        assert worker.stop()
    assert actions(caplog.records).count("slots_missing") == 1
    assert "slot 3 of 6 cannot be started (can't start new thread): going on without" in caplog.text


def test_a_worker_without_a_single_slot_ends_with_an_error(
    server: KiwiServer, new_worker: NewWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    _allow_slots(0, monkeypatch)
    worker = new_worker(server, run_mode="eager", grace_period=0.1)
    worker.method("nap")(lambda: None)
    with worker:
        request_id = server.enqueue("nap")
        eventually(lambda: worker.failure is not None)
    assert "no thread can be started to handle messages" in str(worker.failure)
    assert (
        server.assert_answered_once(request_id, "error")["error_text"]
        == "the worker stopped before it was run"
    )
