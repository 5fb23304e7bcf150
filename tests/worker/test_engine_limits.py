"""Limits: per method, for async handlers, and in time; what ends late; how cancellation is seen."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from worker_tools import actions, eventually

from kiwi_worker import Context, Worker
from kiwi_worker.testing import KiwiServer

NewWorker = Callable[..., Worker]


class Meter:
    """How many are inside at once, and how many were at most."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.now = 0
        self.most = 0

    def __enter__(self) -> None:
        with self._lock:
            self.now += 1
            self.most = max(self.most, self.now)

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self.now -= 1


@pytest.mark.parametrize("limit", [1, 3])
def test_a_plain_method_runs_no_more_often_at_once_than_it_may(
    server: KiwiServer, new_worker: NewWorker, limit: int
) -> None:
    worker, meter = new_worker(server, concurrency=8), Meter()

    @worker.method(concurrency=limit)
    def narrow(number: int) -> int:
        with meter:
            time.sleep(0.001)
        return number

    @worker.method
    def wide() -> str:
        return "wide"

    ids = [server.enqueue("narrow", [number]) for number in range(200)]
    behind = server.enqueue("wide")
    with worker:
        server.assert_answered_once(behind, "success")
        results = [server.assert_answered_once(request_id, "success")["result"] for request_id in ids]
    assert results == list(range(200))
    assert meter.most == limit


@pytest.mark.parametrize("limit", [1, 3])
def test_an_async_method_runs_no_more_often_at_once_than_it_may(
    server: KiwiServer, new_worker: NewWorker, limit: int
) -> None:
    worker, meter = new_worker(server, async_concurrency=10), Meter()

    @worker.method(concurrency=limit)
    async def narrow(number: int) -> int:
        with meter:
            await asyncio.sleep(0.001)
        return number

    ids = [server.enqueue("narrow", [number]) for number in range(200)]
    with worker:
        results = [server.assert_answered_once(request_id, "success")["result"] for request_id in ids]
    assert results == list(range(200))
    assert meter.most == limit


def test_async_methods_share_a_limit_of_their_own(server: KiwiServer, new_worker: NewWorker) -> None:
    worker, meter = new_worker(server, concurrency=1, async_concurrency=20), Meter()

    @worker.method
    async def wait(number: int) -> int:
        with meter:
            await asyncio.sleep(0.02)
        return number

    ids = [server.enqueue("wait", [number]) for number in range(100)]
    with worker:
        for request_id in ids:
            server.assert_answered_once(request_id, "success")
    assert meter.most == 20


def test_calls_that_wait_for_their_own_methods_limit_take_no_place_of_others(
    server: KiwiServer, new_worker: NewWorker
) -> None:
    worker = new_worker(server, async_concurrency=2, concurrency=20)
    release = asyncio.Event()

    @worker.method(concurrency=1)
    async def narrow() -> None:
        await release.wait()

    @worker.method
    async def wide() -> str:
        return "wide"

    @worker.method
    async def let_go() -> None:
        release.set()

    ids = [server.enqueue("narrow") for _ in range(5)]
    with worker:
        server.assert_answered_once(server.enqueue("wide"), "success")
        server.assert_answered_once(server.enqueue("let_go"), "success")
        for request_id in ids:
            server.assert_answered_once(request_id, "success")


def test_a_place_is_handed_on_in_order(server: KiwiServer, new_worker: NewWorker) -> None:
    worker, order = new_worker(server, concurrency=8), []

    @worker.method(concurrency=1)
    def narrow(number: int) -> None:
        order.append(number)

    ids = [server.enqueue("narrow", [number]) for number in range(100)]
    with worker:
        for request_id in ids:
            server.assert_answered_once(request_id, "success")
    # Slots that take two at once may swap these; nobody is passed over again and again.
    assert all(abs(number - place) <= 8 for place, number in enumerate(order))


def test_a_refused_lock_gives_its_place_back(server: KiwiServer, new_worker: NewWorker) -> None:
    worker = new_worker(server)

    @worker.method(concurrency=1)
    async def narrow() -> str:
        return "x"

    with worker:
        for number in range(3):
            server.refuse_locks(f"theirs-{number}")
            server.enqueue("narrow", lock_required=True, request_id=f"theirs-{number}")
        server.wait_for_calls("lock", 3)
        server.assert_answered_once(server.enqueue("narrow"), "success")


# Time


