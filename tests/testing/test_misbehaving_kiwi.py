"""The Kiwi side when nothing is armed: what the protocol page asks of a middleware."""

from __future__ import annotations

import http.client
import json
import shutil
import socket
import ssl
import subprocess
import threading
from pathlib import Path

import jwt
import pytest

from kiwi_worker.testing import DropBefore, KiwiServer, MisbehavingServer, Status
from kiwi_worker.testing.kiwi_tokens import TokenShape

from .conftest import LIMIT, KiwiClient, read_all


def test_a_token_carries_the_claims_and_can_be_verified(kiwi: KiwiServer, worker: KiwiClient) -> None:
    issued = worker.token()
    claims = jwt.decode(issued["access_token"], kiwi.jwt_key, algorithms=["HS256"])
    assert (claims["sub"], claims["role"], claims["service_id"]) == ("w1", "worker", "test-service")
    assert issued["expires_in"] == 3600


@pytest.mark.parametrize("shape", ["object", "token", "string", "opaque"])
def test_the_shapes_of_the_token_answer(shape: TokenShape) -> None:
    with MisbehavingServer.kiwi(token_shape=shape, send_expires_in=False, claims={"extra": 1}) as server:
        client = KiwiClient(server)
        answer: object = client.token()
        client.close()
    token = answer
    if isinstance(answer, dict):
        assert "expires_in" not in answer
        token = answer["token" if shape == "token" else "access_token"]
    assert isinstance(token, str)
    assert token.count(".") == (0 if shape == "opaque" else 2)
    if shape != "opaque":
        assert jwt.decode(token, options={"verify_signature": False})["extra"] == 1


def test_wrong_secrets_and_changed_ones_are_401(kiwi: KiwiServer, worker: KiwiClient) -> None:
    with pytest.raises(AssertionError, match="invalid_client"):
        worker.token(auth_secret="wrong")
    kiwi.change_secret("a+b/c=%41&é ")
    assert worker.token(auth_secret="a+b/c=%41&é ")["access_token"]
    assert worker.drain() == []


def test_refresh_tokens_work_once() -> None:
    with MisbehavingServer.kiwi(refresh_tokens=True) as server:
        client = KiwiClient(server)
        refresh = client.token()["refresh_token"]
        form = {"grant_type": "refresh_token", "refresh_token": refresh, "auth_secret": ""}
        assert client.token(**form)["refresh_token"] != refresh
        with pytest.raises(AssertionError, match="invalid_client"):
            client.token(**form)
        client.close()


def test_tokens_end_by_lifetime_and_on_command(kiwi: KiwiServer, worker: KiwiClient) -> None:
    kiwi.expire_tokens()
    assert worker.call("GET", "/worker/messages")[0].status == 401
    with MisbehavingServer.kiwi(token_lifetime_seconds=0.05) as server:
        client = KiwiClient(server).log_in()
        while client.call("GET", "/worker/messages")[0].status != 401:
            server.wait_until(lambda: True)
        client.close()


def test_a_drain_takes_everything_once_in_order(kiwi: KiwiServer, worker: KiwiClient) -> None:
    sent = [kiwi.enqueue("hello", {"n": n}, request_id=f"r{n}") for n in range(5)]
    assert kiwi.queue_size() == 5
    messages = worker.drain()
    assert [message["request_id"] for message in messages] == sent == [f"r{n}" for n in range(5)]
    assert messages[3] == {"request_id": "r3", "method": "hello", "lock_required": False, "params": {"n": 3}}
    assert worker.drain() == []


def test_raw_elements_leave_as_they_are(kiwi: KiwiServer, worker: KiwiClient) -> None:
    kiwi.enqueue_raw(b'{"request_id": 5')
    kiwi.enqueue_raw(b"\xff\xfe")
    assert worker.call("GET", "/worker/messages")[1] == b'[{"request_id": 5,\xff\xfe]'


def test_an_eager_drain_hangs_until_work_comes(kiwi: KiwiServer, worker: KiwiClient) -> None:
    found: list[object] = []
    thread = threading.Thread(target=lambda: found.extend(worker.drain("?wait=60")))
    thread.start()
    kiwi.wait_for_calls("drain", ended=False)
    request_id = kiwi.enqueue("hello")
    thread.join(LIMIT)
    assert [message["request_id"] for message in found if isinstance(message, dict)] == [request_id]


