"""Sessions of the worker: lost, suspected, hung, forgotten at the wrong moment."""

from __future__ import annotations

import threading
import time
from itertools import pairwise
from typing import Any

import pytest

from kiwi_worker.orbit import sessions
from kiwi_worker.testing import DropAfter, DropBefore, HalfOpen, MisbehavingServer, PartialBody, Stall, Status

from .workers import LIMIT_SECONDS, UNKNOWN_SESSION, Server, echo, serving, worker_of


class Held:
    """A handler that runs until it is released."""

    def __init__(self) -> None:
        self.started = threading.Event()
        self.release = threading.Event()
        self.runs = 0

    def run(self, input: dict[str, Any]) -> dict[str, Any]:
        self.runs += 1
        self.started.set()
        self.release.wait(LIMIT_SECONDS)
        return input


def test_rule_1_unregister_registers_again_and_closes_the_new_session(server: Server) -> None:
    with serving(server, echo):
        server.assert_completed_once(server.enqueue_task("job", input={}))
        server.fault("unregister", Status(404, body=UNKNOWN_SESSION))
    names = [call.name for call in server.calls if call.name in ("register", "unregister")]
    assert names == ["register", "unregister", "register", "unregister"]
    assert len(server.unregistered) == 1


def test_rule_1_a_heartbeat_registers_again_when_no_slot_polls(server: Server) -> None:
    held = Held()
    with serving(server, held.run, concurrency=1):
        task = server.enqueue_task("job", input={"n": 1})
        assert held.started.wait(LIMIT_SECONDS)
        server.forget_sessions()
        server.wait_until(lambda: len(server.registrations) == 2)
        beats = len(server.heartbeats)
        server.wait_until(lambda: len(server.heartbeats) > beats, what="a heartbeat of the new session")
        held.release.set()
        server.assert_completed_once(task, {"n": 1})


def test_rule_1_many_polls_that_lose_the_session_register_once(server: Server) -> None:
    with serving(server, echo, concurrency=12):
        server.wait_for_calls("poll", 12, ended=False)
        server.forget_sessions()
        server.wait_for_calls("poll", 24, ended=False, where=lambda call: call.status != 404)
    assert len(server.registrations) == 2


def test_a_runtime_that_loses_each_session_at_once_is_not_registered_with_in_a_circle(server: Server) -> None:
    for call in ("poll", "heartbeat"):
        server.fault(call, Status(404, body=UNKNOWN_SESSION), times="always")
    with serving(server, echo, concurrency=4):
        # Pauses are drawn at random: all of them together are hardly ever this short.
        first, *_, last = server.wait_for_calls("register", 5)
        assert last.received_at - first.received_at > 0.1
        server.clear_faults()
        server.assert_completed_once(server.enqueue_task("job", input={}))


def test_a_proxy_that_answers_polls_at_once_is_not_polled_in_a_circle(server: Server) -> None:
    server.fault("poll", Status(204), times="always")
    with serving(server, echo, concurrency=1):
        first, *_, last = server.wait_for_calls("poll", 7)
        assert last.received_at - first.received_at > 0.1
        server.clear_faults()
        server.assert_completed_once(server.enqueue_task("job", input={}))


def test_a_task_lost_with_a_poll_comes_again_while_the_old_session_holds_another(server: Server) -> None:
    held = Held()

    def handle(input: dict[str, Any]) -> dict[str, Any]:
        return held.run(input) if input["holds"] else input

    with serving(server, handle, concurrency=2):
        holding = server.enqueue_task("job", input={"holds": True})
        assert held.started.wait(LIMIT_SECONDS)
        server.fault("poll", DropAfter(30))
        lost = server.enqueue_task("job", input={"holds": False})
        server.wait_for_token(lost)
        # The old session lives on for what it holds, and so does the lost task with it.
        server.wait_until(lambda: len(server.sessions) == 2)
        held.release.set()
        server.assert_completed_once(holding, {"holds": True})
        server.assert_completed_once(lost, {"holds": False})
        server.wait_until(lambda: len(server.sessions) == 1)
    assert held.runs == 1
    assert len(server.registrations) == 2


