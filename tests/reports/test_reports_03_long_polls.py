"""Field reports on long polls: late answers, limits that end polling, messages between two polls."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest
from worker_tools import eventually

from kiwi_worker import Worker
from kiwi_worker.testing import FaultProxy, HalfOpen, KiwiServer, Stall

NewWorker = Callable[..., Worker]


def test_report_19_what_is_handed_out_at_the_very_end_of_a_wait_is_handled(
    server: KiwiServer, new_worker: NewWorker
) -> None:
    with FaultProxy(server.url, delay_seconds=0.1) as proxy:
        worker = new_worker(proxy.url, run_mode="eager", wait=0.5)
        worker.method("hello")(lambda: "hello")
        server.fault("drain", Stall(0.8), after=True)
        with worker:
            server.wait_for_calls("drain", ended=False)
            server.assert_answered_once(server.enqueue("hello"), "success")


def test_report_19_what_an_open_wait_brings_at_shutdown_is_answered(
    server: KiwiServer, new_worker: NewWorker
) -> None:
    server.fault("shutdown", HalfOpen())
    worker = new_worker(server, run_mode="eager", wait=30)
    worker.method("hello")(lambda: "hello")
    worker.start()
    server.wait_for_calls("drain", ended=False)
    thread = threading.Thread(target=worker.stop)
    thread.start()
    server.wait_for_calls("shutdown", ended=False)
    server.assert_answered_once(server.enqueue("hello"), "success")
    thread.join(20)
    assert not thread.is_alive()


@pytest.mark.parametrize("run_mode", ["eager", "lazy"])
def test_report_21_a_limit_on_what_runs_never_ends_polling(
    server: KiwiServer, new_worker: NewWorker, run_mode: str
) -> None:
    worker = new_worker(server, run_mode=run_mode, wait=5, concurrency=32, safety_interval=0.1)
    lock, running, most = threading.Lock(), 0, 0

    def work() -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.002)
        with lock:
            running -= 1

    worker.method("one")(work)
    worker.method("two")(work)
    with worker:
        requests = [server.enqueue(("one", "two")[number % 2]) for number in range(200)]
        for request in requests:
            server.assert_answered_once(request, "success", timeout=20)
    assert 1 < most <= 32


def test_report_22_a_message_between_two_waits_does_not_wait_one_out(
    server: KiwiServer, new_worker: NewWorker
) -> None:
    worker = new_worker(server, run_mode="eager", wait=60)
    worker.method("hello")(lambda: "hello")
    with worker:
        for _ in range(30):
            # The answer is out, and the next drain may or may not be there.
            server.assert_answered_once(server.enqueue("hello"), "success", timeout=5)


def test_report_22_a_probe_during_a_drain_is_not_lost(server: KiwiServer, new_worker: NewWorker) -> None:
    worker = new_worker(server, safety_interval=600)
    worker.method("hello")(lambda: "hello")
    stalled = server.fault("drain", Stall(0.3), after=True, idle_too=True)
    with worker:
        eventually(lambda: stalled.struck)
        request = server.enqueue("hello")
        assert len(server.calls_named("drain")) == 1, "the first drain, empty, is still under way"
        server.assert_answered_once(request, "success")
    assert len(server.calls_named("drain")) == 2