def test_an_eager_drain_ends_empty_after_its_wait_and_on_shutdown(
    kiwi: KiwiServer, worker: KiwiClient
) -> None:
    assert worker.drain("?wait=0.05") == []
    with worker.raw("GET", "/worker/messages?wait=60") as sock:
        kiwi.wait_for_calls("drain", 2, ended=False)
        assert worker.call("PUT", "/worker/notify_worker_shutdown/w1")[0].status == 200
        assert sock.recv(65536).endswith(b"[]")
    assert kiwi.shutdowns == ["w1"]


def test_a_client_that_left_takes_no_messages(kiwi: KiwiServer, worker: KiwiClient) -> None:
    worker.raw("GET", "/worker/messages?wait=60").close()
    kiwi.wait_for_calls("drain")
    request_id = kiwi.enqueue("hello")
    assert [message["request_id"] for message in worker.drain()] == [request_id]


def test_locks_are_owned_per_worker(kiwi: KiwiServer, worker: KiwiClient) -> None:
    other = KiwiClient(kiwi, "w2").log_in()
    request_id = kiwi.enqueue("hello", lock_required=True, request_id="a/b c")
    assert [client.drain()[0]["request_id"] for client in (worker, other)] == [request_id, request_id]
    path = "/worker/lock_request/a%2Fb%20c"
    statuses = [client.call("PUT", path)[0].status for client in (worker, other, worker)]
    assert statuses == [200, 409, 200]
    assert kiwi.locks == {"a/b c": "w1"}
    other.close()


def test_locks_can_be_refused_and_held_by_others(kiwi: KiwiServer, worker: KiwiClient) -> None:
    def lock(request_id: str) -> int:
        return worker.call("PUT", f"/worker/lock_request/{request_id}")[0].status

    kiwi.refuse_locks("r1", status=423)
    kiwi.lock_for("r2", "somebody")
    assert [lock("r1"), lock("r2"), lock("r3")] == [423, 409, 200]
    kiwi.allow_locks()
    assert lock("r1") == 200
    kiwi.refuse_locks()
    assert lock("r4") == 409


def test_the_first_response_counts(kiwi: KiwiServer, worker: KiwiClient) -> None:
    assert [worker.respond("r1", 1), worker.respond("r1", 2), worker.respond("r2", 3)] == [200, 409, 200]
    assert [body["result"] for body in kiwi.responses] == [1, 3]
    assert [body["result"] for body in kiwi.refused_responses] == [2]
    assert kiwi.wait_for_response("r2")["result"] == 3


def test_waiting_in_vain_tells_the_last_calls(kiwi: KiwiServer, worker: KiwiClient) -> None:
    worker.drain()
    with pytest.raises(
        TimeoutError, match=r"a response to r1 did not come in 0 s; last calls: .*drain -> 200"
    ):
        kiwi.wait_for_response("r1", timeout=0)


def test_answered_once(kiwi: KiwiServer, worker: KiwiClient) -> None:
    worker.respond("r1", 1)
    assert kiwi.assert_answered_once("r1", "success")["result"] == 1
    with pytest.raises(AssertionError, match="not with status 'failed'"):
        kiwi.assert_answered_once("r1", "failed")
    with pytest.raises(AssertionError, match="a response to r9 did not come"):
        kiwi.assert_answered_once("r9", timeout=0)
    worker.respond("r1", 2)
    with pytest.raises(AssertionError, match=r"result 1\) and then .*result 2\)"):
        kiwi.assert_answered_once("r1")


def test_answered_twice_is_right_only_when_the_answer_was_lost(kiwi: KiwiServer, worker: KiwiClient) -> None:
    kiwi.fault("respond", DropBefore(), after=True)
    assert read_all(worker.raw("POST", "/worker/response", worker.response("r1"))) == b""
    assert worker.respond("r1") == 409
    kiwi.assert_answered_once("r1", "success")
    worker.respond("r1")
    with pytest.raises(AssertionError, match=r"again .* although the server had taken it"):
        kiwi.assert_answered_once("r1")


