"""Who is awake while there is work: as many slots as get more done, and nobody else."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from worker_tools import eventually

from kiwi_worker import Worker
from kiwi_worker.engine.engine import Engine
from kiwi_worker.testing import KiwiServer

NewWorker = Callable[..., Worker]


@pytest.mark.parametrize("seconds", [0.2, 0.004])
def test_calls_that_wait_get_every_slot(server: KiwiServer, new_worker: NewWorker, seconds: float) -> None:
    worker = new_worker(server, run_mode="eager", concurrency=6)
    together, most, lock = 0, 0, threading.Lock()

    @worker.method
    def wait() -> None:
        nonlocal together, most
        with lock:
            together += 1
            most = max(most, together)
        time.sleep(seconds)
        with lock:
            together -= 1

    with worker:

        def all_at_once() -> bool:
            if worker._engine is not None and len(worker._engine.slots.backlog) < 20:
                for _ in range(100):
                    server.enqueue("wait")
            return most == 6

        eventually(all_at_once)


def test_calls_one_after_the_other_wake_one_slot(server: KiwiServer, new_worker: NewWorker) -> None:
    worker = new_worker(server, run_mode="eager", concurrency=6)
    worker.method("hello")(lambda: "hello")
    with worker:
        for _ in range(30):
            server.assert_answered_once(server.enqueue("hello"), "success")
            eventually(lambda: worker._engine is not None and not worker._engine.slots.busy)
        assert worker._engine is not None
        assert len(worker._engine.slots.states) == 1


@pytest.mark.parametrize("journaled", [False, True])
def test_the_receiver_sleeps_while_more_waits_than_there_is_room_for(
    server: KiwiServer,
    new_worker: NewWorker,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    journaled: bool,
) -> None:
    # Woken by each answered message, it took the interpreter lock from the slots, for nothing.
    asked, has_room = 0, Engine.has_room

    def counted(engine: Engine) -> bool:
        nonlocal asked
        asked += threading.current_thread().name.endswith("-receiver")
        return has_room(engine)

    monkeypatch.setattr(Engine, "has_room", counted)
    journal = str(tmp_path / "journal") if journaled else None
    worker = new_worker(server, run_mode="eager", concurrency=1, journal=journal)
    worker.method("hello")(lambda: "hello")
    ids = [server.enqueue("hello") for _ in range(500)]
    with worker:
        for request_id in ids:
            server.assert_answered_once(request_id, "success")
        assert asked < 50


def test_a_slot_that_begins_before_its_start_is_over_starts_the_next_all_the_same(
    server: KiwiServer, new_worker: NewWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker, release = new_worker(server, run_mode="eager", concurrency=3), threading.Event()
    worker.method("hold")(lambda: release.wait(20))
    start = threading.Thread.start

    def start_slowly(thread: threading.Thread) -> None:
        start(thread)
        if thread.name.endswith("-slot-1"):
            # As when the new thread gets the interpreter lock first: it may take a message meanwhile.
            release.wait(0.3)

    monkeypatch.setattr(threading.Thread, "start", start_slowly)
    ids = [server.enqueue("hold") for _ in range(3)]
    with worker:
        eventually(lambda: len(worker.running()) == 3)
        release.set()
        for request_id in ids:
            server.assert_answered_once(request_id, "success")
