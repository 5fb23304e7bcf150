"""The sentences of the worker protocol page over real sockets; `docs/protocol-coverage.md` lists them."""

from __future__ import annotations

import json
import random
import signal
import socket
import threading
from collections.abc import Callable
from urllib.parse import parse_qsl

import jwt
import pytest
from worker_tools import LIMIT_SECONDS, eventually, running, worker_environment, worker_settings

from kiwi_worker import Context, Worker
from kiwi_worker.errors import AuthenticationError, SettingsError
from kiwi_worker.kiwi.tokens import TokenManager
from kiwi_worker.settings import KiwiSettings
from kiwi_worker.testing import ExpiredToken, KiwiServer, MisbehavingServer, Status
from kiwi_worker.transport import Endpoint, SeldomClient

NewWorker = Callable[..., Worker]


def greeter(worker: Worker) -> Worker:
    @worker.method
    def hello(name: str = "world") -> str:
        return f"hello {name}"

    return worker


# Introduction


@pytest.mark.parametrize("run_mode", ["lazy", "eager"])
def test_the_whole_contract_is_kept_in_both_modes(
    server: KiwiServer, new_worker: NewWorker, run_mode: str
) -> None:
    worker = greeter(new_worker(server, run_mode=run_mode, wait=5))
    with worker:
        free = server.enqueue("hello", {"name": "Ada"})
        locked = server.enqueue("hello", ["Bob"], lock_required=True)
        unknown = server.enqueue("nothing")
        assert server.assert_answered_once(free, "success")["result"] == "hello Ada"
        assert server.assert_answered_once(locked, "success")["result"] == "hello Bob"
        server.assert_answered_once(unknown, "error")
        server.wait_for_calls("heartbeat")
    assert server.shutdowns == ["worker-1"]
    names = [call.name for call in server.calls]
    assert names[:2] == ["token", "register"]


# Authentication


def test_the_token_request_is_anonymous_and_form_encoded(server: KiwiServer, new_worker: NewWorker) -> None:
    with greeter(new_worker(server)):
        [call] = server.calls_named("token")
    assert (call.method, call.path) == ("POST", "/worker/auth_token")
    assert call.request.header("authorization") is None
    assert call.request.header("cookie") is None
    assert call.request.header("content-type") == "application/x-www-form-urlencoded"
    assert dict(parse_qsl(call.body.decode(), strict_parsing=True)) == {
        "grant_type": "client_credentials",
        "service_id": "test-service",
        "auth_secret": "test-secret",
        "worker_id": "worker-1",
    }


def test_form_fields_are_escaped(new_worker: NewWorker) -> None:
    with MisbehavingServer.kiwi(service_id="a&b=c d", auth_secret="p%+ß/?&x=1") as server:
        worker = greeter(
            new_worker(server, service_id="a&b=c d", auth_secret="p%+ß/?&x=1", worker_id="w 1&é")
        )
        with worker:
            assert server.wait_for_registration()["worker_id"] == "w 1&é"


@pytest.mark.parametrize("shape", ["object", "token", "string"])
def test_the_token_answer_is_read_like_that_of_clients(new_worker: NewWorker, shape: str) -> None:
    with MisbehavingServer.kiwi(token_shape=shape) as server, greeter(new_worker(server)):  # type: ignore[arg-type]
        [token] = server.calls_named("token")
        assert token.status == 200
        authorization = server.calls_named("register")[0].request.header("authorization")
        assert authorization is not None
        assert authorization.startswith("Bearer ")
        claims = jwt.decode(authorization.removeprefix("Bearer "), server.jwt_key, algorithms=["HS256"])
        assert claims["sub"] == "worker-1"


def test_the_service_id_comes_from_the_token(server: KiwiServer, new_worker: NewWorker) -> None:
    server.claims = {}
    with greeter(new_worker(server)):
        registration = server.wait_for_registration()
    assert registration["service_id"] == "test-service"


def test_the_service_id_of_the_token_wins(new_worker: NewWorker) -> None:
    with MisbehavingServer.kiwi(claims={"service_id": "renamed"}) as server, greeter(new_worker(server)):
        assert server.wait_for_registration()["service_id"] == "renamed"


