"""A stuck loop is not live, a slow handler is; what keeps a worker from its work is told."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from worker_tools import eventually

from kiwi_worker import Worker
from kiwi_worker.orbit import OrbitWorker
from kiwi_worker.testing import KiwiServer, MisbehavingServer, Status

NewWorker = Callable[..., Worker]


def reasons(worker: Any) -> str:
    return "; ".join(worker.health().reasons)


def test_a_worker_is_live_ready_and_healthy_while_it_runs(server: KiwiServer, new_worker: NewWorker) -> None:
    worker = new_worker()
    assert worker.health()[1:4] == (False, False, False)
    with worker:
        assert worker.health() == ("worker-1", True, True, True, [], None)
    assert worker.health().not_ready == "it does not run"


def test_a_worker_is_live_and_not_ready_until_it_is_registered(
    server: KiwiServer, new_worker: NewWorker
) -> None:
    worker = new_worker()
    fault = server.fault("register", Status(503), times="always")
    start = threading.Thread(target=worker.start)
    start.start()
    server.wait_for_calls("register", 1)
    assert worker.health()[1:] == (True, False, True, [], "it is not registered")
    fault.disarm()
    start.join()
    assert worker.health().ready


def test_a_worker_that_stops_is_live_and_not_ready(server: KiwiServer, new_worker: NewWorker) -> None:
    worker, go, at_work = new_worker(), threading.Event(), threading.Event()

    @worker.method
    def slow() -> None:
        at_work.set()
        go.wait()

    with worker:
        server.enqueue("slow")
        assert at_work.wait(10)
        stop = threading.Thread(target=worker.stop)
        stop.start()
        eventually(lambda: worker.health().not_ready == "it is stopping")
        assert worker.health().live
        go.set()
        stop.join()


@pytest.mark.usefixtures("suspicious")
def test_slow_handlers_are_no_stuck_loops(server: KiwiServer, new_worker: NewWorker) -> None:
    worker, go = new_worker(concurrency=2, safety_interval=0.05, time_limit=0.1), threading.Event()
    worker.method("slow")(lambda: go.wait())
    worker.method("slower", time_limit=60)(lambda: go.wait())
    with worker:
        server.enqueue("slow")
        server.enqueue("slower")
        for _ in range(4):
            server.enqueue("hello")
        eventually(lambda: worker.snapshot().gauges["lost_slots"] == 1)  # type: ignore[union-attr]
        until = time.monotonic() + 1.0
        while time.monotonic() < until:
            assert worker.health().live, reasons(worker)
            time.sleep(0.05)
        go.set()
        eventually(lambda: worker.health().healthy, lambda: reasons(worker))


@pytest.mark.usefixtures("suspicious")
def test_a_stuck_receiver_is_not_live(new_worker: NewWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kiwi_worker.kiwi.receiving.READ_MARGIN_SECONDS", 0.1)
    monkeypatch.setattr("kiwi_worker.kiwi.receiving.TOKEN_SECONDS", 0.1)
    worker = new_worker(safety_interval=0.05)
    with worker:
        binding = worker._binding
        assert binding is not None
        # Nothing of this loop ever comes on while another holds its lock for ever.
        with binding.draining._changed:
            eventually(lambda: not worker.health().live)
            assert reasons(worker) == "the receiver is stuck in a receive"
            assert worker.health().not_ready == reasons(worker)
        eventually(lambda: worker.health().healthy, lambda: reasons(worker))


@pytest.mark.usefixtures("suspicious")
def test_a_receiver_that_misses_room_is_not_live(server: KiwiServer, new_worker: NewWorker) -> None:
    worker, go = new_worker(safety_interval=0.05, concurrency=1), threading.Event()
    worker.method("slow")(lambda: go.wait())
    with worker:
        engine = worker._engine
        assert engine is not None
        for _ in range(3):
            server.enqueue("slow")
        eventually(lambda: engine.waiting >= 1)
        eventually(lambda: engine.waits_for_room)
        # A wake-up that got lost: the backlog tells nobody that there is room.
        engine.slots.backlog._room_wanted, wanted = 0, engine.slots.backlog._room_wanted
        go.set()
        eventually(lambda: not worker.health().live, lambda: reasons(worker))
        assert "there is room, and it receives nothing" in reasons(worker)
        engine.slots.backlog._room_wanted = wanted
        engine.slots.backlog.nudge()
        eventually(lambda: worker.health().healthy, lambda: reasons(worker))


@pytest.mark.usefixtures("suspicious")
def test_slots_that_take_nothing_are_not_live(new_worker: NewWorker) -> None:
    worker = new_worker()
    with worker:
        engine = worker._engine
        assert engine is not None
        # An item that nobody was woken for.
        engine.slots.backlog._items.append(b'{"request_id": "1", "method": "hello"}')
        eventually(lambda: not worker.health().live)
        assert "none takes it" in reasons(worker)
        engine.slots.backlog._wake()
        eventually(lambda: worker.health().healthy, lambda: reasons(worker))


@pytest.mark.usefixtures("suspicious")
def test_a_stuck_heartbeat_is_not_live(
    server: KiwiServer, new_worker: NewWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kiwi_worker.kiwi.heartbeat.BEAT_SECONDS", 0.1)
    worker, go = new_worker(heartbeat_delay=0.05), threading.Event()
    with worker:
        server.wait_for_calls("heartbeat", 2)
        assert worker._binding is not None
        assert worker._binding._heartbeat is not None
        beat = worker._binding._heartbeat.beat
        monkeypatch.setattr(worker._binding._heartbeat, "beat", go.wait)
        eventually(lambda: reasons(worker) == "the heartbeat is stuck", lambda: reasons(worker))
        monkeypatch.setattr(worker._binding._heartbeat, "beat", beat)
        go.set()
        eventually(lambda: worker.health().live)


@pytest.mark.usefixtures("impatient")
def test_an_outbox_that_only_grows_is_unhealthy_and_live(server: KiwiServer, new_worker: NewWorker) -> None:
    worker = new_worker(report_limit=0.2, safety_interval=0.05)
    fault = server.fault("respond", Status(503), times="always")
    with worker:
        for _ in range(3):
            server.enqueue("hello")
        eventually(lambda: "the outbox only grows" in reasons(worker), lambda: reasons(worker))
        assert worker.health()[1:4] == (True, True, False)
        fault.disarm()
        eventually(lambda: worker.health().healthy, lambda: reasons(worker))


@pytest.mark.usefixtures("impatient")
def test_failing_tokens_are_unhealthy_and_live(server: KiwiServer, new_worker: NewWorker) -> None:
    worker = new_worker(safety_interval=0.05)
    with worker:
        server.change_secret("another")
        server.expire_tokens()
        eventually(lambda: "there is no valid token" in reasons(worker), lambda: reasons(worker))
        assert worker.health().live
        assert "test-secret" not in reasons(worker)


@pytest.mark.usefixtures("impatient")
def test_drains_that_fail_while_heartbeats_do_not_are_unhealthy(
    server: KiwiServer, new_worker: NewWorker
) -> None:
    worker = new_worker(safety_interval=0.05, heartbeat_delay=0.05)
    fault = server.fault("drain", Status(503), times="always")
    with worker:
        eventually(lambda: "no drain has succeeded" in reasons(worker))
        server.wait_for_calls("heartbeat", 3)
        assert worker.health()[1:4] == (True, True, False)
        fault.disarm()
        eventually(lambda: worker.health().healthy, lambda: reasons(worker), limit_seconds=30)


@pytest.mark.usefixtures("impatient")
def test_heartbeats_that_fail_are_unhealthy(server: KiwiServer, new_worker: NewWorker) -> None:
    server.fault("heartbeat", Status(500), times="always")
    with new_worker(heartbeat_delay=0.05) as worker:
        eventually(lambda: "no heartbeat was answered" in reasons(worker))
        assert worker.snapshot().counters["failed_heartbeats"] > 1  # type: ignore[union-attr]


def test_a_worker_that_stays_though_it_is_forgotten_is_not_ready(
    server: KiwiServer, new_worker: NewWorker
) -> None:
    with new_worker(heartbeat_delay=0.05, when_forgotten="stay") as worker:
        server.forget_workers()
        eventually(lambda: not worker.health().ready)
        assert "no longer knows this worker" in reasons(worker)


@pytest.mark.usefixtures("suspicious")
def test_a_blocked_event_loop_is_told(server: KiwiServer, new_worker: NewWorker) -> None:
    worker, go = new_worker(), threading.Event()

    @worker.method
    async def blocks() -> None:
        await asyncio.sleep(0)
        go.wait()

    with worker:
        server.enqueue("blocks")
        eventually(lambda: "the event loop does not turn" in reasons(worker), lambda: reasons(worker))
        assert worker.health().live
        go.set()
        eventually(lambda: worker.health().healthy)


def test_lost_slots_are_told(server: KiwiServer, new_worker: NewWorker) -> None:
    worker, go = new_worker(concurrency=1, time_limit=0.05), threading.Event()
    worker.method("slow")(lambda: go.wait())
    with worker:
        server.enqueue("slow")
        eventually(lambda: "slots are lost" in reasons(worker))
        go.set()
        eventually(lambda: worker.health().healthy)


def test_a_journal_that_cannot_be_written_is_told(
    server: KiwiServer, new_worker: NewWorker, tmp_path: Path
) -> None:
    with new_worker(journal=str(tmp_path / "journal")) as worker:
        assert worker.health().healthy
        assert worker._engine is not None
        assert worker._engine.journal is not None
        worker._engine.journal._degrade(OSError(28, os.strerror(28)))
        assert "the journal cannot be written" in reasons(worker)
        assert worker.snapshot().gauges["journal_degraded"] == 1  # type: ignore[union-attr]


@pytest.mark.usefixtures("impatient")
def test_an_orbit_worker_tells_its_health_by_the_same_means() -> None:
    with MisbehavingServer.orbit() as runtime:
        worker = OrbitWorker(server=runtime.url, worker_id="orbit-1", poll_wait=1, grace_period=5)
        worker.task("greet", version="1.0.0")(lambda given: {"said": "hello"})
        with worker:
            assert worker.health() == ("orbit-1", True, True, True, [], None)
            fault = runtime.fault("poll", Status(503), times="always")
            eventually(lambda: "no poll has succeeded" in reasons(worker), lambda: reasons(worker))
            fault.disarm()
            eventually(lambda: worker.health().healthy, lambda: reasons(worker))
            execution = runtime.enqueue_task("greet")
            runtime.wait_for_result(execution)
            eventually(lambda: worker.snapshot().counters["answered"] == 1)  # type: ignore[union-attr]
            assert [totals[:2] for totals in worker.snapshot().methods] == [("greet 1.0.0", 1)]  # type: ignore[union-attr]
