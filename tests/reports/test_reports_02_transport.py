"""Field reports on the transport: connections that die, hang, are redirected, or answer with nonsense."""

from __future__ import annotations

import ast
import logging
import random
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from worker_tools import eventually

import kiwi_worker
from kiwi_worker import Worker
from kiwi_worker.errors import StartError
from kiwi_worker.kiwi import locking, receiving
from kiwi_worker.testing import (
    ByteOrderMark,
    CloseKeepAlive,
    DropAfter,
    DropBefore,
    EmptyBody,
    Fault,
    FaultProxy,
    HalfOpen,
    Html502,
    KiwiServer,
    MisbehavingServer,
    PartialBody,
    Redirect,
    Status,
    WrongJson,
)
from kiwi_worker.transport import Backoff, SeldomClient

NewWorker = Callable[..., Worker]


@pytest.mark.parametrize(
    ("fault", "after"),
    [
        (CloseKeepAlive(), None),
        (CloseKeepAlive(reset=True), None),
        (DropBefore(), False),
        (DropBefore(), True),
        (DropBefore(reset=True), True),
        (PartialBody(), None),
        (DropAfter(20), None),
    ],
    ids=repr,
)
def test_report_08_an_answer_is_taken_once_though_its_connection_dies(
    server: KiwiServer, new_worker: NewWorker, fault: Fault, after: bool | None
) -> None:
    worker = new_worker(server, concurrency=1)
    worker.method("hello")(lambda: "hello")
    with worker:
        server.assert_answered_once(server.enqueue("hello"), "success")
        server.fault("respond", fault, after=after)
        for _ in range(2):
            server.assert_answered_once(server.enqueue("hello"), "success")
    assert len(server.responses) == 3


def test_report_08_a_connection_that_was_closed_while_idle_costs_no_answer(new_worker: NewWorker) -> None:
    with MisbehavingServer.kiwi(keep_alive_seconds=0.05) as server:
        worker = new_worker(server, concurrency=1)
        worker.method("hello")(lambda: "hello")
        with worker:
            for _ in range(3):
                server.assert_answered_once(server.enqueue("hello"), "success")
                eventually(lambda: not server.open_connections)
        assert len(server.calls_named("respond")) == 3


@pytest.mark.parametrize("name", ["drain", "heartbeat", "lock", "respond", "token"])
def test_report_09_a_call_that_is_never_answered_is_given_up_and_named(
    server: KiwiServer,
    new_worker: NewWorker,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    name: str,
) -> None:
    monkeypatch.setattr(receiving, "READ_MARGIN_SECONDS", 0.2)
    monkeypatch.setattr(locking, "READ_LIMIT_SECONDS", 0.2)
    defaults = {**(SeldomClient.call.__kwdefaults__ or {}), "read_timeout": 0.2}
    monkeypatch.setattr(SeldomClient.call, "__kwdefaults__", defaults)
    worker = new_worker(server, run_mode="eager", wait=0.1, heartbeat_delay=0.1, report_limit=0.2)
    worker.method("hello")(lambda: "hello")
    hung = server.fault(name, HalfOpen())
    said = {
        "drain": "GET /worker/messages",
        "heartbeat": "GET /worker/heartbeat",
        "lock": "PUT /worker/lock_request",
        "respond": "POST /worker/response",
        "token": "POST /worker/auth_token",
    }
    with caplog.at_level(logging.INFO, "kiwi_worker"), worker:
        request = server.enqueue("hello", lock_required=True)
        server.assert_answered_once(request, "success", timeout=20)
        eventually(lambda: hung.struck)
        eventually(lambda: any(said[name] in record.getMessage() for record in caplog.records))
    assert worker.failure is None


