"""A worker asks for a task only when it has capacity (section "Overview"), and starts what it has."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

from kiwi_worker.testing import HalfOpen, MisbehavingServer, Status

from .workers import LIMIT_SECONDS, Server, worker_of

ROOT = Path(__file__).parents[2]


def test_a_task_with_a_limit_of_its_own_is_not_hoarded(server: Server) -> None:
    release, started = threading.Event(), threading.Event()
    worker = worker_of(server, concurrency=4)

    @worker.task("job", version="1.0.0", concurrency=1)
    def job(input: dict[str, Any]) -> dict[str, Any]:
        started.set()
        release.wait(LIMIT_SECONDS)
        return input

    with worker:
        ids = [server.enqueue_task("job", input={"n": number}) for number in range(30)]
        assert started.wait(LIMIT_SECONDS)
        server.wait_for_token(ids[4])
        # One runs, four wait: as many as there are slots. All others are left to other workers.
        server.wait_for_calls("heartbeat", len(server.heartbeats) + 2)
        taken = sum(bool(server.tokens(one)) for one in ids)
        release.set()
        for number, one in enumerate(ids):
            server.assert_completed_once(one, {"n": number})
    # Slots that hung in polls when the first ones parked theirs bring one more each.
    assert taken <= 9


def test_what_waited_for_the_event_loop_is_started_though_every_slot_polls(server: Server) -> None:
    release = threading.Event()
    worker = worker_of(server, concurrency=2, async_concurrency=1, poll_wait=60)

    @worker.task("job", version="1.0.0")
    async def job(input: dict[str, Any]) -> dict[str, Any]:
        while not release.is_set():
            await asyncio.sleep(0.01)
        return input

    with worker:
        ids = [server.enqueue_task("job", input={"n": number}) for number in range(2)]
        server.wait_for_token(ids[1])
        server.wait_for_calls("poll", 4, ended=False)
        release.set()
        for number, one in enumerate(ids):
            server.assert_completed_once(one, {"n": number})


def test_slots_that_wait_for_room_in_the_outbox_all_go_on_when_there_is_some(server: Server) -> None:
    refused = server.fault("complete", Status(503), times="always")
    worker = worker_of(server, concurrency=6, outbox_limit=3, report_limit=0.2)
    worker.task("job", version="1.0.0")(lambda value: value)
    with worker:
        ids = [server.enqueue_task("job", input={"n": number}) for number in range(24)]
        engine = worker._engine
        assert engine is not None
        server.wait_until(lambda: engine.outbox.full and engine.slots.backlog._room_wanted >= 4)
        refused.disarm()
        for number, one in enumerate(ids):
            server.assert_completed_once(one, {"n": number})
        # All slots poll again.
        polls = len(server.calls_named("poll"))
        server.wait_for_calls("poll", polls + 6)
        assert engine.slots.backlog._room_wanted == 0


PROGRAM = """
import sys
from kiwi_worker.orbit import OrbitWorker, TaskContext

worker = OrbitWorker(server=sys.argv[1], worker_id="w", poll_wait=60, concurrency=40, grace_period=1)

@worker.task("job", version="1.0.0")
def burn(input: dict, ctx: TaskContext) -> dict:
    while not ctx.is_cancelled:
        sum(range(1000))
    return {}

worker.run()
"""


def test_no_heartbeat_gap_over_two_periods_while_32_handlers_compute_and_all_polls_hang() -> None:
    period = 1.5
    with MisbehavingServer.orbit(session_timeout_seconds=6 * period) as server:
        process = subprocess.Popen([sys.executable, "-c", PROGRAM, server.url], cwd=ROOT)
        try:
            ids = [server.enqueue_task("job", input={}) for _ in range(32)]
            for one in ids:
                server.wait_for_token(one, timeout=60)
            server.fault("poll", HalfOpen(), times="always")
            since = time.monotonic()
            server.wait_until(
                lambda: sum(moment > since for _, moment in server.heartbeats) >= 4, 30, "four heartbeats"
            )
        finally:
            process.kill()
            process.wait()
    moments = [moment for _, moment in server.heartbeats]
    assert len(server.registrations) == 1
    assert max(later - earlier for earlier, later in pairwise(moments)) <= 2 * period