def test_registration_settings_feedback_and_heartbeats_are_kept() -> None:
    with MisbehavingServer.kiwi(settings={"db": "x"}) as server:
        client = KiwiClient(server).log_in()
        assert client.call("GET", "/worker/heartbeat/w1")[1] == b"false"
        body = {"worker_id": "w1", "methods": ["hello"]}
        assert json.loads(client.post("/worker/registration", body)[1]) == {"db": "x"}
        assert client.call("GET", "/worker/heartbeat/w1")[1] == b"true"
        server.forget_workers()
        assert client.call("GET", "/worker/heartbeat/w1")[1] == b"false"
        server.remember_workers()
        assert client.call("GET", "/worker/heartbeat/w1")[1] == b"true"
        client.post("/worker/feedback", {"rid": "r1"})
        assert server.wait_for_registration() == body
        assert server.feedbacks == [{"rid": "r1"}]
        assert [worker_id for worker_id, _ in server.heartbeats] == ["w1"] * 4
        client.close()


def test_calls_tell_what_came(kiwi: KiwiServer, worker: KiwiClient) -> None:
    worker.headers["X-Test"] = "yes"
    worker.call("GET", "/worker/messages?wait=0")
    call = kiwi.calls[-1]
    assert (call.name, call.method, call.path, call.query) == (
        "drain",
        "GET",
        "/worker/messages",
        {"wait": "0"},
    )
    assert (call.worker_id, call.request.header("x-test"), call.status) == ("w1", "yes", 200)
    assert len({call.connection for call in kiwi.calls}) == 1
    assert [call.name for call in kiwi.calls] == ["token", "register", "drain"]


@pytest.mark.parametrize("transport", ["udp", "tcp"])
def test_probe_returns_the_ack(kiwi: KiwiServer, worker: KiwiClient, transport: str) -> None:
    kind = socket.SOCK_DGRAM if transport == "udp" else socket.SOCK_STREAM
    with socket.socket(socket.AF_INET, kind) as listening:
        listening.bind(("127.0.0.1", 0))
        if transport == "tcp":
            listening.listen()
        worker.register(run_mode="Lazy", ip="127.0.0.1", port=listening.getsockname()[1])
        answering = threading.Thread(target=_answer_probe, args=(listening,))
        answering.start()
        ack = kiwi.probe("w1", transport=transport)  # type: ignore[arg-type]
        answering.join(LIMIT)
    assert ack.startswith("ACK:")
    if transport == "udp":
        assert kiwi.probe_answers == [ack]


def test_enqueueing_wakes_lazy_workers(kiwi: KiwiServer, worker: KiwiClient) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as listening:
        listening.bind(("127.0.0.1", 0))
        listening.settimeout(LIMIT)
        worker.register(run_mode="Lazy", ip="127.0.0.1", port=listening.getsockname()[1])
        request_id = kiwi.enqueue("hello")
        packet = json.loads(listening.recv(65536))
        assert packet["Message"] == {"MessageText": "pull_signal", "Parameters": request_id}
        kiwi.send_probe_bytes(b"nonsense")
        assert listening.recv(65536) == b"nonsense"


def test_probing_nobody_is_an_error_that_says_so(kiwi: KiwiServer) -> None:
    with pytest.raises(LookupError, match="no worker w9 has registered"):
        kiwi.probe("w9")


