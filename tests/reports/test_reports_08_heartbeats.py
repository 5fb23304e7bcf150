"""Field reports on heartbeats: handlers that starve them, drains that end them, servers that forget."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from programs import running
from worker_tools import eventually

from kiwi_worker import Worker
from kiwi_worker.orbit import OrbitWorker
from kiwi_worker.testing import KiwiServer, OrbitServer, Status

NewWorker = Callable[..., Worker]


def test_report_45_a_handler_that_blocks_the_loop_does_not_hold_up_heartbeats(
    server: KiwiServer, new_worker: NewWorker
) -> None:
    worker = new_worker(server, heartbeat_delay=0.05)
    release = threading.Event()

    @worker.method
    async def block() -> None:
        while not release.is_set():
            time.sleep(0.05)

    with worker:
        request = server.enqueue("block")
        eventually(lambda: worker.running())
        beats = len(server.calls_named("heartbeat"))
        server.wait_for_calls("heartbeat", beats + 5)
        release.set()
        server.assert_answered_once(request, "success")


def test_report_45_loops_in_every_thread_do_not_hold_up_heartbeats(
    server: KiwiServer, new_worker: NewWorker
) -> None:
    worker = new_worker(server, heartbeat_delay=0.1, concurrency=4)
    release = threading.Event()

    @worker.method
    def spin() -> int:
        turns = 0
        while not release.is_set():
            turns += 1
        return turns

    with worker:
        requests = [server.enqueue("spin") for _ in range(4)]
        eventually(lambda: len(worker.running()) == 4)
        beats = len(server.calls_named("heartbeat"))
        server.wait_for_calls("heartbeat", beats + 4)
        release.set()
        for request in requests:
            server.assert_answered_once(request, "success")


def test_report_46_notify_comes_first_and_heartbeats_go_on_until_the_last_answer(
    server: KiwiServer, new_worker: NewWorker
) -> None:
    worker = new_worker(server, heartbeat_delay=0.05)
    release = threading.Event()
    worker.method("wait")(lambda: release.wait(20) and "done")
    with worker:
        request = server.enqueue("wait")
        eventually(lambda: worker.running())
        stopping = threading.Thread(target=worker.stop)
        stopping.start()
        server.wait_for_calls("shutdown")
        beats = len(server.calls_named("heartbeat"))
        server.wait_for_calls("heartbeat", beats + 3)
        release.set()
        server.assert_answered_once(request, "success")
        stopping.join(20)
    numbers = {name: [call.number for call in server.calls_named(name)] for name in server.call_names}
    assert max(numbers["drain"]) < numbers["shutdown"][0] < numbers["respond"][-1]
    between = [
        beat for beat in numbers["heartbeat"] if numbers["shutdown"][0] < beat < numbers["respond"][-1]
    ]
    assert len(between) >= 3


def test_report_47_a_forgotten_worker_never_registers_twice_and_says_so(
    server: KiwiServer, tmp_path: Path
) -> None:
    body = "\n@worker.method\ndef hello() -> str:\n    return 'hello'\n"
    with running(body, server, tmp_path, heartbeat_delay=0.05) as program:
        server.assert_answered_once(server.enqueue("hello"), "success")
        server.forget_workers()
        assert program.end() == 75
    assert len(server.registrations) == 1
    assert server.shutdowns == ["w"]


def test_report_47_an_orbit_session_that_was_lost_is_registered_again_once(orbit: OrbitServer) -> None:
    worker = OrbitWorker(server=orbit.url, worker_id="w", poll_wait=1, grace_period=3, concurrency=4)
    release = threading.Event()

    @worker.task("job", version="1.0.0")
    def job(input: dict[str, Any]) -> dict[str, Any]:
        if input.get("wait"):
            release.wait(20)
        return input

    with worker:
        before = orbit.enqueue_task("job", input={"wait": True})
        orbit.wait_for_token(before)
        orbit.forget_sessions()
        after = orbit.enqueue_task("job", input={"n": 1})
        orbit.assert_completed_once(after, {"n": 1})
        release.set()
        orbit.assert_completed_once(before, {"wait": True})
    assert len(orbit.registrations) == 2


def test_report_49_heartbeats_that_fail_a_hundred_times_are_tried_on(
    server: KiwiServer, new_worker: NewWorker
) -> None:
    worker = new_worker(server, heartbeat_delay=0.01)
    worker.method("hello")(lambda: "hello")
    failing = server.fault("heartbeat", Status(500), times=100)
    with worker:
        eventually(lambda: failing.struck == 100)
        beats = len(server.heartbeats)
        server.wait_until(lambda: len(server._heartbeats) >= beats + 2)
        heartbeat = worker._binding._heartbeat  # type: ignore[union-attr]
        assert heartbeat is not None
        assert heartbeat.failures == 100
        eventually(lambda: heartbeat.answered_at)
        server.assert_answered_once(server.enqueue("hello"), "success")
        assert worker.failure is None
