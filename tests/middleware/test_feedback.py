"""Feedback (the page's section of that name) and its stream."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from kiwi_worker.client import Feedback, Outcome
from kiwi_worker.errors import CallError
from kiwi_worker.testing.middleware import MiddlewareProcess

from .conftest import Workers
from .plain_worker import Background, PlainWorker


def contents(items: list[Feedback | Outcome]) -> list[object]:
    return [item.content for item in items if isinstance(item, Feedback)]


@pytest.fixture
def worker(middleware: MiddlewareProcess, workers: Workers) -> Iterator[PlainWorker]:
    worker = workers(middleware)
    worker.register("m")
    return worker


def test_stream_brings_feedback_and_then_the_answer(
    middleware: MiddlewareProcess, worker: PlainWorker
) -> None:
    follow = Background(lambda: list(middleware.client.call_and_follow("m")))
    [message] = worker.drain(wait=10)
    request_id = message["request_id"]
    for content in ("10", {"progress": 20}, [1, "\n"], None):
        assert worker.feedback(request_id, content, ft=3) == 200
    worker.respond(request_id, result="done")
    items = follow.result()
    assert contents(items) == ["10", {"progress": 20}, [1, "\n"], None]
    first = items[0]
    assert isinstance(first, Feedback)
    assert (first.feedback_type, first.source_type, first.source_name) == (3, 1, "m")
    assert isinstance(items[-1], Outcome)
    assert items[-1].result == "done"


def test_late_stream_brings_what_was_missed(middleware: MiddlewareProcess, worker: PlainWorker) -> None:
    request_id = middleware.client.start("m")
    worker.drain_some()
    for n in range(5):
        worker.feedback(request_id, n, pr=n % 2 == 0)
    stream = middleware.client.follow(request_id)
    assert [next(stream).content for _ in range(5)] == [0, 1, 2, 3, 4]
    worker.respond(request_id)
    assert isinstance(next(stream), Outcome)


def test_feedback_is_kept_when_pr_says_so(middleware: MiddlewareProcess, worker: PlainWorker) -> None:
    request_id = middleware.client.start("m")
    worker.drain_some()
    worker.feedback(request_id, "kept", pr=True)
    worker.feedback(request_id, "fleeting", pr=False)
    worker.respond(request_id)
    items = list(middleware.client.follow(request_id))
    assert contents(items) == ["kept"]


def test_feedback_after_the_answer_is_taken(middleware: MiddlewareProcess, worker: PlainWorker) -> None:
    """Feedback has its own queue in a worker, and may come after the answer."""
    request_id = middleware.client.start("m")
    worker.drain_some()
    worker.respond(request_id)
    assert worker.feedback(request_id, "late", pr=True) == 200
    assert contents(list(middleware.client.follow(request_id))) == ["late"]


def test_background_feedback_needs_no_request(worker: PlainWorker) -> None:
    for rid in (None, ""):
        body = {"rid": rid, "st": 2, "sn": "job", "ft": 1, "pr": True, "fc": "x"}
        assert worker.call("POST", "/worker/feedback", body)[0] == 200


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"rid": "unknown"}, 404),
        ({"rid": None}, 400),
        ({"st": 3}, 400),
        ({"ft": "1"}, 400),
        ({"pr": "yes"}, 400),
        ({"rid": 5}, 400),
        ({"sn": 5}, 400),
    ],
)
def test_wrong_feedback(worker: PlainWorker, change: dict[str, object], status: int) -> None:
    body = {"rid": "unknown", "st": 1, "sn": "m", "ft": 0, "pr": False, "fc": "x", **change}
    assert worker.call("POST", "/worker/feedback", body)[0] == status


@pytest.mark.parametrize("number", [2**63, -(2**63), 2**64, 2**70])
def test_a_type_that_the_database_cannot_hold_is_refused_and_the_store_goes_on(
    middleware: MiddlewareProcess, worker: PlainWorker, number: int
) -> None:
    request_id = middleware.client.start("m")
    worker.drain_some()
    assert worker.feedback(request_id, "x", ft=number, pr=True) == 400
    assert worker.feedback(request_id, "x", ft=2**63 - 1, pr=True) == 200
    assert worker.respond(request_id) == 200
    assert middleware.client.fetch(request_id).status == "success"
    assert middleware.client.start("m")


@pytest.mark.parametrize("number", ["9" * 5000, str(2**63), "-1", "x", ""])
def test_an_event_number_that_there_cannot_be_is_refused(
    middleware: MiddlewareProcess, worker: PlainWorker, number: str
) -> None:
    request_id = middleware.client.start("m")
    middleware.client.cancel(request_id)
    form = {"service_id": middleware.service_id, "auth_secret": middleware.client_secret}
    _, token = worker.post_form("/client/auth_token", {"grant_type": "client_credentials", **form})
    headers = {"Authorization": f"Bearer {token['access_token']}", "Last-Event-ID": number}
    status, body = worker.send("GET", f"/client/calls/{request_id}/feedback", None, headers)
    assert (status, body["error"]) == (400, "bad_request")


def test_stream_of_an_unknown_call(middleware: MiddlewareProcess) -> None:
    with pytest.raises(CallError) as caught:
        next(middleware.client.follow("unknown"))
    assert caught.value.http_status == 404


def test_stream_ends_at_its_timeout_with_a_pending_outcome(
    middleware: MiddlewareProcess, worker: PlainWorker
) -> None:
    items = list(middleware.client.call_and_follow("m", timeout=0.2))
    assert [item.status for item in items if isinstance(item, Outcome)] == ["pending"]
    assert worker.drain()[0]["request_id"] == items[-1].request_id


def test_slow_stream_loses_old_feedback_and_never_the_answer(
    middleware: MiddlewareProcess, worker: PlainWorker
) -> None:
    stream = middleware.client.call_and_follow("m")
    follow = Background(lambda: next(stream))
    [message] = worker.drain(wait=10)
    for n in range(1500):
        worker.feedback(message["request_id"], [n, "x" * 500])
    worker.respond(message["request_id"], result="done")
    follow.result()
    rest = list(stream)
    numbers = [c[0] for c in contents(rest) if isinstance(c, list)]
    assert numbers == sorted(numbers)
    assert rest[-1].result == "done"


def test_kept_feedback_of_one_call_is_bounded(middleware: MiddlewareProcess, worker: PlainWorker) -> None:
    request_id = middleware.client.start("m")
    worker.drain_some()
    with ThreadPoolExecutor(8) as pool:
        posts = [pool.submit(worker.feedback, request_id, n, pr=True) for n in range(10_001)]
        statuses = [post.result() for post in posts]
    assert statuses.count(429) == 1
    assert worker.feedback(request_id, "fleeting") == 200
