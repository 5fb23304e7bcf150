"""Answers are delivered until the middleware answers, whatever becomes of an attempt."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

import pytest
from worker_tools import actions, eventually

from kiwi_worker import Worker
from kiwi_worker.testing import (
    DropBefore,
    ExpiredToken,
    FaultProxy,
    HalfOpen,
    Html502,
    KiwiServer,
    NotHttp,
    PartialBody,
    Stall,
    Status,
    TooManyRequests,
)
from kiwi_worker.testing.faults import Fault

NewWorker = Callable[..., Worker]

RETRIED: list[Fault] = [
    Status(408),
    Status(425),
    Status(429),
    TooManyRequests(0),
    Status(500),
    Html502(),
    Status(503),
    DropBefore(),
    NotHttp(),
    ExpiredToken(),
]
LOST: list[Fault] = [DropBefore(), PartialBody(), DropBefore(reset=True), Html502(), Status(503), NotHttp()]


def make(new_worker: NewWorker, server: KiwiServer | str, **settings: object) -> Worker:
    worker = new_worker(server, **settings)

    @worker.method
    def hello(text: str = "") -> str:
        return f"hello {text}"

    @worker.method
    async def later(text: str = "") -> str:
        return f"later {text}"

    return worker


CASES = [
    (TooManyRequests(1), "before", "hello"),
    *((fault, "before", method) for fault in RETRIED for method in ("hello", "later")),
    *((fault, "after", "hello") for fault in LOST),
    *((fault, "after", "later") for fault in LOST[:2]),
]


@pytest.mark.parametrize(("fault", "moment", "method"), CASES, ids=repr)
def test_an_answer_is_sent_until_it_is_answered(
    server: KiwiServer, new_worker: NewWorker, fault: Fault, moment: str, method: str
) -> None:
    server.fault("respond", fault, after=moment == "after")
    with make(new_worker, server) as worker:
        request_id = server.enqueue(method)
        calls = server.wait_for_calls("respond", 2)
        server.assert_answered_once(request_id, "success")
        eventually(lambda: not len(worker._engine.outbox))  # type: ignore[union-attr]
    assert len(calls) == 2
    assert len({call.body for call in calls}) == 1, "the same answer each time"
    if fault == TooManyRequests(1):
        assert calls[1].received_at - calls[0].received_at >= 0.9


def test_an_answer_is_sent_again_and_again(server: KiwiServer, new_worker: NewWorker) -> None:
    server.fault("respond", Status(503), times=4)
    with make(new_worker, server):
        server.assert_answered_once(server.enqueue("hello"), "success")
    assert len(server.calls_named("respond")) == 5


@pytest.mark.parametrize("status", [400, 403, 404, 409, 410, 422])
@pytest.mark.parametrize("method", ["hello", "later"])
def test_any_other_answer_is_final(
    server: KiwiServer, new_worker: NewWorker, status: int, method: str, caplog: pytest.LogCaptureFixture
) -> None:
    server.fault("respond", Status(status))
    with caplog.at_level(logging.INFO), make(new_worker, server):
        server.enqueue(method)
        server.wait_for_calls("respond")
        server.assert_answered_once(server.enqueue(method), "success")
    assert len(server.calls_named("respond")) == 2
    assert actions(caplog.records).count("answer_refused") == 1


@pytest.mark.parametrize("method", ["hello", "later"])
def test_an_answer_too_large_is_replaced_once(server: KiwiServer, new_worker: NewWorker, method: str) -> None:
    server.fault("respond", Status(413))
    with make(new_worker, server):
        request_id = server.enqueue(method, ["x" * 1000])
        response = server.assert_answered_once(request_id, "error")
        assert "larger than the middleware takes" in response["error_text"]
        assert response["result"] is None
    assert len(server.calls_named("respond")) == 2


def test_a_replacement_that_is_too_large_as_well_is_final(server: KiwiServer, new_worker: NewWorker) -> None:
    server.fault("respond", Status(413), times=2)
    with make(new_worker, server):
        server.enqueue("hello")
        server.wait_for_calls("respond", 2)
        server.assert_answered_once(server.enqueue("hello"), "success")
    assert len(server.calls_named("respond")) == 3


@pytest.mark.parametrize("fault", [HalfOpen(), Stall(60)], ids=repr)
def test_a_hung_answer_holds_no_slot(server: KiwiServer, new_worker: NewWorker, fault: Fault) -> None:
    server.fault("respond", fault)
    with make(new_worker, server, concurrency=1, report_limit=0.1, grace_period=5):
        first = server.enqueue("hello")
        server.wait_for_calls("respond", ended=False)
        second = server.enqueue("hello")
        server.assert_answered_once(second, "success")
        server.assert_answered_once(first, "success")


def test_retried_answers_hold_no_slot(server: KiwiServer, new_worker: NewWorker) -> None:
    server.fault("respond", TooManyRequests(1), times=5)
    with make(new_worker, server, concurrency=1):
        waiting = [server.enqueue("hello", [str(number)]) for number in range(5)]
        server.wait_for_calls("respond", 5)
        server.assert_answered_once(server.enqueue("hello"), "success")
        assert len(server.responses) == 1
        for request_id in waiting:
            server.assert_answered_once(request_id, "success")


def test_a_full_outbox_stops_receiving(server: KiwiServer, new_worker: NewWorker) -> None:
    refusing = server.fault("respond", Status(503), times="always")
    with make(new_worker, server, outbox_limit=3, run_mode="eager", wait=5, concurrency=2) as worker:
        ids = [server.enqueue("hello", [str(number)]) for number in range(3)]
        eventually(lambda: worker._engine.outbox.full)  # type: ignore[union-attr]
        # A drain that was open when it filled up may bring one batch more.
        held = [server.enqueue("hello", [f"held {number}"]) for number in range(2)]
        eventually(lambda: all(call.outcome != "pending" for call in server.calls_named("drain")))
        drains = len(server.calls_named("drain"))
        ids += [*held, server.enqueue("hello", ["behind"])]
        calls = len(server.calls_named("respond"))
        server.wait_for_calls("respond", calls + 3)
        assert len(server.calls_named("drain")) == drains
        assert server.queue_size() >= 1
        refusing.disarm()
        for request_id in ids:
            server.assert_answered_once(request_id, "success")


def test_a_full_outbox_stops_claiming(server: KiwiServer, new_worker: NewWorker) -> None:
    refusing = server.fault("respond", Status(503), times="always")
    with make(new_worker, server, outbox_limit=2, concurrency=1):
        ids = [server.enqueue("hello", [str(number)], lock_required=True) for number in range(6)]
        server.wait_for_calls("respond", 8)
        locked = len(server.calls_named("lock"))
        assert 2 <= locked <= 3, "what is locked here is run by nobody else"
        refusing.disarm()
        for request_id in ids:
            server.assert_answered_once(request_id, "success")


def test_a_worker_with_a_full_outbox_stops(server: KiwiServer, new_worker: NewWorker) -> None:
    server.fault("respond", Status(503), times="always")
    with make(new_worker, server, outbox_limit=1, concurrency=1, grace_period=1) as worker:
        for number in range(4):
            server.enqueue("hello", [str(number)], lock_required=number > 1)
        server.wait_for_calls("respond", 3)
        assert not worker.stop()


def test_results_made_during_an_outage_are_delivered_once(new_worker: NewWorker, server: KiwiServer) -> None:
    go = threading.Event()
    with FaultProxy(server.url) as proxy:
        worker = make(new_worker, proxy.url, concurrency=8, report_limit=0.5, heartbeat_delay=0.2)

        @worker.method
        def held(number: int) -> int:
            assert go.wait(20)
            return number

        with worker:
            server.wait_for_registration()
            ids = [server.enqueue("held", [number]) for number in range(8)]
            eventually(lambda: len(worker.running()) == 8)
            proxy.cut()
            go.set()
            eventually(lambda: not worker.running())
            engine = worker._engine
            assert engine is not None
            eventually(lambda: len(engine.outbox) == 8 and engine.outbox.retries >= 9)
            proxy.restore()
            for number, request_id in enumerate(ids):
                assert server.assert_answered_once(request_id, "success")["result"] == number
            eventually(lambda: not len(engine.outbox))
    assert not server.refused_responses


def test_any_call_that_succeeds_wakes_what_waits(server: KiwiServer, new_worker: NewWorker) -> None:
    dropping = server.fault("respond", DropBefore(), times="always")
    with make(new_worker, server, heartbeat_delay=30) as worker:
        ids = [server.enqueue("hello") for _ in range(3)]
        engine = worker._engine
        assert engine is not None
        eventually(lambda: engine.outbox.retries > 6)
        dropping.disarm()
        server.probe()  # the drain that it causes succeeds
        for request_id in ids:
            server.assert_answered_once(request_id, "success")


def test_many_slots_that_lose_the_middleware_together_do_not_wait_for_long(
    server: KiwiServer, new_worker: NewWorker
) -> None:
    go = threading.Event()
    with FaultProxy(server.url) as proxy:
        worker = make(new_worker, proxy.url, concurrency=20)
        worker.method("held")(lambda: go.wait(20))
        with worker:
            server.wait_for_registration()
            ids = [server.enqueue("held") for _ in range(20)]
            eventually(lambda: len(worker.running()) == 20)
            proxy.cut()
            go.set()
            outbox = worker._engine.outbox  # type: ignore[union-attr]
            eventually(lambda: len(outbox) == 20)
            assert outbox._pauses._ceiling_seconds <= 1.6
            proxy.restore()
            for request_id in ids:
                server.assert_answered_once(request_id, "success")


def test_a_second_401_is_no_answer_to_a_response(server: KiwiServer, new_worker: NewWorker) -> None:
    server.fault("respond", Status(401), times=2)
    with make(new_worker, server):
        request_id = server.enqueue("hello")
        server.assert_answered_once(request_id, "success")
    assert [call.status for call in server.calls_named("respond")] == [401, 401, 200]


def test_an_answer_whose_sending_raises_is_kept(
    server: KiwiServer, new_worker: NewWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    with make(new_worker, server) as worker:
        binding = worker._binding
        assert binding is not None
        report, raised = binding.report, []

        def raise_once(*arguments: object) -> object:
            if len(raised) < 2:
                raised.append(arguments)
                raise ZeroDivisionError
            return report(*arguments)  # type: ignore[arg-type]

        monkeypatch.setattr(binding, "report", raise_once)
        ids = [server.enqueue(method) for method in ("hello", "later")]
        for request_id in ids:
            server.assert_answered_once(request_id, "success")
    assert len(raised) == 2