@pytest.mark.parametrize(("claim", "value"), [("sub", "another-worker"), ("role", "client")])
def test_a_token_of_another_worker_or_role_stops_the_start(
    new_worker: NewWorker, claim: str, value: str
) -> None:
    with MisbehavingServer.kiwi(claims={claim: value}) as server:
        worker = greeter(new_worker(server))
        with pytest.raises(AuthenticationError, match=value) as caught:
            worker.start()
        assert caught.value.exit_status == 77
        assert not server.registrations


def test_a_401_means_a_bad_secret(server: KiwiServer, new_worker: NewWorker) -> None:
    worker = greeter(new_worker(server, auth_secret="marked-wrong-secret"))
    with pytest.raises(AuthenticationError) as caught:
        worker.start()
    assert caught.value.status == 401
    assert caught.value.exit_status == 77
    assert "marked-wrong-secret" not in str(caught.value)
    assert len(server.calls_named("token")) == 1


def test_a_401_means_a_dead_refresh_token() -> None:
    with MisbehavingServer.kiwi(refresh_tokens=True) as server:
        clock = _Clock()
        client = SeldomClient(Endpoint(server.url), user_agent="test")
        manager = _manager(client, clock)
        manager.authorization()
        server.expire_tokens(refresh_tokens_too=True)
        clock.now += 3601
        second = manager.authorization()
        grants = [dict(parse_qsl(call.body.decode()))["grant_type"] for call in server.calls_named("token")]
        statuses = [call.status for call in server.calls_named("token")]
        client.close()
    assert second
    assert grants == ["client_credentials", "refresh_token", "client_credentials"]
    assert statuses == [200, 401, 200]


class _Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def _manager(client: SeldomClient, clock: _Clock) -> TokenManager:
    margin = KiwiSettings.load({}, environ={}).refresh_margin
    return TokenManager(
        client,
        service_id="test-service",
        worker_id="worker-1",
        secret=lambda: "test-secret",
        margin=margin,
        clock=clock,
    )


def test_a_token_is_renewed_five_minutes_before_it_is_over(server: KiwiServer) -> None:
    clock = _Clock()
    client = SeldomClient(Endpoint(server.url), user_agent="test")
    manager = _manager(client, clock)
    first = manager.authorization()
    clock.now += 3600 - 301
    assert manager.authorization() is first
    assert len(server.calls_named("token")) == 1
    clock.now += 2
    assert manager.authorization() is first, "the old one is used until the new one is there"
    eventually(lambda: manager.authorization() is not first)
    assert len(server.calls_named("token")) == 2
    client.close()


# Registration


def test_the_registration_has_twelve_fields(server: KiwiServer, new_worker: NewWorker) -> None:
    worker = greeter(
        new_worker(
            server,
            version="2.3.4",
            tags={"os": "linux"},
            supported_executors=["python", "node"],
            platform="linux",
            interactive_desktop=True,
            browser_runtime=True,
        )
    )

    @worker.method
    def longtask() -> None: ...

    with worker:
        registration = server.wait_for_registration()
        [call] = server.calls_named("register")
        assert registration == {
            "worker_id": "worker-1",
            "service_id": "test-service",
            "run_mode": "Lazy",
            "methods": ["hello", "longtask"],
            "ip": "127.0.0.1",
            "port": worker.probe_port,
            "version": "2.3.4",
            "tags": {"os": "linux"},
            "supported_executors": ["python", "node"],
            "platform": "linux",
            "interactive_desktop": True,
            "browser_runtime": True,
        }
    assert (call.method, call.path) == ("POST", "/worker/registration")
    assert call.request.header("content-type") == "application/json"
    assert (call.request.header("authorization") or "").startswith("Bearer ")


def test_an_executor_less_worker_registers_an_empty_list(server: KiwiServer, new_worker: NewWorker) -> None:
    with greeter(new_worker(server)):
        registration = server.wait_for_registration()
    assert registration["supported_executors"] == []
    assert registration["tags"] == {}
    assert registration["interactive_desktop"] is False
    assert registration["browser_runtime"] is False
    assert registration["platform"]
    assert registration["version"]


@pytest.mark.parametrize(("run_mode", "word"), [("lazy", "Lazy"), ("eager", "Eager")])
def test_the_run_mode_is_registered(
    server: KiwiServer, new_worker: NewWorker, run_mode: str, word: str
) -> None:
    with greeter(new_worker(server, run_mode=run_mode, wait=1)):
        assert server.wait_for_registration()["run_mode"] == word