@pytest.mark.parametrize("how", ["reset", "close", "half_open"])
def test_report_10_after_a_cut_link_the_next_message_is_handled(
    server: KiwiServer, new_worker: NewWorker, monkeypatch: pytest.MonkeyPatch, how: Any
) -> None:
    monkeypatch.setattr(receiving, "READ_MARGIN_SECONDS", 0.2)
    with FaultProxy(server.url) as proxy:
        worker = new_worker(proxy.url, run_mode="eager", wait=0.3, heartbeat_delay=0.1)
        worker.method("hello")(lambda: "hello")
        with worker:
            server.wait_for_calls("drain", ended=False)
            (before,) = {call.connection for call in server.calls_named("drain")}
            if how == "half_open":
                proxy.half_open()
            else:
                proxy.cut(how)
                proxy.restore()
            server.wait_for_calls("drain", ended=False, where=lambda call: call.connection != before)
            eventually(lambda: all(_is_over(call) for call in server.calls if call.connection == before))
            server.assert_answered_once(server.enqueue("hello"), "success")


def _is_over(call: Any) -> bool:
    return bool(call.outcome != "pending")


@pytest.mark.parametrize(
    "entry", ["machine 127.0.0.1 login mallory password guess", "default login a password b"]
)
def test_report_11_a_netrc_does_not_replace_the_token(
    server: KiwiServer, new_worker: NewWorker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, entry: str
) -> None:
    (tmp_path / ".netrc").write_text(f"{entry}\n")
    (tmp_path / ".netrc").chmod(0o600)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / ".netrc"))
    worker = new_worker(server, heartbeat_delay=0.05)
    worker.method("hello")(lambda: "hello")
    with worker:
        server.assert_answered_once(server.enqueue("hello", lock_required=True), "success")
        server.wait_for_calls("heartbeat", 2)
    schemes = {(call.request.header("authorization") or "none").split()[0] for call in server.calls[1:]}
    assert server.calls[0].request.header("authorization") is None, "the token request has none"
    assert schemes == {"Bearer"}


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_report_13_a_redirect_to_another_host_is_an_error_and_takes_no_token_there(
    server: KiwiServer, new_worker: NewWorker, status: int
) -> None:
    with MisbehavingServer.kiwi() as elsewhere:
        target = f"{elsewhere.url}/worker/registration"
        server.fault("register", Redirect(target, status), times="always")
        worker = new_worker(server, start_limit=0.1)
        with pytest.raises(StartError) as caught:
            worker.start()
        assert server.url in str(caught.value)
        assert elsewhere.url in str(caught.value)
        assert elsewhere.calls == []
    assert {call.method for call in server.calls_named("register")} == {"POST"}


@pytest.mark.parametrize("status", [307, 308])
def test_report_13_a_redirect_on_the_same_host_is_followed_with_the_body(
    server: KiwiServer, new_worker: NewWorker, status: int
) -> None:
    server.fault("respond", Redirect("/worker/response", status))
    worker = new_worker(server)
    worker.method("hello")(lambda: "hello")
    with worker:
        server.assert_answered_once(server.enqueue("hello"), "success")
    first, second = server.calls_named("respond")
    assert (second.method, second.body) == ("POST", first.body)


DRAIN_FAULTS = [
    EmptyBody(),
    EmptyBody(204),
    Status(200, b"<html>hello</html>", "text/html"),
    Html502(),
    WrongJson(b'[{"request_id": "x", "met'),
    Status(200, b"null"),
    Status(200, b"[]"),
    Status(200, b'{"error": "busy"}'),
    Status(200, b"\xff\xfe["),
    Status(500),
    Status(403),
    ByteOrderMark(),
]


@pytest.mark.parametrize("fault", DRAIN_FAULTS, ids=repr)
@pytest.mark.parametrize("run_mode", ["eager", "lazy"])
def test_report_14_a_drain_survives_any_answer(
    server: KiwiServer, new_worker: NewWorker, fault: Fault, run_mode: str
) -> None:
    worker = new_worker(server, run_mode=run_mode, wait=0.2, safety_interval=0.1)
    worker.method("hello")(lambda: "hello")
    armed = server.fault("drain", fault, idle_too=True)
    with worker:
        eventually(lambda: armed.struck)
        server.assert_answered_once(server.enqueue("hello"), "success")
    assert worker.failure is None


