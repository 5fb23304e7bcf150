"""The ordered shutdown: what is told, what is finished, what is cut off, and what is left alone."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import signal
import threading
import time
from collections.abc import Callable

import pytest
from worker_tools import actions, eventually, running, worker_environment

from kiwi_worker import Context, Worker
from kiwi_worker.testing import DropBefore, HalfOpen, KiwiServer, Stall, Status, TooManyRequests

NewWorker = Callable[..., Worker]


def stop_aside(worker: Worker) -> tuple[threading.Thread, list[bool]]:
    """Stop it on another thread; the list holds whether that was clean, once it is over."""
    clean: list[bool] = []
    thread = threading.Thread(target=lambda: clean.append(worker.stop()))
    thread.start()
    return thread, clean


def test_every_step_in_its_order(server: KiwiServer, new_worker: NewWorker) -> None:
    worker = new_worker(server, heartbeat_delay=0.05)
    seen: list[str] = []
    release = threading.Event()

    @worker.on_stop
    def last() -> None:
        seen.append("stop hook")
        seen.append(f"{len(server.calls_named('respond'))} answers")

    @worker.method
    def long(ctx: Context) -> str:
        eventually(lambda: ctx.is_stopping)
        seen.append("told")
        assert release.wait(20)
        ctx.feedback("nearly")
        return "finished"

    worker.start()
    request_id = server.enqueue("long")
    eventually(lambda: worker.running())
    thread, clean = stop_aside(worker)
    server.wait_for_calls("shutdown")
    beats = len(server.calls_named("heartbeat"))
    server.wait_for_calls("heartbeat", beats + 2)
    eventually(lambda: seen == ["told"])
    assert worker.running()[0].key == request_id, "what runs is still shown"
    release.set()
    thread.join(20)
    assert clean == [True]
    assert server.assert_answered_once(request_id, "success")["result"] == "finished"
    assert seen == ["told", "stop hook", "1 answers"]
    assert [feedback["fc"] for feedback in server.feedbacks] == ["nearly"]
    names = [call.name for call in server.calls]
    assert names.index("shutdown") < names.index("respond")
    drains = [call.number for call in server.calls_named("drain")]
    assert max(drains) < server.calls_named("shutdown")[0].number, "nothing is drained any more"
    calls = len(server.calls)
    assert worker.stop(), "stopping once more does nothing"
    assert len(server.calls) == calls


def test_the_last_heartbeat_comes_after_the_last_answer(server: KiwiServer, new_worker: NewWorker) -> None:
    worker = new_worker(server, heartbeat_delay=0.02, report_limit=0.05)
    worker.method("hello")(lambda: "hello")
    server.fault("respond", Status(503), times=4)
    with worker:
        request_id = server.enqueue("hello")
        server.wait_for_calls("respond")
        worker.stop()
    server.assert_answered_once(request_id, "success")
    shutdown = server.calls_named("shutdown")[0].number
    last_answer = server.calls_named("respond")[-1].number
    beats = [call.number for call in server.calls_named("heartbeat") if shutdown < call.number < last_answer]
    assert beats, "it beats while the last answer is on its way"


@pytest.mark.parametrize("fault", [DropBefore(), Status(500)], ids=repr)
def test_a_notice_that_fails_holds_nothing_up(
    server: KiwiServer, new_worker: NewWorker, fault: object
) -> None:
    server.fault("shutdown", fault, times="always")  # type: ignore[arg-type]
    worker = new_worker(server)
    worker.method("hello")(lambda: "hello")
    with worker:
        request_id = server.enqueue("hello")
        server.assert_answered_once(request_id, "success")
        since = time.monotonic()
        assert worker.stop()
    assert time.monotonic() - since < 10


def test_an_open_wait_is_read_on_and_what_it_brings_is_answered(
    server: KiwiServer, new_worker: NewWorker
) -> None:
    server.fault("shutdown", HalfOpen())
    worker = new_worker(server, run_mode="eager", wait=30)
    worker.method("hello")(lambda: "hello")
    with worker:
        server.wait_for_calls("drain", ended=False)
        thread, clean = stop_aside(worker)
        server.wait_for_calls("shutdown", ended=False)
        late = server.enqueue("hello")
        server.assert_answered_once(late, "success")
        thread.join(20)
    assert clean == [True]
    assert len(server.calls_named("drain")) == 1


def test_an_open_wait_that_brings_nothing_is_ended(server: KiwiServer, new_worker: NewWorker) -> None:
    server.fault("shutdown", Status(200, b"true"))  # the middleware does not end the wait
    worker = new_worker(server, run_mode="eager", wait=60, grace_period=20)
    worker.method("hello")(lambda: "hello")
    with worker:
        server.wait_for_calls("drain", ended=False)
        since = time.monotonic()
        assert worker.stop()
    assert time.monotonic() - since < 15
    assert server.calls_named("drain")[0].outcome in ("gone", "pending")


def test_what_was_received_is_run_during_the_grace_period(server: KiwiServer, new_worker: NewWorker) -> None:
    worker = new_worker(server, concurrency=1)
    release = threading.Event()

    @worker.method
    def step(number: int) -> int:
        assert release.wait(20)
        return number

    ids = [server.enqueue("step", [number]) for number in range(5)]
    with worker:
        eventually(lambda: worker.running() and not server.queue_size())
        thread, clean = stop_aside(worker)
        server.wait_for_calls("shutdown")
        release.set()
        thread.join(20)
    assert clean == [True]
    for number, request_id in enumerate(ids):
        assert server.assert_answered_once(request_id, "success")["result"] == number


def test_what_is_locked_but_not_claimed_is_left_silently(server: KiwiServer, new_worker: NewWorker) -> None:
    worker = new_worker(server, concurrency=1)
    release = threading.Event()

    @worker.method
    def step() -> None:
        assert release.wait(20)

    with worker:
        first = server.enqueue("step", lock_required=True)
        eventually(lambda: worker.running())
        others = [server.enqueue("step", lock_required=True) for _ in range(3)]
        server.wait_for_calls("drain", where=lambda call: call.acted)
        eventually(lambda: worker._engine.waiting)  # type: ignore[union-attr]
        thread, clean = stop_aside(worker)
        server.wait_for_calls("shutdown")
        release.set()
        thread.join(20)
    assert clean == [True]
    server.assert_answered_once(first, "success")
    assert server.locks == {first: "worker-1"}
    assert not {response["request_id"] for response in server.responses} & set(others)


def test_at_the_end_of_the_grace_period_everything_held_is_answered(
    server: KiwiServer, new_worker: NewWorker, caplog: pytest.LogCaptureFixture
) -> None:
    worker = new_worker(server, concurrency=2, grace_period=0.2)
    release, cancelled = threading.Event(), []

    @worker.method
    def stubborn() -> None:
        assert release.wait(20)

    @worker.method
    def obedient(ctx: Context) -> str:
        assert ctx.cancelled.wait(20)
        cancelled.append("plain")
        return "obeyed"

    @worker.method
    async def later() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.append("async")
            raise

    @worker.method
    async def swallowing() -> None:
        for _ in range(20):
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                continue

    with caplog.at_level(logging.INFO), worker:
        soon = [server.enqueue("later"), server.enqueue("swallowing")]
        eventually(lambda: len(worker.running()) == 2)
        running_now = [server.enqueue("stubborn", lock_required=True), server.enqueue("obedient")]
        eventually(lambda: len(worker.running()) == 4)
        server.probes = False
        drained = [server.enqueue("stubborn"), server.enqueue("stubborn")]
        unclaimed = server.enqueue("stubborn", lock_required=True)
        server.probe()
        eventually(lambda: worker._engine.waiting == 3)  # type: ignore[union-attr]
        assert not worker.stop()
        release.set()
    for request_id in [*soon, running_now[0]]:
        answer = server.assert_answered_once(request_id, "failed")
        assert answer["error_text"] in ("the worker stopped while it ran", "cut off at shutdown")
    assert server.assert_answered_once(running_now[1], "success")["result"] == "obeyed"
    for request_id in drained:
        answer = server.assert_answered_once(request_id, "error")
        assert answer["error_text"] == "the worker stopped before it was run"
    assert unclaimed not in [response["request_id"] for response in server.responses]
    assert sorted(cancelled) == ["async", "plain"]
    assert not server.refused_responses


def test_a_handler_that_outlives_its_loop_is_thrown_away_without_a_word(
    server: KiwiServer, new_worker: NewWorker, caplog: pytest.LogCaptureFixture
) -> None:
    # The interpreter throws it away whenever it likes, in the middle of anything: nothing may be done then.
    worker = new_worker(server, grace_period=0)
    closed: list[str] = []

    @worker.method
    async def swallowing() -> None:
        try:
            while True:
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.sleep(60)
        finally:
            closed.append("thrown away")

    with worker:
        request_id = server.enqueue("swallowing")
        eventually(lambda: worker.running())
        assert not worker.stop()
    server.assert_answered_once(request_id, "failed")
    caplog.clear()
    worker._engine = None  # type: ignore[assignment]  # what a program does that lets go of its worker

    def is_thrown_away() -> bool:
        gc.collect()
        return closed == ["thrown away"]

    eventually(is_thrown_away)
    assert [record.name for record in caplog.records if record.name.startswith("kiwi_worker")] == []


def test_without_a_grace_period_handlers_are_cancelled_at_once(
    server: KiwiServer, new_worker: NewWorker
) -> None:
    worker = new_worker(server, grace_period=0)

    @worker.method
    def wait(ctx: Context) -> str:
        return str(ctx.cancelled.wait(20))

    with worker:
        request_id = server.enqueue("wait")
        eventually(lambda: worker.running())
        assert not worker.stop()
    assert server.assert_answered_once(request_id, "success")["result"] == "True"


def test_an_idle_worker_without_a_grace_period_stops_clean(server: KiwiServer, new_worker: NewWorker) -> None:
    worker = new_worker(server, grace_period=0, run_mode="eager", wait=30)
    worker.method("hello")(lambda: "hello")
    with worker:
        server.assert_answered_once(server.enqueue("hello"), "success")
        server.wait_for_calls("drain", 2, ended=False)
        assert worker.stop()
    assert server.shutdowns == ["worker-1"]


# What only the slots knew


def test_an_answer_a_slot_is_sending_is_waited_for(server: KiwiServer, new_worker: NewWorker) -> None:
    worker = new_worker(server)
    worker.method("hello")(lambda: "hello")
    stalled = server.fault("respond", Stall(0.5))
    with worker:
        request_id = server.enqueue("hello")
        eventually(lambda: stalled.struck)
        assert worker.stop()
    server.assert_answered_once(request_id, "success")
    assert len(server.calls_named("respond")) == 1


def test_an_answer_a_slot_cannot_send_in_time_is_named(
    server: KiwiServer, new_worker: NewWorker, caplog: pytest.LogCaptureFixture
) -> None:
    worker = new_worker(server, grace_period=0.1)
    worker.method("hello")(lambda: "hello")
    hung = server.fault("respond", HalfOpen(), times="always")
    with caplog.at_level(logging.INFO), worker:
        request_id = server.enqueue("hello")
        eventually(lambda: hung.struck)
        assert not worker.stop()
    [record] = [record for record in caplog.records if getattr(record, "action", "") == "answers_undelivered"]
    assert record.request_ids == [request_id]  # type: ignore[attr-defined]


@pytest.mark.parametrize("wins", [True, False])
def test_a_lock_that_is_being_asked_for_is_waited_for(
    server: KiwiServer, new_worker: NewWorker, wins: bool
) -> None:
    worker, ran = new_worker(server), []

    @worker.method
    def note(ctx: Context) -> None:
        ran.append(ctx.request_id)

    stalled = server.fault("lock", Stall(0.3))
    if not wins:
        server.refuse_locks()
    with worker:
        request_id = server.enqueue("note", lock_required=True)
        eventually(lambda: stalled.struck)
        assert worker.stop()
    if wins:
        server.assert_answered_once(request_id, "success")
    assert ran == ([request_id] if wins else [])


def test_a_lock_won_after_the_grace_period_is_answered_and_not_run(
    server: KiwiServer, new_worker: NewWorker
) -> None:
    worker, ran = new_worker(server, grace_period=0.05), []

    @worker.method
    def note(ctx: Context) -> None:
        ran.append(ctx.request_id)

    stalled = server.fault("lock", Stall(0.6))
    with worker:
        request_id = server.enqueue("note", lock_required=True)
        eventually(lambda: stalled.struck)
        assert not worker.stop()
    answer = server.assert_answered_once(request_id, "error")
    assert answer["error_text"] == "the worker stopped before it was run"
    assert ran == []


def test_answers_that_wait_their_turn_are_tried_at_the_end(server: KiwiServer, new_worker: NewWorker) -> None:
    worker = new_worker(server)
    worker.method("hello")(lambda: "hello")
    server.fault("respond", TooManyRequests(200), times=3)
    with worker:
        ids = [server.enqueue("hello") for _ in range(3)]
        server.wait_for_calls("respond", 3)
        assert worker.stop()
    for request_id in ids:
        server.assert_answered_once(request_id, "success")


def test_answers_that_cannot_be_delivered_make_it_unclean(
    server: KiwiServer, new_worker: NewWorker, caplog: pytest.LogCaptureFixture
) -> None:
    worker = new_worker(server, grace_period=0.2)
    worker.method("hello")(lambda: "hello")
    server.fault("respond", Status(503), times="always")
    with caplog.at_level(logging.INFO), worker:
        ids = [server.enqueue("hello") for _ in range(12)]
        server.wait_for_calls("respond", 12)
        assert not worker.stop()
    [record] = [record for record in caplog.records if getattr(record, "action", "") == "answers_undelivered"]
    assert record.getMessage().startswith("12 answers could not be delivered")
    assert set(record.request_ids) <= set(ids)  # type: ignore[attr-defined]


def test_a_receiver_that_waits_for_room_ends_at_once(server: KiwiServer, new_worker: NewWorker) -> None:
    worker = new_worker(server, run_mode="eager", wait=30, concurrency=1)
    release = threading.Event()
    worker.method("block")(lambda: release.wait(20))
    with worker:
        ids = [server.enqueue("block") for _ in range(3)]
        eventually(lambda: worker.running() and worker._engine.waiting)  # type: ignore[union-attr]
        receiver = worker._engine._receiver  # type: ignore[union-attr]
        assert receiver is not None
        thread, clean = stop_aside(worker)
        server.wait_for_calls("shutdown")
        eventually(lambda: not receiver.is_alive())
        assert worker.running()
        release.set()
        thread.join(20)
    assert clean == [True]
    assert [response["status"] for response in server.responses] == ["success"] * len(
        [request_id for request_id in ids if request_id in {one["request_id"] for one in server.responses}]
    )


def test_a_second_stop_waits_for_the_first(server: KiwiServer, new_worker: NewWorker) -> None:
    worker = new_worker(server)
    release = threading.Event()
    worker.method("block")(lambda: release.wait(20))
    with worker:
        server.enqueue("block")
        eventually(lambda: worker.running())
        stops = [stop_aside(worker) for _ in range(3)]
        server.wait_for_calls("shutdown")
        assert all(thread.is_alive() for thread, _ in stops)
        release.set()
        for thread, clean in stops:
            thread.join(20)
            assert clean == [True]
    assert len(server.calls_named("shutdown")) == 1


def test_a_handler_may_stop_its_worker(server: KiwiServer, new_worker: NewWorker) -> None:
    worker = new_worker(server, grace_period=0.2)
    worker.method("stop")(lambda: worker.stop())
    with worker:
        server.enqueue("stop")
        eventually(lambda: worker._engine is None)
    assert server.shutdowns == ["worker-1"]


# As a process

PROGRAM = """
import sys, time
from kiwi_worker import Worker
worker = Worker()

