"""Field reports on tokens: one refresh for all, no stalled worker, no token that is over."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any
from urllib.parse import parse_qs

import pytest
from worker_tools import actions, eventually

from kiwi_worker import Context, Worker
from kiwi_worker.errors import AuthenticationError
from kiwi_worker.kiwi import tokens
from kiwi_worker.kiwi.tokens import TokenManager
from kiwi_worker.testing import KiwiServer, MisbehavingServer, Status, WrongClock
from kiwi_worker.transport import Endpoint, SeldomClient

NewWorker = Callable[..., Worker]


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@contextmanager
def manager_of(server: KiwiServer, clock: Clock) -> Iterator[TokenManager]:
    client = SeldomClient(Endpoint(server.url), user_agent="test")
    manager = TokenManager(
        client, service_id="test-service", worker_id="w", secret=lambda: "test-secret", clock=clock
    )
    try:
        yield manager
    finally:
        manager.close()
        for thread in threading.enumerate():
            if thread.name == "kiwi-token-refresh":
                thread.join(20)
        client.close()


def test_report_01_twenty_threads_renew_a_token_once(server: KiwiServer) -> None:
    clock = Clock()
    with manager_of(server, clock) as manager:
        first = manager.authorization()
        clock.now += 3600 - 301
        assert manager.authorization() is first, "301 s are left: more than the margin"
        assert len(server.calls_named("token")) == 1
        clock.now += 2
        gate, seen = threading.Barrier(20), []

        def ask() -> None:
            gate.wait(20)
            seen.append(manager.authorization())

        threads = [threading.Thread(target=ask) for _ in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        server.wait_for_calls("token", 2)
        eventually(lambda: manager.authorization() is not first)
        assert len(seen) == 20
        assert len(server.calls_named("token")) == 2
        clock.now += 3601
        assert manager.authorization() not in seen, "what is over is not used any more"


def test_report_02_a_token_endpoint_that_fails_for_a_while_stalls_nothing(
    server: KiwiServer, new_worker: NewWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokens, "_FIRST_PAUSE_SECONDS", 0.01)
    worker = new_worker(server, run_mode="eager", wait=0.2)
    worker.method("hello")(lambda: "hello")
    with worker:
        server.wait_for_calls("drain")
        failing = server.fault("token", Status(503), times=3)
        server.expire_tokens()
        eventually(lambda: failing.struck == 3)
        server.assert_answered_once(server.enqueue("hello"), "success")


def test_report_02_wrong_credentials_are_tried_ever_more_seldom_and_told_once(
    server: KiwiServer, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    server.fault("token", Status(401), times="always")
    asked: list[float] = []
    with manager_of(server, clock) as manager, caplog.at_level(logging.INFO, "kiwi_worker"):
        for _ in range(600):
            before = len(server.calls_named("token"))
            with pytest.raises(AuthenticationError):
                manager.authorization()
            if len(server.calls_named("token")) > before:
                asked.append(clock.now)
            clock.now += 0.1
    pauses = [later - sooner for sooner, later in pairwise(asked)]
    assert 2 < len(asked) < 10
    assert pauses[-1] > pauses[0]
    assert actions(caplog.records) == ["token_fetch_failed"]


def test_report_04_every_call_of_a_worker_renews_its_token_in_time(new_worker: NewWorker) -> None:
    with MisbehavingServer.kiwi(token_lifetime_seconds=2) as server:
        worker = new_worker(server, run_mode="eager", wait=5, heartbeat_delay=0.1)

        @worker.method
        def talk(ctx: Context) -> str:
            ctx.feedback("x")
            return "talked"

        with worker:
            for renewals in range(1, 4):
                server.wait_for_calls("token", renewals + 1)
                server.assert_answered_once(server.enqueue("talk", lock_required=True), "success")
        eventually(lambda: server.shutdowns)
        refused = [call for call in server.calls if call.status == 401]
        assert refused == []
        assert {call.name for call in server.calls} == server.call_names
        server.assert_protocol_kept()


@pytest.mark.parametrize("secret", ["a+b/c=%41&é ", "%2B", "a b", "ünïcode&x=y"])
def test_report_05_a_secret_arrives_as_it_was_given(new_worker: NewWorker, secret: str) -> None:
    with MisbehavingServer.kiwi(auth_secret=secret) as server:
        with new_worker(server, auth_secret=secret):
            (call,) = server.calls_named("token")
        assert call.request.header("content-type") == "application/x-www-form-urlencoded"
        assert parse_qs(call.body.decode(), strict_parsing=True)["auth_secret"] == [secret]


def test_report_06_a_token_that_is_not_valid_yet_by_our_clock_is_used(new_worker: NewWorker) -> None:
    soon = int(time.time()) + 30
    with MisbehavingServer.kiwi(claims={"iat": soon, "nbf": soon}) as server:
        _serves_with_one_token(server, new_worker)


@pytest.mark.parametrize("offset_seconds", [-600, 600, -90_000, 90_000])
@pytest.mark.parametrize("send_expires_in", [True, False])
def test_report_06_a_wrong_clock_makes_no_refresh_loop(
    new_worker: NewWorker, offset_seconds: float, send_expires_in: bool
) -> None:
    with MisbehavingServer.kiwi(send_expires_in=send_expires_in) as server:
        server.fault("token", WrongClock(offset_seconds), times="always")
        _serves_with_one_token(server, new_worker)


def _serves_with_one_token(server: KiwiServer, new_worker: NewWorker, **settings: Any) -> None:
    worker = new_worker(server, heartbeat_delay=0.05, **settings)
    worker.method("hello")(lambda: "hello")
    with worker:
        for _ in range(3):
            server.assert_answered_once(server.enqueue("hello"), "success")
        server.wait_for_calls("heartbeat", 3)
    assert len(server.calls_named("token")) == 1
    assert not [call for call in server.calls if call.status == 401]