def test_the_registered_port_is_the_bound_one(server: KiwiServer, new_worker: NewWorker) -> None:
    with greeter(new_worker(server)) as worker:
        port = server.wait_for_registration()["port"]
        assert port == worker.probe_port
        assert 0 < port < 65536
        assert server.probe().startswith("ACK:")


def test_an_eager_worker_registers_no_address(server: KiwiServer, new_worker: NewWorker) -> None:
    with greeter(new_worker(server, run_mode="eager", wait=1)) as worker:
        registration = server.wait_for_registration()
        assert worker.probe_port is None
    assert set(registration) == {
        "worker_id", "service_id", "run_mode", "methods", "version", "tags",
        "supported_executors", "platform", "interactive_desktop", "browser_runtime",
    }  # fmt: skip


@pytest.mark.parametrize("run_mode", ["lazy", "eager"])
def test_an_advertised_address_is_registered(
    server: KiwiServer, new_worker: NewWorker, run_mode: str
) -> None:
    server.probes = False
    worker = greeter(
        new_worker(server, run_mode=run_mode, wait=1, advertised_ip="192.168.1.20", advertised_port=55222)
    )
    with worker:
        registration = server.wait_for_registration()
    assert (registration["ip"], registration["port"]) == ("192.168.1.20", 55222)


def test_handlers_read_the_application_settings(new_worker: NewWorker) -> None:
    given = {"db_password": "marked-setting", "hint": "x"}
    with MisbehavingServer.kiwi(settings=given) as server:
        worker = new_worker(server)

        @worker.method
        def read(ctx: Context) -> list[str]:
            return [ctx.settings["db_password"], ctx.settings.get("other", "none"), repr(ctx.settings)]

        with worker:
            result = server.wait_for_response(server.enqueue("read"))["result"]
    assert result[:2] == ["marked-setting", "none"]
    assert "marked-setting" not in result[2]
    assert "db_password" in result[2]


@pytest.mark.parametrize("body", [b"", b"null", b"{}", b'{"a": null}', b"[]", b"true", b'"ok"'])
def test_a_registration_without_settings_is_fine(
    server: KiwiServer, new_worker: NewWorker, body: bytes
) -> None:
    server.fault("register", Status(200, body), after=True)
    worker = new_worker(server)

    @worker.method
    def count(ctx: Context) -> int:
        return len(ctx.settings)

    with worker:
        assert server.wait_for_response(server.enqueue("count"))["result"] == 0
    assert len(server.registrations) == 1


def test_it_registers_once_however_tokens_and_heartbeats_go(
    server: KiwiServer, new_worker: NewWorker
) -> None:
    worker = greeter(new_worker(server, heartbeat_delay=0.02, when_forgotten="stay"))
    with worker:
        server.wait_for_calls("heartbeat", 2)
        server.expire_tokens()
        server.forget_workers()
        server.wait_for_calls("heartbeat", len(server.calls_named("heartbeat")) + 6)
        server.remember_workers()
        server.assert_answered_once(server.enqueue("hello"), "success")
        assert len(server.registrations) == 1
    with worker:
        server.wait_for_registration(2)
    assert len(server.calls_named("register")) == 2


# The request loop


def test_a_drain_is_one_get_that_empties_the_queue(server: KiwiServer, new_worker: NewWorker) -> None:
    server.probes = False
    worker = greeter(new_worker(server))
    ids = [server.enqueue("hello", {"name": str(number)}, worker_id="worker-1") for number in range(50)]
    with worker:
        results = [server.assert_answered_once(request_id, "success")["result"] for request_id in ids]
        [drain] = server.calls_named("drain")
    assert results == [f"hello {number}" for number in range(50)]
    assert (drain.method, drain.path, drain.query) == ("GET", "/worker/messages", {})
    assert drain.body == b""


def test_eager_mode_waits_for_work(server: KiwiServer, new_worker: NewWorker) -> None:
    with greeter(new_worker(server, run_mode="eager", wait=7)):
        drain = server.wait_for_calls("drain", ended=False)[0]
        assert drain.query == {"wait": "7"}
        assert drain.outcome == "pending", "it hangs as long as there is no work"
        request_id = server.enqueue("hello")
        server.assert_answered_once(request_id, "success")
        assert drain.outcome == "answered"
        server.wait_for_calls("drain", 2, ended=False)