def test_a_prefix_an_idle_limit_and_a_restart_on_the_same_port() -> None:
    with MisbehavingServer.kiwi(prefix="/gate", keep_alive_seconds=0.05) as server:
        assert server.url.endswith("/gate")
        client = KiwiClient(server)
        with client.raw("POST", "/gate/worker/auth_token") as sock:
            assert sock.recv(65536).startswith(b"HTTP/1.1 400")
            assert sock.recv(1) == b""
        assert client.call("POST", "/worker/auth_token", b"")[0].status == 404
        client.close()
        address = server.address
        server.stop()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(address)
        server.start()
        assert server.address == address
        assert client.call("POST", "/gate/worker/auth_token", b"")[0].status == 400
        client.close()


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")
def test_it_serves_tls_and_stops_with_a_hanging_drain(tmp_path: Path) -> None:
    command = (
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 "
        "-subj /CN=localhost -addext subjectAltName=IP:127.0.0.1 -keyout key.pem -out cert.pem"
    )
    subprocess.run(command.split(" "), cwd=tmp_path, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
    trusting = ssl.create_default_context(cafile=str(tmp_path / "cert.pem"))
    with MisbehavingServer.kiwi(ssl_context=context) as server:
        assert server.url.startswith("https://")
        client = KiwiClient(server)
        client.connection = http.client.HTTPSConnection(*server.address, timeout=LIMIT, context=trusting)
        client.log_in()
        client.send("GET", "/worker/messages?wait=60")
        server.wait_for_calls("drain", ended=False)
        plain = socket.create_connection(server.address, LIMIT)
    client.close()
    plain.close()


def test_it_listens_on_ipv6() -> None:
    with MisbehavingServer.kiwi(host="::1") as server:
        assert server.url.startswith("http://[::1]:")
        client = KiwiClient(server).log_in()
        with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as listening:
            listening.bind(("::1", 0))
            listening.settimeout(LIMIT)
            client.register(run_mode="Lazy", ip="::1", port=listening.getsockname()[1])
            server.enqueue("hello")
            assert b"pull_signal" in listening.recv(65536)
        client.close()


def test_a_wait_that_is_no_number_is_400(worker: KiwiClient) -> None:
    assert worker.call("GET", "/worker/messages?wait=long")[0].status == 400


def test_ten_thousand_messages_are_one_drain(kiwi: KiwiServer, worker: KiwiClient) -> None:
    for number in range(10_000):
        kiwi.enqueue("hello", number, lock_required=number % 2 == 0)
    assert len(worker.drain()) == 10_000
    assert worker.drain() == []


def test_what_is_no_http_gets_no_answer_and_harms_nobody(kiwi: KiwiServer, worker: KiwiClient) -> None:
    with socket.create_connection(kiwi.address, LIMIT) as sock:
        sock.sendall(b"\x16\x03\x01 hello\r\n\r\n")
        assert sock.recv(1) == b""
    assert worker.drain() == []


def test_a_chunked_request_body_is_read(kiwi: KiwiServer, worker: KiwiClient) -> None:
    worker.connection.request(
        "POST", "/worker/response", iter([worker.response("r1")]), worker.headers, encode_chunked=True
    )
    answer = worker.connection.getresponse()
    assert (answer.status, answer.read()) == (200, b"true")
    assert kiwi.responses[0]["request_id"] == "r1"


def test_protocol_violations_are_listed(kiwi: KiwiServer, worker: KiwiClient) -> None:
    worker.drain()
    kiwi.assert_protocol_kept()
    early = KiwiClient(kiwi, "w2").log_in()
    early.drain()
    early.register(methods=["svc/hello"], run_mode="Lazy")
    request_id = kiwi.enqueue("hello", lock_required=True)
    worker.post("/worker/response", {"request_id": request_id, "status": "done"})
    worker.post("/worker/feedback", {"rid": "r1", "st": 3})
    worker.call("GET", "/worker/heartbeat/somebody")
    worker.call("GET", "/worker/nonsense")
    early.close()
    with pytest.raises(AssertionError) as caught:
        kiwi.assert_protocol_kept()
    for text in (
        "(drain): it came before the registration",
        "methods is ['svc/hello'], not a list of bare names",
        "a lazy worker needs ip and port",
        "status is 'done'",
        f"it answers {request_id!r}, whose lock nobody holds",
        "fc is None",
        "st is 3, not 1 or 2",
        "the path names 'somebody', the token 'w1'",
        "GET /worker/nonsense is no call of the protocol",
    ):
        assert text in str(caught.value)


def test_waiting_for_calls_counts_only_what_is_asked(kiwi: KiwiServer, worker: KiwiClient) -> None:
    kiwi.fault("heartbeat", Status(500))
    for _ in range(2):
        worker.call("GET", "/worker/heartbeat/w1")
    assert len(kiwi.wait_for_calls("heartbeat", 2)) == 2
    assert [call.status for call in kiwi.wait_for_calls("heartbeat", where=lambda call: call.acted)] == [200]
    with pytest.raises(TimeoutError, match="3 x heartbeat did not come"):
        kiwi.wait_for_calls("heartbeat", 3, timeout=0)


def _answer_probe(listening: socket.socket) -> None:
    if listening.type == socket.SOCK_DGRAM:
        packet, sender = listening.recvfrom(65536)
        listening.sendto(b"ACK:" + json.loads(packet)["PacketId"].encode(), sender)
        return
    sock, _ = listening.accept()
    with sock:
        sock.sendall(b"ACK:" + json.loads(sock.recv(65536))["PacketId"].encode())
