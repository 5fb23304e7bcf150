"""Feedback: what is sent, and that its failures are nobody's problem."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable
from typing import Any

import pytest
from worker_tools import actions, eventually

from kiwi_worker import Context, Worker
from kiwi_worker.testing import DropBefore, ExpiredToken, HalfOpen, KiwiServer, Status

NewWorker = Callable[..., Worker]

CONTENTS: dict[str, tuple[Any, str]] = {
    "text": ("half of it", "half of it"),
    "empty": ("", ""),
    "JSON text": ('{"a": 1}', '{"a": 1}'),
    "object": ({"done": 3, "of": 4}, '{"done":3,"of":4}'),
    "number": (0.5, "0.5"),
    "None": (None, "null"),
    "unicode": ("Ünï\u2028\x00\U0001f600", "Ünï\u2028\x00\U0001f600"),
}


def talker(new_worker: NewWorker, server: KiwiServer, *contents: Any, **settings: Any) -> Worker:
    worker = new_worker(server, **settings)

    @worker.method
    def talk(ctx: Context) -> str:
        for content in contents:
            ctx.feedback(content)
        return "done"

    return worker


@pytest.mark.parametrize("case", CONTENTS)
def test_text_goes_as_it_is_and_other_values_as_json(
    server: KiwiServer, new_worker: NewWorker, case: str
) -> None:
    content, fc = CONTENTS[case]
    with talker(new_worker, server, content, feedback_type=42):
        request_id = server.enqueue("talk")
        server.assert_answered_once(request_id, "success")
    assert server.feedbacks == [{"rid": request_id, "st": 1, "sn": "talk", "ft": 42, "pr": False, "fc": fc}]


def test_feedback_keeps_its_order(server: KiwiServer, new_worker: NewWorker) -> None:
    with talker(new_worker, server, *map(str, range(200))):
        server.assert_answered_once(server.enqueue("talk"), "success")
    assert [feedback["fc"] for feedback in server.feedbacks] == [str(number) for number in range(200)]


def test_feedback_comes_before_the_answer_of_its_request(server: KiwiServer, new_worker: NewWorker) -> None:
    with talker(new_worker, server, *map(str, range(50))):
        server.assert_answered_once(server.enqueue("talk"), "success")
        assert len(server.feedbacks) == 50


@pytest.mark.parametrize(
    "content",
    [object(), {"a": object()}, "\ud800", {1, math.nan}.__iter__()],
    ids=["object", "within", "surrogate", "iterator"],
)
def test_what_has_no_json_is_dropped_and_counted(
    server: KiwiServer, new_worker: NewWorker, content: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO), talker(new_worker, server, content, "after it") as worker:
        server.assert_answered_once(server.enqueue("talk"), "success")
        assert worker._binding.feedbacks.dropped == 1  # type: ignore[union-attr]
    assert [feedback["fc"] for feedback in server.feedbacks] == ["after it"]
    assert actions(caplog.records).count("feedback_dropped") == 1


@pytest.mark.parametrize("fault", [Status(500), Status(429), DropBefore(), ExpiredToken()], ids=repr)
def test_it_is_tried_twice(server: KiwiServer, new_worker: NewWorker, fault: Any) -> None:
    server.fault("feedback", fault)
    with talker(new_worker, server, "one"):
        server.assert_answered_once(server.enqueue("talk"), "success")
        server.wait_for_calls("feedback", 2)
    assert [feedback["fc"] for feedback in server.feedbacks] == ["one"]


@pytest.mark.parametrize(("status", "attempts"), [(500, 2), (400, 1), (404, 1)])
def test_it_is_dropped_then(server: KiwiServer, new_worker: NewWorker, status: int, attempts: int) -> None:
    server.fault("feedback", Status(status), times=attempts)
    with talker(new_worker, server, "one", "two") as worker:
        server.assert_answered_once(server.enqueue("talk"), "success")
        server.wait_for_calls("feedback", attempts + 1)
        eventually(lambda: worker._binding.feedbacks.sent == 1)  # type: ignore[union-attr]
        assert worker._binding.feedbacks.dropped == 1  # type: ignore[union-attr]
    assert [feedback["fc"] for feedback in server.feedbacks] == ["two"]


def test_feedback_that_hangs_holds_no_answer_up(server: KiwiServer, new_worker: NewWorker) -> None:
    server.fault("feedback", HalfOpen(), times="always")
    with talker(new_worker, server, *map(str, range(50)), feedback_limit=10) as worker:
        for _ in range(3):
            server.assert_answered_once(server.enqueue("talk"), "success")
        assert worker._binding.feedbacks.dropped >= 100  # type: ignore[union-attr]
        assert worker.stop()
    assert server.feedbacks == []


def test_what_waits_is_sent_before_the_end(server: KiwiServer, new_worker: NewWorker) -> None:
    release = threading.Event()
    worker = new_worker(server)

    @worker.method
    def talk(ctx: Context) -> None:
        assert release.wait(20)
        for number in range(100):
            ctx.feedback(str(number))

    with worker:
        server.enqueue("talk")
        eventually(lambda: worker.running())
        release.set()
        assert worker.stop()
    assert len(server.feedbacks) == 100


def test_feedback_outside_of_requests_has_the_source_type_2(
    server: KiwiServer, new_worker: NewWorker
) -> None:
    worker = new_worker(server)
    with worker:
        worker.feedback("cleaner", [1, 2], type=9, persist=True)
        server.wait_for_calls("feedback")
    assert server.feedbacks == [{"rid": None, "st": 2, "sn": "cleaner", "ft": 9, "pr": True, "fc": "[1,2]"}]


def test_feedback_after_the_end_is_dropped(server: KiwiServer, new_worker: NewWorker) -> None:
    contexts: list[Context] = []
    worker = new_worker(server)
    worker.method("keep")(_keeping(contexts))
    with worker:
        server.assert_answered_once(server.enqueue("keep"), "success")
    contexts[0].feedback("too late")
    assert server.feedbacks == []


def _keeping(contexts: list[Context]) -> Callable[[Context], None]:
    def keep(ctx: Context) -> None:
        contexts.append(ctx)

    return keep