def test_eager_mode_waits_again_when_the_time_is_over(server: KiwiServer, new_worker: NewWorker) -> None:
    with greeter(new_worker(server, run_mode="eager", wait=0.3)):
        drains = server.wait_for_calls("drain", 3)
        assert all(drain.query == {"wait": "0.3"} for drain in drains)
        server.assert_answered_once(server.enqueue("hello"), "success")


def test_a_lock_is_asked_for_only_when_required(server: KiwiServer, new_worker: NewWorker) -> None:
    with greeter(new_worker(server)):
        free, locked = server.enqueue("hello"), server.enqueue("hello", lock_required=True)
        server.assert_answered_once(free, "success")
        server.assert_answered_once(locked, "success")
        [lock] = server.calls_named("lock")
    assert (lock.method, lock.path, lock.body) == ("PUT", f"/worker/lock_request/{locked}", b"")
    assert server.locks == {locked: "worker-1"}
    names = [call.name for call in server.calls if locked in call.path or locked.encode() in call.body]
    assert names == ["lock", "respond"], "the lock comes first"


@pytest.mark.parametrize("status", [200, 201, 204])
def test_any_2xx_to_a_lock_means_it_is_ours(server: KiwiServer, new_worker: NewWorker, status: int) -> None:
    server.fault("lock", Status(status), after=True)
    with greeter(new_worker(server)):
        server.assert_answered_once(server.enqueue("hello", lock_required=True), "success")


@pytest.mark.parametrize("status", [400, 403, 404, 409, 410, 423])
def test_anything_else_to_a_lock_means_skip(server: KiwiServer, new_worker: NewWorker, status: int) -> None:
    ran: list[str] = []
    worker = greeter(new_worker(server))

    @worker.method
    def note(ctx: Context) -> None:
        ran.append(ctx.request_id)

    with worker:
        server.refuse_locks("theirs", status=status)
        server.enqueue("note", lock_required=True, request_id="theirs")
        server.wait_for_calls("lock")
        server.assert_answered_once(server.enqueue("hello"), "success")
    assert ran == []
    assert len(server.calls_named("lock")) == 1
    assert [response["request_id"] for response in server.responses].count("theirs") == 0


def test_of_two_workers_one_runs_a_locked_request(server: KiwiServer, new_worker: NewWorker) -> None:
    ran: list[str] = []

    def note(ctx: Context) -> str:
        ran.append(ctx.request_id)
        return ctx.request_id

    workers = [new_worker(server, run_mode="eager", wait=5), new_worker(server)]
    for worker in workers:
        worker.method(note)
    with workers[0], workers[1]:
        server.wait_for_registration(2)
        ids = [server.enqueue("note", lock_required=True) for _ in range(30)]
        for request_id in ids:
            server.assert_answered_once(request_id, "success")
    assert sorted(ran) == sorted(ids)


def test_the_worker_sees_the_bare_method_name(server: KiwiServer, new_worker: NewWorker) -> None:
    worker = new_worker(server)

    @worker.method
    def name(ctx: Context) -> str:
        return ctx.method

    with worker:
        assert server.wait_for_registration()["methods"] == ["name"]
        assert server.wait_for_response(server.enqueue("name"))["result"] == "name"
        with_service = server.assert_answered_once(server.enqueue("test-service/name"), "error")
    assert "`test-service/name`" in with_service["error_text"]


def test_unknown_methods_post_an_error(server: KiwiServer, new_worker: NewWorker) -> None:
    with greeter(new_worker(server)):
        response = server.assert_answered_once(server.enqueue("helo"), "error")
    assert response["error_text"] == "unknown method `helo`, known: `hello`"


@pytest.mark.parametrize(
    ("params", "named"),
    [
        ({"name": 5}, "`name` expected `str`, got `int`"),
        ({"nam": "x"}, "`nam`"),
        ([1, 2, 3], "3"),
        ("x", "str"),
    ],
)
def test_invalid_parameters_post_an_error(
    server: KiwiServer, new_worker: NewWorker, params: object, named: str
) -> None:
    with greeter(new_worker(server)):
        response = server.assert_answered_once(server.enqueue("hello", params), "error")
    assert response["result"] is None
    assert named in response["error_text"]


