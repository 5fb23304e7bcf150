"""Heartbeats: when they come, what their answers mean, and a worker that is forgotten."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from worker_tools import actions, eventually, running, worker_environment

from kiwi_worker import Worker
from kiwi_worker.errors import ForgottenError
from kiwi_worker.testing import (
    DropBefore,
    EmptyBody,
    ExpiredToken,
    Html502,
    KiwiServer,
    MisbehavingServer,
    Status,
)

NewWorker = Callable[..., Worker]


def make(new_worker: NewWorker, server: KiwiServer, **settings: Any) -> Worker:
    worker = new_worker(server, **{"heartbeat_delay": 0.02, **settings})
    worker.method("hello")(lambda: "hello")
    return worker


def test_the_first_beat_follows_the_registration(server: KiwiServer, new_worker: NewWorker) -> None:
    with make(new_worker, server, heartbeat_delay=60):
        server.wait_for_calls("heartbeat")
    names = [call.name for call in server.calls]
    assert names.index("heartbeat") > names.index("register")


def test_the_middleware_may_set_the_delay(new_worker: NewWorker) -> None:
    with MisbehavingServer.kiwi(settings={"heartbeat_delay": "0.02"}) as server:
        worker = new_worker(server)
        with worker:
            server.wait_for_calls("heartbeat", 5)
        fixed = new_worker(server, heartbeat_delay=60)
        with fixed:
            server.wait_for_registration(2)
            server.wait_until(lambda: any(name == "worker-2" for name, _ in server._heartbeats))
            time.sleep(0.1)
        assert [name for name, _ in server.heartbeats].count("worker-2") == 1, "its own setting wins"


def test_a_delay_that_is_no_number_is_ignored(new_worker: NewWorker) -> None:
    with MisbehavingServer.kiwi(settings={"heartbeat_delay": "soon"}) as server:
        worker = make(new_worker, server)
        with worker:
            server.wait_for_calls("heartbeat")


@pytest.mark.parametrize("how", ["false", "404"])
def test_three_times_in_a_row_unknown_is_forgotten(
    server: KiwiServer, new_worker: NewWorker, how: str
) -> None:
    with make(new_worker, server) as worker:
        server.wait_for_calls("heartbeat")
        answer = Status(404) if how == "404" else Status(200, b"false")
        unknown = server.fault("heartbeat", answer, times=2)
        eventually(lambda: unknown.struck == 2)
        server.wait_for_calls("heartbeat", len(server.calls_named("heartbeat")) + 2)
        assert worker.failure is None, "two times are not enough"
        server.fault("heartbeat", answer, times="always")
        eventually(lambda: worker.failure is not None)
        assert isinstance(worker.failure, ForgottenError)
        assert worker.failure.exit_status == 75
        assert "worker-1" in str(worker.failure)


NOT_FALSE = [
    EmptyBody(200),
    Status(200, b"0"),
    Status(200, b"null"),
    Status(200, b'"false"'),
    Status(200, b'{"known": false}'),
    Status(200, b"<html>false</html>"),
    Status(401),
    Status(403, b"false"),
    Html502(),
    DropBefore(),
    ExpiredToken(),
]


@pytest.mark.parametrize("fault", NOT_FALSE, ids=repr)
def test_anything_but_false_is_not_false(server: KiwiServer, new_worker: NewWorker, fault: Any) -> None:
    # Of two refused tokens in a row the second is followed by a pause.
    times = 2 if fault in (Status(401), ExpiredToken()) else 8
    server.fault("heartbeat", fault, times=times)
    with make(new_worker, server) as worker:
        server.wait_for_calls("heartbeat", times + 1)
        server.assert_answered_once(server.enqueue("hello"), "success")
        assert worker.failure is None


@pytest.mark.parametrize("body", [b"true", b" true\n", b"True", b"TRUE"])
def test_a_true_between_begins_the_count_anew(server: KiwiServer, new_worker: NewWorker, body: bytes) -> None:
    for _ in range(4):
        server.fault("heartbeat", Status(200, b"false"), times=2)
        server.fault("heartbeat", Status(200, body))
    with make(new_worker, server) as worker:
        server.wait_for_calls("heartbeat", 13)
        assert worker.failure is None


def test_a_worker_told_to_stay_stays(
    server: KiwiServer, new_worker: NewWorker, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO), make(new_worker, server, when_forgotten="stay") as worker:
        server.wait_for_calls("heartbeat")
        server.forget_workers()
        server.wait_for_calls("heartbeat", len(server.calls_named("heartbeat")) + 8)
        server.assert_answered_once(server.enqueue("hello"), "success")
        assert worker.failure is None
    assert actions(caplog.records).count("forgotten") == 1
    assert len(server.registrations) == 1


def test_a_forgotten_process_finishes_what_it_holds_and_exits_with_75(server: KiwiServer) -> None:
    program = """
from kiwi_worker import Context, Worker
worker = Worker()

@worker.method
def hold(ctx: Context) -> str:
    import time
    while not ctx.is_stopping:
        time.sleep(0.005)
    time.sleep(0.1)
    return "finished"

worker.run()
"""
    with running(program, **worker_environment(server, heartbeat_delay=0.02)) as process:
        server.wait_for_registration()
        request_id = server.enqueue("hold")
        server.wait_until(lambda: not server.queue_size())
        server.forget_workers()
        status, output, errors = process.end()
        assert server.assert_answered_once(request_id, "success")["result"] == "finished"
    assert (status, output) == (75, "")
    assert errors.splitlines()[-1].startswith("kiwi-worker: the middleware no longer knows worker")
    assert server.calls_named("shutdown"), "it says goodbye all the same"
    assert len(server.registrations) == 1


def test_handlers_that_use_the_processor_do_not_hold_beats_up(
    server: KiwiServer, new_worker: NewWorker
) -> None:
    worker = make(new_worker, server, heartbeat_delay=0.1, concurrency=4)
    over = threading.Event()

    @worker.method
    def spin() -> int:
        turns = 0
        while not over.is_set():
            turns += 1
        return turns

    with worker:
        for _ in range(4):
            server.enqueue("spin")
        eventually(lambda: len(worker.running()) == 4)
        beats = len(server.heartbeats)
        server.wait_until(lambda: len(server._heartbeats) >= beats + 8, timeout=20)
        over.set()
    moments = [moment for _, moment in server.heartbeats[beats:]]
    gaps = [later - earlier for earlier, later in pairwise(moments)]
    assert sorted(gaps)[len(gaps) // 2] < 1.0, gaps
