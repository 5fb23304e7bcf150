"""Field reports on memory, threads and descriptors: a short form of the soak in tests/durability."""

from __future__ import annotations

import gc
import os
import sys
import threading
from collections.abc import Callable

from worker_tools import eventually

from kiwi_worker import Context, Worker
from kiwi_worker.testing import DropBefore, KiwiServer, MisbehavingServer

NewWorker = Callable[..., Worker]

ROUNDS = 4
CALLS = 300


def test_report_77_work_leaves_no_thread_descriptor_or_memory_behind(new_worker: NewWorker) -> None:
    with MisbehavingServer.kiwi(seed=77) as server:
        worker = new_worker(server, run_mode="eager", wait=1, concurrency=4, heartbeat_delay=0.1)

        @worker.method
        def talk(number: int, ctx: Context) -> int:
            ctx.feedback("x")
            return number

        @worker.method
        async def think(number: int) -> int:
            return number

        with worker:
            server.fault("respond", DropBefore(), probability=0.02)
            server.fault("lock", DropBefore(), probability=0.02)
            _work(server)
            _work(server)
            threads, descriptors = threading.active_count(), len(os.listdir("/proc/self/fd"))
            blocks = []
            for _ in range(ROUNDS):
                _work(server)
                blocks.append(_blocks_of_the_worker(worker))
            # Connections of the server come and go with its faults.
            eventually(lambda: threading.active_count() <= threads + 2)
            eventually(lambda: len(os.listdir("/proc/self/fd")) <= descriptors + 4)
    assert blocks[-1] - blocks[0] < CALLS, f"what the engine holds grows with the calls: {blocks}"


def _work(server: KiwiServer) -> None:
    requests = [
        server.enqueue(("talk", "think")[number % 2], [number], lock_required=number % 3 == 0)
        for number in range(CALLS)
    ]
    for request in requests:
        server.wait_for_response(request, 20)


def _blocks_of_the_worker(worker: Worker) -> int:
    """What is held beside the window of known ids, which is bounded and full only after 10,000."""
    engine = worker._engine
    assert engine is not None
    eventually(lambda: not engine.runner.running and not len(engine.outbox))
    gc.collect()
    assert sys.getallocatedblocks() > 0
    kinds = ("kiwi_worker.engine.work", "kiwi_worker.engine.outbox", "kiwi_worker.context")
    return sum(type(one).__module__ in kinds for one in gc.get_objects())
