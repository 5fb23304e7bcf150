"""When a worker drains: at its start, when woken, again after a failure, and now and then."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

import pytest
from worker_tools import actions, eventually

from kiwi_worker import Worker
from kiwi_worker.testing import DropBefore, KiwiServer, Stall, Status, TooManyRequests

NewWorker = Callable[..., Worker]


def make(new_worker: NewWorker, server: KiwiServer, **settings: object) -> Worker:
    worker = new_worker(server, **settings)

    @worker.method
    def hello() -> str:
        return "hello"

    return worker


def test_a_lazy_worker_drains_at_its_start(server: KiwiServer, new_worker: NewWorker) -> None:
    server.probes = False
    request_id = server.enqueue("hello")
    with make(new_worker, server):
        server.assert_answered_once(request_id, "success")
        assert len(server.calls_named("drain")) == 1


def test_a_lazy_worker_drains_only_when_woken(server: KiwiServer, new_worker: NewWorker) -> None:
    server.probes = False
    with make(new_worker, server):
        for count in (1, 2, 3):
            server.wait_for_calls("drain", count)
            server.wait_for_calls("heartbeat", 1)
            assert len(server.calls_named("drain")) == count
            server.probe()


def test_many_probes_during_a_drain_cause_one_more(server: KiwiServer, new_worker: NewWorker) -> None:
    server.probes = False
    with make(new_worker, server):
        server.wait_for_calls("drain")
        server.fault("drain", Stall(0.3), idle_too=True)
        server.probe()
        server.wait_for_calls("drain", 2, ended=False)
        for _ in range(20):
            server.probe()
        assert server.calls_named("drain")[1].outcome == "pending"
        server.wait_for_calls("drain", 3)
        server.probe()
        server.wait_for_calls("drain", 4)
        assert len(server.calls_named("drain")) == 4


def test_a_wake_stays_pending_until_a_drain_succeeds(server: KiwiServer, new_worker: NewWorker) -> None:
    server.probes = False
    with make(new_worker, server):
        server.wait_for_calls("drain")
        server.fault("drain", Status(503), times=3)
        request_id = server.enqueue("hello")
        server.probe()
        server.assert_answered_once(request_id, "success")
        assert len(server.calls_named("drain")) == 5


@pytest.mark.parametrize("run_mode", ["lazy", "eager"])
def test_a_drain_that_did_not_reach_the_middleware_follows_the_next_call_that_does(
    server: KiwiServer, new_worker: NewWorker, run_mode: str
) -> None:
    server.probes = False
    server.fault("drain", DropBefore(), times=7, idle_too=True)
    with make(new_worker, server, run_mode=run_mode, wait=5, heartbeat_delay=0.05) as worker:
        request_id = server.enqueue("hello")
        server.assert_answered_once(request_id, "success")
        # Seven pauses of up to 0.2, 0.4, 0.8, 1.6, 3.2, 6.4 and 12.8 s ended with the next heartbeat each.
        draining = worker._binding.draining  # type: ignore[union-attr]
        assert draining.counters.failed == 7


def test_a_drain_waits_as_long_as_it_is_told(server: KiwiServer, new_worker: NewWorker) -> None:
    server.fault("drain", TooManyRequests(1))
    with make(new_worker, server):
        drains = server.wait_for_calls("drain", 2)
    assert drains[1].received_at - drains[0].received_at >= 0.9


def test_a_lazy_worker_looks_now_and_then_and_warns_once_when_no_probe_ever_came(
    server: KiwiServer, new_worker: NewWorker, caplog: pytest.LogCaptureFixture
) -> None:
    server.probes = False
    with caplog.at_level(logging.INFO), make(new_worker, server, safety_interval=0.05):
        server.wait_for_calls("drain", 3)
        assert "never_probed" not in actions(caplog.records)
        for _ in range(3):
            server.assert_answered_once(server.enqueue("hello"), "success")
    assert actions(caplog.records).count("never_probed") == 1


def test_a_worker_that_was_probed_does_not_warn(
    server: KiwiServer, new_worker: NewWorker, caplog: pytest.LogCaptureFixture
) -> None:
    server.probes = False
    with caplog.at_level(logging.INFO), make(new_worker, server, safety_interval=0.05):
        server.wait_for_registration()
        server.probe()
        server.assert_answered_once(server.enqueue("hello"), "success")
    assert "never_probed" not in actions(caplog.records)


def test_the_safety_interval_is_the_heartbeats_by_default(server: KiwiServer, new_worker: NewWorker) -> None:
    worker = make(new_worker, server, heartbeat_delay=12)
    assert worker.settings.drain_interval == 12


@pytest.mark.parametrize("wait", [0, 30])
def test_an_eager_worker_is_not_kept_busy_by_a_server_that_answers_at_once(
    server: KiwiServer, new_worker: NewWorker, wait: float
) -> None:
    server.fault("drain", Status(200, b"[]"), times="always")
    with make(new_worker, server, run_mode="eager", wait=wait, heartbeat_delay=0.1):
        server.wait_for_calls("heartbeat", 8)
        drains = len(server.calls_named("drain"))
    assert drains < 60, f"{drains} drains in 0.7 s"


def test_an_idle_worker_gets_the_work_that_a_busy_one_has_no_room_for(
    server: KiwiServer, new_worker: NewWorker
) -> None:
    release = threading.Event()
    busy, idle = (make(new_worker, server, run_mode="eager", wait=5, concurrency=1) for _ in range(2))

    def block() -> None:
        assert release.wait(20)

    busy.method(block)
    idle.method(block)
    with busy:
        first = [server.enqueue("block", worker_id="worker-1") for _ in range(2)]
        eventually(lambda: len(busy.running()) == 1 and not server.queue_size())
        before = len(server.calls_named("drain"))
        with idle:
            server.assert_answered_once(server.enqueue("hello"), "success")
            drained = [call.worker_id for call in server.calls_named("drain")[before:]]
            assert set(drained) == {"worker-2"}
            release.set()
            for request_id in first:
                server.assert_answered_once(request_id, "success")