def test_two_polls_lost_one_soon_after_the_other_both_come_again(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "REPLACE_PAUSE_SECONDS", 1.0)
    server.fault("poll", PartialBody(), times=2)
    with serving(server, echo, concurrency=1):
        ids = [server.enqueue_task("job", input={"n": number}) for number in range(2)]
        for number, one in enumerate(ids):
            server.assert_completed_once(one, {"n": number}, timeout=LIMIT_SECONDS)
    assert len(server.registrations) == 3


def test_an_assignment_that_cannot_be_read_is_given_back(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "REPLACE_PAUSE_SECONDS", 0.2)
    headers = (("x-orbit-api-version", "orbit-api/1"),)
    server.fault("poll", Status(200, body=b'{"token": 5}', headers=headers), after=True)
    with serving(server, echo):
        server.assert_completed_once(server.enqueue_task("job", input={"n": 1}), {"n": 1})
    assert len(server.registrations) == 2


def test_a_hung_heartbeat_ends_in_time_for_the_next() -> None:
    with MisbehavingServer.orbit(session_timeout_seconds=6) as server:
        server.fault("heartbeat", HalfOpen())
        with serving(server, echo, poll_wait=30):
            server.wait_for_calls("heartbeat", 3, ended=False, timeout=LIMIT_SECONDS)
        hung, following = server.calls_named("heartbeat")[:2]
        assert following.received_at - hung.received_at < 6 / 3
        assert len(server.registrations) == 1


def test_a_hung_registration_holds_up_no_heartbeat_of_another_session(server: Server) -> None:
    held = Held()
    with serving(server, held.run, concurrency=2):
        task = server.enqueue_task("job", input={})
        assert held.started.wait(LIMIT_SECONDS)
        server.fault("register", Stall(2.5))
        server.fault("poll", DropBefore())
        server.wait_for_calls("register", 2, ended=False)
        beats = len(server.heartbeats)
        server.wait_until(lambda: len(server.registrations) == 2)
        assert len(server.heartbeats) >= beats + 3
        held.release.set()
        server.assert_completed_once(task, {})
    moments = [moment for _, moment in server.heartbeats]
    assert max(later - earlier for earlier, later in pairwise(moments)) < 3, "the session would be lost"


def test_open_polls_are_broken_off_when_the_worker_stops(server: Server) -> None:
    worker = worker_of(server, poll_wait=60, concurrency=8, grace_period=30)
    worker.task("job", version="1.0.0")(echo)
    worker.start()
    server.wait_for_calls("poll", 8, ended=False)
    began = time.monotonic()
    assert worker.stop()
    assert time.monotonic() - began < 5, "it waited for its polls"
    assert len(server.unregistered) == 1


@pytest.mark.parametrize("call", ["register", "unregister", "heartbeat"])
def test_a_call_that_hangs_does_not_keep_a_worker_from_stopping(server: Server, call: str) -> None:
    server.fault(call, HalfOpen(), times="always")
    worker = worker_of(server, grace_period=0.2)
    worker.task("job", version="1.0.0")(echo)
    starter = threading.Thread(target=worker.start)
    starter.start()
    server.wait_for_calls("poll" if call == "unregister" else call, ended=False)
    began = time.monotonic()
    worker.stop()
    assert time.monotonic() - began < 3
    starter.join(LIMIT_SECONDS)
    assert not starter.is_alive()


def test_a_stop_while_the_runtime_is_away_ends_in_time(server: Server) -> None:
    worker = worker_of(server, grace_period=0.2)
    worker.task("job", version="1.0.0")(echo)
    worker.start()
    server.wait_for_calls("poll", ended=False)
    server.stop()
    began = time.monotonic()
    worker.stop()
    assert time.monotonic() - began < 3
