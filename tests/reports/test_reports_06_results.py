"""Field reports on results: what has no JSON form, and answers whose delivery fails."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import logging
import threading
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from worker_tools import actions

from kiwi_worker import Worker
from kiwi_worker.testing import DropBefore, KiwiServer, Status, TooManyRequests

NewWorker = Callable[..., Worker]

SOME_ID = uuid.UUID("12345678-1234-5678-1234-567812345678")


@dataclasses.dataclass
class Point:
    x: int
    y: int


class Nameless:
    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


def circle() -> dict[str, Any]:
    made: dict[str, Any] = {}
    made["self"] = made
    return made


ENCODED = [
    (SOME_ID, str(SOME_ID)),
    (datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.timezone.utc), "2026-01-02T03:04:05Z"),
    (decimal.Decimal("1.50"), "1.50"),
    ({1}, [1]),
    (b"ab", "YWI="),
    (Point(1, 2), {"x": 1, "y": 2}),
    (None, None),
]
REFUSED = [circle(), Nameless(), object(), float("nan"), float("inf"), {"a": [object()]}]


def _answer(server: KiwiServer, new_worker: NewWorker, value: Any) -> dict[str, Any]:
    worker = new_worker(server, concurrency=1)
    worker.method("give")(lambda: value)
    with worker:
        first = server.assert_answered_once(server.enqueue("give"))
        # The second shows that the first took no slot with it.
        assert server.assert_answered_once(server.enqueue("give"))["status"] == first["status"]
    return first


@pytest.mark.parametrize(("value", "expected"), ENCODED)
def test_report_37_results_have_their_documented_form(
    server: KiwiServer, new_worker: NewWorker, value: Any, expected: Any
) -> None:
    answer = _answer(server, new_worker, value)
    assert (answer["status"], answer["result"]) == ("success", expected)


@pytest.mark.parametrize("value", REFUSED, ids=lambda value: type(value).__name__)
def test_report_37_a_result_without_a_form_is_one_error(
    server: KiwiServer, new_worker: NewWorker, value: Any
) -> None:
    answer = _answer(server, new_worker, value)
    assert (answer["status"], answer["result"]) == ("error", None)
    assert answer["error_text"]


def test_report_37_numpy_and_pydantic(server: KiwiServer, new_worker: NewWorker) -> None:
    numpy = pytest.importorskip("numpy")
    pydantic = pytest.importorskip("pydantic")
    model = pydantic.create_model("Model", a=(int, ...))
    worker = new_worker(server)
    worker.method("scalar")(lambda: numpy.int64(3))
    worker.method("array")(lambda: numpy.arange(3))
    worker.method("model")(lambda: model(a=1))
    with worker:
        for method, result in (("scalar", 3), ("array", [0, 1, 2]), ("model", {"a": 1})):
            assert server.assert_answered_once(server.enqueue(method), "success")["result"] == result


def test_report_40_an_answer_is_delivered_once_whatever_its_delivery_meets(
    server: KiwiServer, new_worker: NewWorker
) -> None:
    worker = new_worker(server, concurrency=1)
    worker.method("hello")(lambda: "hello")
    with worker:
        server.assert_answered_once(server.enqueue("hello"), "success")
        faults = DropBefore(reset=True), Status(500), TooManyRequests(0.1), Status(503)
        request = server.enqueue("hello", request_id="hard")
        for fault in faults:
            server.fault("respond", fault, where=lambda call: b'"hard"' in call.body)
        for _ in range(5):
            server.assert_answered_once(server.enqueue("hello"), "success")
        server.assert_answered_once(request, "success")
    assert len([one for one in server.responses if one["request_id"] == "hard"]) == 1


@pytest.mark.parametrize("status", [404, 409, 410])
def test_report_40_a_refused_answer_is_final_and_told_once(
    server: KiwiServer, new_worker: NewWorker, caplog: pytest.LogCaptureFixture, status: int
) -> None:
    worker = new_worker(server)
    worker.method("hello")(lambda: "hello")
    refused = server.fault("respond", Status(status), times="always", where=lambda c: b'"no"' in c.body)
    with caplog.at_level(logging.INFO, "kiwi_worker"), worker:
        server.enqueue("hello", request_id="no")
        server.wait_for_calls("respond")
        for _ in range(3):
            server.assert_answered_once(server.enqueue("hello"), "success")
    assert refused.struck == 1
    assert actions(caplog.records).count("answer_refused") == 1


def test_report_40_answers_are_retried_while_the_worker_drains(
    server: KiwiServer, new_worker: NewWorker
) -> None:
    worker = new_worker(server, report_limit=0.1)
    release = threading.Event()
    worker.method("wait")(lambda: release.wait(20) and "done")
    with worker:
        request = server.enqueue("wait")
        server.wait_for_calls("drain", where=lambda call: call.acted)
        server.fault("respond", Status(503), times=3)
        stopping = threading.Thread(target=worker.stop)
        stopping.start()
        server.wait_for_calls("shutdown")
        release.set()
        server.assert_answered_once(request, "success")
        stopping.join(20)
    assert not stopping.is_alive()