@pytest.mark.parametrize(
    "fault", [Html502(), EmptyBody(), EmptyBody(204), WrongJson(), Status(200, b"null")], ids=repr
)
@pytest.mark.parametrize("name", ["respond", "lock", "feedback", "heartbeat", "shutdown"])
def test_report_14_no_call_is_thrown_by_an_answer_that_is_no_json(
    server: KiwiServer, new_worker: NewWorker, fault: Fault, name: str
) -> None:
    worker = new_worker(server, heartbeat_delay=0.05)
    worker.method("hello")(lambda: "hello")
    server.fault(name, fault, after=True)
    with worker:
        worker.feedback("x", "y")
        for _ in range(2):
            server.assert_answered_once(server.enqueue("hello", lock_required=True), "success")
        server.wait_for_calls("heartbeat", 3)
    assert worker.failure is None


def test_report_14_no_answer_is_asked_whether_it_is_true() -> None:
    names = {"response", "answer", "resp", "reply"}
    found = []
    for path in Path(kiwi_worker.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            test = getattr(node, "test", None)
            if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
                test = test.operand
            if isinstance(test, ast.Name) and test.id in names and "cli" not in path.parts:
                found.append(f"{path.name}:{node.lineno}")
    assert found == []


def test_report_15_fifty_handlers_and_a_parked_wait_hold_nothing_up(
    server: KiwiServer, new_worker: NewWorker, caplog: pytest.LogCaptureFixture
) -> None:
    worker = new_worker(server, run_mode="eager", wait=30, concurrency=50, heartbeat_delay=0.05)
    together = threading.Barrier(50)
    worker.method("meet")(lambda: together.wait(20) and None)
    with caplog.at_level(logging.DEBUG), worker:
        server.wait_for_calls("drain", ended=False)
        requests = [server.enqueue("meet", lock_required=True) for _ in range(50)]
        for request in requests:
            server.assert_answered_once(request, "success", timeout=20)
        beats = len(server.heartbeats)
        server.wait_for_calls("heartbeat", beats + 2)
        assert server.calls_named("drain")[-1].outcome == "pending", "the wait is parked all the while"
    assert not [record for record in caplog.records if "pool is full" in record.getMessage()]


def test_report_17_a_fleet_that_lost_its_server_comes_back_spread_out() -> None:
    chance = random.Random(17)
    came = []
    for _ in range(100):
        backoff, now = Backoff(0.2, 10.0, uniform=chance.uniform), 0.0
        while now < 60.0:
            now += backoff.next()
        came.append(now - 60.0)
    windows = [sum(second <= moment < second + 1 for moment in came) for second in range(10)]
    assert max(windows) < 40, "no second sees half of the fleet"
    assert sum(map(bool, windows)) >= 6
    assert len({round(moment, 3) for moment in came}) > 90, "waits at the cap still vary"


@pytest.mark.parametrize("name", ["localhost", "literal"])
@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_report_18_a_server_on_one_family_is_reached_and_reaches_back(
    new_worker: NewWorker, host: str, name: str
) -> None:
    try:
        socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET).close()
    except OSError:
        pytest.skip("this machine has no such loopback address")
    with MisbehavingServer.kiwi(host=host) as server:
        url = f"http://localhost:{server.address[1]}" if name == "localhost" else server.url
        bind = "::" if name == "literal" and ":" in host else "0.0.0.0"
        worker = new_worker(url, wakeup_probe_bind=bind)
        worker.method("hello")(lambda: "hello")
        with worker:
            server.assert_answered_once(server.enqueue("hello"), "success")
            assert server.probe().startswith("ACK:")
            if name == "literal":
                assert server.registrations[0]["ip"] == host
        server.assert_protocol_kept()