def test_a_response_has_four_fields_on_success(server: KiwiServer, new_worker: NewWorker) -> None:
    with greeter(new_worker(server)):
        request_id = server.enqueue("hello")
        server.wait_for_response(request_id)
        [call] = server.calls_named("respond")
    assert (call.method, call.path) == ("POST", "/worker/response")
    assert call.request.header("content-type") == "application/json"
    assert json.loads(call.body) == {
        "request_id": request_id,
        "status": "success",
        "error_text": None,
        "result": "hello world",
    }


def test_a_method_that_raises_failed_and_one_that_cannot_run_is_an_error(
    server: KiwiServer, new_worker: NewWorker
) -> None:
    worker = greeter(new_worker(server))

    @worker.method
    def broken() -> None:
        raise LookupError("no such customer")

    with worker:
        failed = server.assert_answered_once(server.enqueue("broken"), "failed")
        error = server.assert_answered_once(server.enqueue("unheard of"), "error")
    assert failed["error_text"] == "LookupError: no such customer"
    assert failed["result"] is None
    assert error["result"] is None
    assert error["error_text"].startswith("unknown method")


# Lazy-mode wake-up probe


def _free_port() -> int:
    """A port below those that systems give out, so that no client takes it before it is bound."""
    for port in random.sample(range(20_000, 32_000), 1000):
        with socket.socket() as tcp, socket.socket(type=socket.SOCK_DGRAM) as udp:
            try:
                tcp.bind(("0.0.0.0", port))
                udp.bind(("0.0.0.0", port))
            except OSError:
                continue
            return port
    raise AssertionError("no port was free")


def test_the_probe_is_awaited_on_every_address_and_the_configured_port(
    server: KiwiServer, new_worker: NewWorker
) -> None:
    port = _free_port()
    assert KiwiSettings.load({}, environ={}).wakeup_probe_service_port == 55222
    assert KiwiSettings.load({}, environ={}).wakeup_probe_bind == "0.0.0.0"
    worker = greeter(new_worker(server, wakeup_probe_service_port=port, wakeup_probe_bind="0.0.0.0"))
    with worker, socket.socket(type=socket.SOCK_DGRAM) as sock:
        assert worker.probe_port == port
        sock.settimeout(LIMIT_SECONDS)
        for address in ("127.0.0.1", "127.0.0.2"):
            sock.connect((address, port))
            sock.send(b'{"PacketId":"p-%s"}' % address.encode())
            assert sock.recv(1000) == b"ACK:p-" + address.encode()


@pytest.mark.parametrize("parameters", ["null", '"request-1"'])
def test_the_packet_of_the_page_is_acknowledged_on_its_socket_and_drains(
    server: KiwiServer, new_worker: NewWorker, parameters: str
) -> None:
    server.probes = False
    start = '{"PacketId":"0b1c9d3e-7a0f-4a43-8c39-2f3c1e5d9a11",'
    rest = '"Message":{"MessageText":"pull_signal","Parameters":' + parameters + "}}"
    packet = (start + rest).encode("ascii")
    with greeter(new_worker(server)) as worker, socket.socket(type=socket.SOCK_DGRAM) as sock:
        server.wait_for_calls("drain")
        request_id = server.enqueue("hello")
        sock.settimeout(LIMIT_SECONDS)
        sock.connect(("127.0.0.1", worker.probe_port or 0))
        sock.send(packet)
        assert sock.recv(1000) == b"ACK:0b1c9d3e-7a0f-4a43-8c39-2f3c1e5d9a11"
        server.assert_answered_once(request_id, "success")
        assert len(server.calls_named("drain")) == 2


def test_a_probe_over_tcp_is_acknowledged_on_its_connection_and_drains(
    server: KiwiServer, new_worker: NewWorker
) -> None:
    server.probes = False
    with greeter(new_worker(server)):
        server.wait_for_calls("drain")
        request_id = server.enqueue("hello")
        assert server.probe(transport="tcp").startswith("ACK:")
        server.assert_answered_once(request_id, "success")


# Feedback


def test_feedback_has_six_short_keys(server: KiwiServer, new_worker: NewWorker) -> None:
    worker = new_worker(server)

    @worker.method
    def longtask(ctx: Context) -> None:
        ctx.feedback("half of it", type=7, persist=True)

    with worker:
        request_id = server.enqueue("longtask")
        server.wait_for_response(request_id)
        worker.feedback("nightly", {"rows": 3})
        server.wait_for_calls("feedback", 2)
        call = server.calls_named("feedback")[0]
    assert (call.method, call.path) == ("POST", "/worker/feedback")
    assert server.feedbacks == [
        {"rid": request_id, "st": 1, "sn": "longtask", "ft": 7, "pr": True, "fc": "half of it"},
        {"rid": None, "st": 2, "sn": "nightly", "ft": 0, "pr": False, "fc": '{"rows":3}'},
    ]