def test_a_plain_method_is_answered_at_its_limit_and_its_slot_shows_as_lost(
    server: KiwiServer, new_worker: NewWorker, caplog: pytest.LogCaptureFixture
) -> None:
    worker, release, seen = new_worker(server, concurrency=2), threading.Event(), []

    @worker.method(time_limit=0.05)
    def slow(ctx: Context) -> str:
        assert ctx.cancelled.wait(20)
        seen.append((ctx.is_cancelled, ctx.remaining_seconds()))
        assert release.wait(20)
        return "too late"

    @worker.method
    def hello() -> str:
        return "hello"

    with caplog.at_level(logging.INFO), worker:
        answer = server.assert_answered_once(server.enqueue("slow"), "failed")
        assert answer["error_text"] == "TimeLimit: the call passed its time limit of 0.05 s"
        counters = worker._engine.runner.counters  # type: ignore[union-attr]
        assert (counters.timed_out, counters.lost_slots, counters.late) == (1, 1, 0)
        server.assert_answered_once(server.enqueue("hello"), "success")
        release.set()
        eventually(lambda: counters.late == 1)
        assert counters.lost_slots == 0
    assert seen == [(True, 0.0)]
    assert actions(caplog.records).count("late_end") == 1
    assert not server.refused_responses


def test_an_async_method_is_cancelled_at_its_limit(server: KiwiServer, new_worker: NewWorker) -> None:
    worker, ended = new_worker(server), []

    @worker.method(time_limit=0.05)
    async def slow() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    with worker:
        answer = server.assert_answered_once(server.enqueue("slow"), "failed")
        eventually(lambda: ended)
    assert answer["error_text"] == "TimeLimit: the call passed its time limit of 0.05 s"


def test_an_async_method_that_swallows_its_cancellation_is_answered_all_the_same(
    server: KiwiServer, new_worker: NewWorker, caplog: pytest.LogCaptureFixture
) -> None:
    worker, release = new_worker(server, async_concurrency=2), asyncio.Event()

    @worker.method(time_limit=0.05)
    async def stubborn() -> str:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue
        return "at last"

    @worker.method
    async def let_go() -> None:
        release.set()

    with caplog.at_level(logging.INFO), worker:
        server.assert_answered_once(server.enqueue("stubborn"), "failed")
        server.assert_answered_once(server.enqueue("let_go"), "success")
        eventually(lambda: "late_end" in actions(caplog.records))
    assert not server.refused_responses


def test_the_workers_own_limit_is_for_methods_that_have_none(
    server: KiwiServer, new_worker: NewWorker
) -> None:
    worker = new_worker(server, time_limit=0.05)

    @worker.method
    def slow(ctx: Context) -> None:
        assert ctx.cancelled.wait(20)

    @worker.method(time_limit=30)
    def slower(ctx: Context) -> Any:
        return ctx.remaining_seconds()

    with worker:
        server.assert_answered_once(server.enqueue("slow"), "failed")
        assert 25 < server.assert_answered_once(server.enqueue("slower"), "success")["result"] <= 30


def test_time_begins_with_the_handler_and_not_with_its_waiting(
    server: KiwiServer, new_worker: NewWorker
) -> None:
    worker = new_worker(server, concurrency=8)

    @worker.method(time_limit=0.6, concurrency=1)
    async def slow() -> str:
        await asyncio.sleep(0.2)
        return "done"

    ids = [server.enqueue("slow") for _ in range(4)]
    with worker:
        for request_id in ids:
            server.assert_answered_once(request_id, "success")


def test_a_call_cancelled_before_its_first_step_gives_its_place_back(
    server: KiwiServer, new_worker: NewWorker
) -> None:
    worker, release = new_worker(server, async_concurrency=2, concurrency=4), threading.Event()

    @worker.method
    async def hog() -> None:
        assert release.wait(20)  # on purpose: it holds up the event loop

    @worker.method(time_limit=0.05, concurrency=1)
    async def late() -> str:
        return "in time"

    with worker:
        hogging = server.enqueue("hog")
        eventually(lambda: worker.running())
        server.assert_answered_once(server.enqueue("late"), "failed")
        release.set()
        server.assert_answered_once(hogging, "success")
        server.assert_answered_once(server.enqueue("late"), "success")


def test_a_thousand_calls_in_time_leave_no_alarm_that_matters(
    server: KiwiServer, new_worker: NewWorker
) -> None:
    worker = new_worker(server)

    @worker.method(time_limit=60)
    def quick() -> None: ...

    ids = [server.enqueue("quick") for _ in range(3000)]
    with worker:
        server.wait_until(lambda: len(server._answers.accepted) == len(ids))
        assert len(worker._engine.timekeeper._alarms) < 2100  # type: ignore[union-attr]
