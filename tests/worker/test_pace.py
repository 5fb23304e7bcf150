"""How many slots work at once: as many as get more done."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest
from worker_tools import eventually

from kiwi_worker import Worker
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