@pytest.mark.parametrize("status", [400, 401, 404, 413, 500, 503])
def test_failed_feedback_never_fails_the_method(
    server: KiwiServer, new_worker: NewWorker, status: int
) -> None:
    server.fault("feedback", Status(status), times="always")
    worker = new_worker(server)

    @worker.method
    def longtask(ctx: Context) -> str:
        ctx.feedback("on its way")
        return "done"

    with worker:
        response = server.assert_answered_once(server.enqueue("longtask"), "success")
        server.wait_for_calls("feedback")
    assert response["result"] == "done"


# Heartbeat and shutdown


def test_heartbeats_come_every_delay(server: KiwiServer, new_worker: NewWorker) -> None:
    with greeter(new_worker(server, heartbeat_delay=0.05, worker_id="w/1 ü")):
        beats = server.wait_for_calls("heartbeat", 5)
    assert {(call.method, call.path) for call in beats} == {("GET", "/worker/heartbeat/w%2F1%20%C3%BC")}
    moments = [moment for _, moment in server.heartbeats[:5]]
    assert moments[4] - moments[0] >= 0.15, "they are a delay apart"


def test_a_bare_false_is_understood(server: KiwiServer, new_worker: NewWorker) -> None:
    worker = greeter(new_worker(server, heartbeat_delay=0.02))
    with worker:
        server.wait_for_calls("heartbeat", 5)
        assert worker.failure is None
        server.forget_workers()
        eventually(lambda: worker.failure is not None)


PROGRAM = """
import time
from kiwi_worker import Context, Worker
worker = Worker()

@worker.method
def finish(ctx: Context) -> str:
    while not ctx.is_stopping:
        time.sleep(0.005)
    time.sleep(0.2)
    return "finished"

worker.run()
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_tells_the_middleware_finishes_and_exits(server: KiwiServer, number: signal.Signals) -> None:
    with running(PROGRAM, **worker_environment(server)) as process:
        server.wait_for_registration()
        request_id = server.enqueue("finish")
        server.wait_until(lambda: not server.queue_size())
        server.wait_for_calls("drain", where=lambda call: call.acted)
        process.signal(number)
        status, output, errors = process.end()
        server.assert_answered_once(request_id, "success")
    assert (status, output, errors) == (0, "", "")
    names = [call.name for call in server.calls]
    [shutdown] = server.calls_named("shutdown")
    assert (shutdown.method, shutdown.path) == ("PUT", "/worker/notify_worker_shutdown/worker-1")
    assert names.index("shutdown") < names.index("respond")


# Not yet available


def test_connected_mode_is_refused_by_name(server: KiwiServer) -> None:
    with pytest.raises(SettingsError, match="run_mode"):
        Worker(**worker_settings(server, run_mode="connected"))
    with pytest.raises(SettingsError, match="eager"):
        KiwiSettings.load({}, environ={"KIWI_RUN_MODE": "Connected"})


@pytest.mark.parametrize(
    "call", ["register", "drain", "lock", "respond", "feedback", "heartbeat", "shutdown"]
)
def test_a_401_on_any_call_brings_one_token_and_one_repetition(
    server: KiwiServer, new_worker: NewWorker, call: str
) -> None:
    server.fault(call, ExpiredToken())
    worker = new_worker(server)
    told = threading.Event()

    @worker.method
    def longtask(ctx: Context) -> str:
        ctx.feedback("x")
        told.set()
        return "done"

    with worker:
        server.assert_answered_once(server.enqueue("longtask", lock_required=True), "success")
        assert told.is_set()
        server.wait_for_calls("feedback", where=lambda one: one.status == 200)
        server.wait_for_calls("heartbeat", where=lambda one: one.status == 200)
    server.wait_for_calls("shutdown", where=lambda one: one.status == 200)
    struck = [one for one in server.calls_named(call) if one.status == 401]
    assert len(struck) == 1
    assert len(server.calls_named("token")) == 2
    again = [one for one in server.calls_named(call) if one.number > struck[0].number]
    assert again[0].status == 200
    assert (again[0].path, again[0].body) == (struck[0].path, struck[0].body)