@worker.method
def block():
    time.sleep(60)

worker.run()
"""


def test_a_process_that_leaves_work_exits_with_1(server: KiwiServer) -> None:
    environment = worker_environment(server, grace_period=0.2)
    with running(PROGRAM, **environment) as process:
        server.wait_for_registration()
        request_id = server.enqueue("block")
        server.wait_for_calls("drain", where=lambda call: call.acted)
        server.wait_until(lambda: not server.queue_size())
        process.signal()
        status, _, _ = process.end()
        answer = server.wait_for_response(request_id)
    assert status == 1
    assert answer["status"] in ("failed", "error")


def test_a_second_signal_ends_it_now(server: KiwiServer) -> None:
    with running(PROGRAM, **worker_environment(server, grace_period=30)) as process:
        server.wait_for_registration()
        server.enqueue("block")
        server.wait_until(lambda: not server.queue_size())
        process.signal(signal.SIGTERM)
        server.wait_for_calls("shutdown")
        process.signal(signal.SIGTERM)
        status, _, _ = process.end()
    assert status == 128 + signal.SIGTERM


def test_a_process_that_waits_for_its_middleware_ends_by_a_signal() -> None:
    environment = worker_environment("http://127.0.0.1:9")
    with running(PROGRAM + "print('over', flush=True)", **environment) as process:
        eventually(lambda: _listens_for_signals(process.popen.pid))
        process.signal()
        status, output, errors = process.end()
    assert (status, output) == (0, "over\n")
    # The first try may have failed before the signal came, which is warned about.
    assert all("http://127.0.0.1:9 was not sent" in line for line in errors.splitlines())


def _listens_for_signals(pid: int) -> bool:
    with open(f"/proc/{pid}/status") as lines:
        caught = next(line.split()[1] for line in lines if line.startswith("SigCgt"))
    return bool(int(caught, 16) >> (signal.SIGTERM - 1) & 1)


def test_restored_signal_handlers(server: KiwiServer) -> None:
    program = """
import os, signal, threading
from kiwi_worker import Worker
def mine(number, frame): print("mine", flush=True)
signal.signal(signal.SIGTERM, mine)
worker = Worker()
worker.on_start(lambda: os.kill(os.getpid(), signal.SIGTERM))
worker.run()
print(signal.getsignal(signal.SIGTERM) is mine, signal.getsignal(signal.SIGINT) is signal.default_int_handler)
"""
    with running(program, **worker_environment(server)) as process:
        status, output, errors = process.end()
    assert (status, output, errors) == (0, "mine\nTrue True\n", "")


def test_actions_of_a_clean_shutdown_hold_no_warning(
    server: KiwiServer, new_worker: NewWorker, caplog: pytest.LogCaptureFixture
) -> None:
    for run_mode in ("lazy", "eager"):
        worker = new_worker(server, run_mode=run_mode, wait=20)
        worker.method("hello")(lambda: "hello")
        with caplog.at_level(logging.DEBUG, logger="kiwi_worker"), worker:
            server.assert_answered_once(server.enqueue("hello"), "success")
    loud = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert loud == []
    assert "registered" in actions(caplog.records)
