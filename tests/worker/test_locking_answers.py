"""What is made of the answers to a lock request, and of none."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

import pytest
from worker_tools import actions, eventually

from kiwi_worker import Context, Worker
from kiwi_worker.testing import (
    DropBefore,
    ExpiredToken,
    HalfOpen,
    Html502,
    KiwiServer,
    Redirect,
    Status,
    TooManyRequests,
)
from kiwi_worker.testing.faults import Fault

NewWorker = Callable[..., Worker]


class Noted:
    """A worker whose method notes the requests it ran."""

    def __init__(self, new_worker: NewWorker, server: KiwiServer, **settings: object) -> None:
        self.server = server
        self.ran: list[str] = []
        self.worker = new_worker(server, concurrency=1, **settings)
        self.worker.method(self.note)

    def note(self, ctx: Context) -> str:
        self.ran.append(ctx.request_id)
        return ctx.request_id

    def ask(self) -> str:
        """Enqueue a locked request, and a free one behind it that is waited for."""
        request_id = self.server.enqueue("note", lock_required=True)
        self.server.assert_answered_once(self.server.enqueue("note"), "success")
        return request_id


RETRIED: list[Fault] = [
    Status(408),
    Status(425),
    Status(429),
    TooManyRequests(0),
    TooManyRequests(1, as_date=True),
    Status(500),
    Html502(),
    Status(503),
    Status(504),
    ExpiredToken(),
]


CASES = [
    *((fault, False) for fault in RETRIED),
    *((fault, True) for fault in (Status(500), Html502(), TooManyRequests(0))),
]


@pytest.mark.parametrize(("fault", "after"), CASES, ids=repr)
def test_an_answer_that_claims_nothing_is_asked_for_again(
    server: KiwiServer, new_worker: NewWorker, fault: Fault, after: bool
) -> None:
    server.fault("lock", fault, after=after)
    noted = Noted(new_worker, server)
    with noted.worker:
        request_id = noted.ask()
        server.assert_answered_once(request_id, "success")
    assert len(server.calls_named("lock")) == 2
    assert noted.ran.count(request_id) == 1


def test_a_lock_that_cannot_be_asked_for_is_given_up(
    server: KiwiServer, new_worker: NewWorker, caplog: pytest.LogCaptureFixture
) -> None:
    server.fault("lock", Status(500), times="always")
    noted = Noted(new_worker, server, lock_attempts=4)
    with caplog.at_level(logging.INFO), noted.worker:
        request_id = noted.ask()
    assert len(server.calls_named("lock")) == 4
    assert request_id not in noted.ran
    assert actions(caplog.records).count("lock_given_up") == 1
    assert not [response for response in server.responses if response["request_id"] == request_id]


def test_a_lock_waits_for_a_token(server: KiwiServer, new_worker: NewWorker) -> None:
    noted = Noted(new_worker, server, lock_attempts=1)
    with noted.worker:
        server.wait_for_calls("drain")
        server.fault("lock", Status(401), times=2)  # from there on no token is asked for, for a while
        ids = [server.enqueue("note", lock_required=True) for _ in range(5)]
        server.wait_for_calls("lock", 2)
        for request_id in ids[1:]:
            server.assert_answered_once(request_id, "success")


def test_a_request_whose_lock_was_refused_may_come_again(server: KiwiServer, new_worker: NewWorker) -> None:
    noted = Noted(new_worker, server)
    server.refuse_locks("again")
    with noted.worker:
        server.enqueue("note", lock_required=True, request_id="again")
        server.wait_for_calls("lock")
        server.allow_locks()
        # The same id, as a middleware offers it once its former owner has died.
        server.enqueue_raw(
            b'{"request_id": "again", "method": "note", "lock_required": true, "params": null}'
        )
        server.assert_answered_once("again", "success")
    assert noted.ran == ["again"]


@pytest.mark.parametrize("fault", [DropBefore(), DropBefore(reset=True)], ids=repr)
def test_an_ambiguous_lock_that_is_ours_is_won_by_asking_again(
    server: KiwiServer, new_worker: NewWorker, fault: Fault
) -> None:
    server.fault("lock", fault, after=True)
    noted = Noted(new_worker, server)
    with noted.worker:
        server.assert_answered_once(noted.ask(), "success")
    assert len(server.calls_named("lock")) == 2


@pytest.mark.parametrize(("setting", "runs"), [("skip", False), ("run", True)])
def test_an_ambiguous_lock_that_is_refused_then(
    server: KiwiServer, new_worker: NewWorker, setting: str, runs: bool, caplog: pytest.LogCaptureFixture
) -> None:
    # A middleware that refuses a lock even to the one that holds it.
    server.fault("lock", DropBefore(), after=True)
    server.fault("lock", Status(409), after=True)
    noted = Noted(new_worker, server, on_ambiguous_lock=setting)
    with caplog.at_level(logging.INFO), noted.worker:
        request_id = noted.ask()
        if runs:
            server.assert_answered_once(request_id, "success")
    assert (request_id in noted.ran) is runs
    assert actions(caplog.records).count("lock_ambiguous") == 1


@pytest.mark.parametrize(("setting", "runs"), [("skip", False), ("run", True)])
def test_an_ambiguous_lock_that_is_never_answered(
    server: KiwiServer, new_worker: NewWorker, setting: str, runs: bool
) -> None:
    server.fault("lock", DropBefore(), after=True, times="always")
    noted = Noted(new_worker, server, on_ambiguous_lock=setting)
    with noted.worker:
        request_id = noted.ask()
        if runs:
            server.assert_answered_once(request_id, "success")
    assert (request_id in noted.ran) is runs
    assert len(server.calls_named("lock")) == 3


def test_a_refusal_is_not_ambiguous_because_another_was(server: KiwiServer, new_worker: NewWorker) -> None:
    server.fault("lock", DropBefore(), after=True)
    noted = Noted(new_worker, server, on_ambiguous_lock="run")
    with noted.worker:
        noted.ask()
        server.refuse_locks()
        second = noted.ask()
    assert second not in noted.ran


def test_a_redirect_elsewhere_is_no_lock(server: KiwiServer, new_worker: NewWorker) -> None:
    server.fault("lock", Redirect("http://example.invalid/worker/lock_request/x"), times="always")
    noted = Noted(new_worker, server)
    with noted.worker:
        request_id = noted.ask()
    assert request_id not in noted.ran


@pytest.mark.parametrize("method", ["nothing", "note"])
def test_an_error_on_a_locked_request_needs_the_lock_first(
    server: KiwiServer, new_worker: NewWorker, method: str
) -> None:
    noted = Noted(new_worker, server)
    with noted.worker:
        ours = server.enqueue(method, {"unheard": "of"}, lock_required=True)
        server.assert_answered_once(ours, "error")
        [lock] = server.calls_named("lock")
        [respond] = server.calls_named("respond")
        assert lock.number < respond.number
        server.refuse_locks()
        theirs = server.enqueue(method, {"unheard": "of"}, lock_required=True)
        server.wait_for_calls("lock", 2)
        server.assert_answered_once(server.enqueue("note"), "success")
    assert [response["request_id"] for response in server.responses].count(theirs) == 0


def test_a_malformed_locked_request_is_never_answered_without_its_lock(
    server: KiwiServer, new_worker: NewWorker
) -> None:
    server.refuse_locks("bad")
    noted = Noted(new_worker, server)
    with noted.worker:
        server.enqueue_raw(b'{"request_id": "bad", "lock_required": true}')
        server.assert_answered_once(server.enqueue("note"), "success")
        server.wait_for_calls("lock")
    assert [call.path for call in server.calls_named("lock")] == ["/worker/lock_request/bad"]
    assert [response["request_id"] for response in server.responses] != ["bad"]
    assert not any(response["request_id"] == "bad" for response in server.responses)


def test_locks_are_asked_for_as_late_as_possible(server: KiwiServer, new_worker: NewWorker) -> None:
    release = threading.Event()
    worker = new_worker(server, concurrency=2)

    @worker.method
    def block() -> None:
        assert release.wait(20)

    with worker:
        ids = [server.enqueue("block", lock_required=True) for _ in range(8)]
        eventually(lambda: len(worker.running()) == 2)
        assert len(server.calls_named("lock")) == 2, "only what a slot is free for"
        release.set()
        for request_id in ids:
            server.assert_answered_once(request_id, "success")


def test_a_hanging_lock_holds_up_nobody_else(server: KiwiServer, new_worker: NewWorker) -> None:
    hanging = server.fault("/worker/lock_request/hangs", HalfOpen())
    worker = new_worker(server, concurrency=2, grace_period=0.5)

    @worker.method
    def hello() -> str:
        return "hello"

    with worker:
        server.enqueue("hello", lock_required=True, request_id="hangs")
        eventually(lambda: hanging.struck == 1)
        for _ in range(5):
            server.assert_answered_once(server.enqueue("hello", lock_required=True), "success")
        assert not worker.stop(), "its lock may be ours, and it is not answered"
    assert not any(response["request_id"] == "hangs" for response in server.responses)
