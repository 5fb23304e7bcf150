"""Every fault, seen with a plain client: what really leaves the server."""

from __future__ import annotations

import email.utils
import http.client
import json
import socket
import threading
import time

import jwt
import pytest

from kiwi_worker.testing import (
    ByteOrderMark,
    Chunked,
    CloseKeepAlive,
    DropAfter,
    DropBefore,
    DuplicateMessages,
    EmptyBody,
    ExpiredToken,
    ExtraBytes,
    Fault,
    HalfOpen,
    Html502,
    KiwiServer,
    MisbehavingServer,
    NotHttp,
    PartialBody,
    Redeliver,
    Redirect,
    ReorderMessages,
    SlowLink,
    Stall,
    Status,
    TooManyRequests,
    UntilClose,
    WrongClock,
    WrongJson,
    WrongLength,
)
from kiwi_worker.testing.faults import fault_names

from .conftest import KiwiClient, read_all


def test_every_fault_is_tried_here() -> None:
    assert {name for name in fault_names() if name not in globals()} == set()


@pytest.mark.parametrize("after", [False, True])
def test_drop_before_sends_nothing_and_acts_only_when_told_after(
    kiwi: KiwiServer, worker: KiwiClient, after: bool
) -> None:
    request_id = kiwi.enqueue("hello")
    worker.drain()
    kiwi.fault("respond", DropBefore(), after=after)
    assert read_all(worker.raw("POST", "/worker/response", worker.response(request_id))) == b""
    assert [body["request_id"] for body in kiwi.responses] == ([request_id] if after else [])
    call = kiwi.wait_for_calls("respond")[0]
    assert (call.acted, call.status, call.outcome, call.fault) == (after, None, "cut", DropBefore())


def test_drop_before_can_reset(kiwi: KiwiServer, worker: KiwiClient) -> None:
    kiwi.fault("drain", DropBefore(reset=True))
    with worker.raw("GET", "/worker/messages") as sock, pytest.raises(ConnectionResetError):
        sock.recv(1)


def test_drop_after_sends_exactly_so_many_bytes(kiwi: KiwiServer, worker: KiwiClient) -> None:
    kiwi.fault("heartbeat", DropAfter(17))
    assert read_all(worker.raw("GET", "/worker/heartbeat/w1")) == b"HTTP/1.1 200 OK\r\n"
    assert kiwi.heartbeats[0][0] == "w1"


def test_partial_body_of_a_drain_takes_the_messages(kiwi: KiwiServer, worker: KiwiClient) -> None:
    kiwi.enqueue("hello")
    kiwi.fault("drain", PartialBody())
    worker.send("GET", "/worker/messages")
    answer = worker.connection.getresponse()
    with pytest.raises(http.client.IncompleteRead) as caught:
        answer.read()
    assert caught.value.partial.startswith(b'[{"request_id"')
    worker.close()
    assert worker.drain() == []


def test_partial_body_waits_for_a_drain_that_carries_messages(kiwi: KiwiServer, worker: KiwiClient) -> None:
    armed = kiwi.fault("drain", PartialBody())
    assert worker.drain() == []
    assert armed.struck == 0
    kiwi.fault("drain", PartialBody(n_bytes=1), idle_too=True)
    armed.disarm()
    assert read_all(worker.raw("GET", "/worker/messages")).endswith(b"\r\n\r\n[")


@pytest.mark.parametrize("after", [False, True])
def test_stall_is_late_and_right(kiwi: KiwiServer, worker: KiwiClient, after: bool) -> None:
    request_id = kiwi.enqueue("hello")
    worker.drain()
    kiwi.fault("respond", Stall(60), after=after)
    with worker.raw("POST", "/worker/response", worker.response(request_id)) as sock:
        call = kiwi.wait_for_calls("respond", ended=False)[0]
        kiwi.wait_until(lambda: call.fault == Stall(60))
        assert call.acted is after
        sock.settimeout(0.05)
        with pytest.raises(TimeoutError):
            sock.recv(1)


def test_stall_then_answers(kiwi: KiwiServer, worker: KiwiClient) -> None:
    kiwi.fault("heartbeat", Stall(0.2))
    started = time.monotonic()
    assert worker.call("GET", "/worker/heartbeat/w1")[1] == b"true"
    assert time.monotonic() - started >= 0.2


@pytest.mark.parametrize("after", [False, True])
def test_status_replaces_the_answer(kiwi: KiwiServer, worker: KiwiClient, after: bool) -> None:
    kiwi.fault("lock", Status(503, b"busy", "text/plain", (("X-Proxy", "yes"),)), after=after)
    answer, body = worker.call("PUT", "/worker/lock_request/r1")
    assert (answer.status, body, answer.getheader("X-Proxy")) == (503, b"busy", "yes")
    assert kiwi.locks == ({"r1": "w1"} if after else {})


def test_html_502(kiwi: KiwiServer, worker: KiwiClient) -> None:
    kiwi.fault("drain", Html502())
    answer, body = worker.call("GET", "/worker/messages")
    assert (answer.status, answer.getheader("Content-Type")) == (502, "text/html")
    assert body.startswith(b"<html>")


def test_wrong_json(kiwi: KiwiServer, worker: KiwiClient) -> None:
    kiwi.fault("heartbeat", WrongJson())
    answer, body = worker.call("GET", "/worker/heartbeat/w1")
    assert (answer.status, answer.getheader("Content-Type")) == (200, "application/json")
    with pytest.raises(json.JSONDecodeError):
        json.loads(body)


@pytest.mark.parametrize("status", [200, 204])
def test_empty_body(kiwi: KiwiServer, worker: KiwiClient, status: int) -> None:
    kiwi.fault("drain", EmptyBody(status))
    answer, body = worker.call("GET", "/worker/messages")
    assert (answer.status, body) == (status, b"")


def test_too_many_requests_in_seconds_and_as_a_date(kiwi: KiwiServer, worker: KiwiClient) -> None:
    kiwi.fault("heartbeat", TooManyRequests(7))
    kiwi.fault("heartbeat", TooManyRequests(60, as_date=True))
    kiwi.fault("heartbeat", TooManyRequests(None))
    answers = [worker.call("GET", "/worker/heartbeat/w1")[0] for _ in range(3)]
    assert [answer.status for answer in answers] == [429, 429, 429]
    seconds, date, none = (answer.getheader("Retry-After") for answer in answers)
    assert (seconds, none) == ("7", None)
    assert date is not None
    assert 30 < email.utils.parsedate_to_datetime(date).timestamp() - time.time() < 90


def test_redirect(kiwi: KiwiServer, worker: KiwiClient) -> None:
    kiwi.fault("drain", Redirect("http://elsewhere.example/worker/messages", 302))
    answer, _ = worker.call("GET", "/worker/messages")
    assert (answer.status, answer.getheader("Location")) == (302, "http://elsewhere.example/worker/messages")


def test_half_open_never_answers_and_keeps_the_connection(kiwi: KiwiServer, worker: KiwiClient) -> None:
    kiwi.fault("drain", HalfOpen())
    with worker.raw("GET", "/worker/messages") as sock:
        kiwi.wait_until(lambda: kiwi.calls_named("drain") and kiwi.calls_named("drain")[0].fault)
        sock.settimeout(0.1)
        with pytest.raises(TimeoutError):
            sock.recv(1)
        assert kiwi.calls_named("drain")[0].outcome == "cut"


def test_half_open_ends_with_the_server() -> None:
    with MisbehavingServer.kiwi() as server:
        server.fault("/nothing", HalfOpen())
        client = KiwiClient(server)
        sock = client.raw("GET", "/nothing")
        server.wait_for_calls("other", ended=False)
    assert read_all(sock) == b""


def test_not_http(kiwi: KiwiServer, worker: KiwiClient) -> None:
    kiwi.fault("drain", NotHttp(b"220 mail ready\r\n"))
    assert read_all(worker.raw("GET", "/worker/messages")) == b"220 mail ready\r\n"


def test_expired_token_is_refused_from_then_on(kiwi: KiwiServer, worker: KiwiClient) -> None:
    kiwi.fault("drain", ExpiredToken())
    assert worker.call("GET", "/worker/messages")[0].status == 401
    assert worker.call("GET", "/worker/heartbeat/w1")[0].status == 401
    assert worker.log_in().call("GET", "/worker/heartbeat/w1")[0].status == 200


def test_expired_token_on_token_hands_out_one_that_is_over(kiwi: KiwiServer, worker: KiwiClient) -> None:
    kiwi.fault("token", ExpiredToken())
    answer = worker.token()
    claims = jwt.decode(answer["access_token"], options={"verify_signature": False})
    assert claims["exp"] < time.time()
    assert answer["expires_in"] < 0
    worker.headers["Authorization"] = "Bearer " + answer["access_token"]
    assert worker.call("GET", "/worker/messages")[0].status == 401


@pytest.mark.parametrize("offset", [-7200.0, 7200.0])
def test_wrong_clock_moves_date_and_claims_and_no_lifetime(
    kiwi: KiwiServer, worker: KiwiClient, offset: float
) -> None:
    kiwi.fault("token", WrongClock(offset))
    kiwi.fault("heartbeat", WrongClock(offset))
    issued = worker.token()
    claims = jwt.decode(issued["access_token"], options={"verify_signature": False})
    assert abs(claims["iat"] - time.time() - offset) < 60
    assert claims["exp"] - claims["iat"] == issued["expires_in"] == 3600
    worker.headers["Authorization"] = "Bearer " + issued["access_token"]
    date = worker.call("GET", "/worker/heartbeat/w1")[0].getheader("Date")
    assert date is not None
    assert abs(email.utils.parsedate_to_datetime(date).timestamp() - time.time() - offset) < 60


def test_slow_link_comes_in_small_pieces(kiwi: KiwiServer, worker: KiwiClient) -> None:
    kiwi.fault("heartbeat", SlowLink(bytes_per_second=1000))
    started = time.monotonic()
    answer, body = worker.call("GET", "/worker/heartbeat/w1")
    assert body == b"true"
    assert time.monotonic() - started >= len(str(answer.headers)) / 1000


def test_close_keep_alive_answers_and_closes_without_saying_so(kiwi: KiwiServer, worker: KiwiClient) -> None:
    kiwi.fault("heartbeat", CloseKeepAlive())
    data = read_all(worker.raw("GET", "/worker/heartbeat/w1"))
    assert data.endswith(b"\r\n\r\ntrue")
    assert b"connection:" not in data.lower()
    assert kiwi.wait_for_calls("heartbeat")[0].outcome == "answered"


def test_close_keep_alive_can_reset_later(kiwi: KiwiServer, worker: KiwiClient) -> None:
    kiwi.fault("heartbeat", CloseKeepAlive(seconds=0.05, reset=True))
    with worker.raw("GET", "/worker/heartbeat/w1") as sock:
        assert sock.recv(65536).startswith(b"HTTP/1.1 200")
        with pytest.raises(ConnectionResetError):
            _read_to_the_end(sock)


def test_extra_bytes_follow_the_answer(kiwi: KiwiServer, worker: KiwiClient) -> None:
    kiwi.fault("heartbeat", ExtraBytes(b"left over"))
    with worker.raw("GET", "/worker/heartbeat/w1") as sock:
        data = b""
        while not data.endswith(b"left over"):
            data += sock.recv(65536)
    assert b"Content-Length: 4\r\n" in data
    assert data.endswith(b"\r\n\r\ntrueleft over")


@pytest.mark.parametrize(("difference", "length"), [(10, b"14"), (-3, b"1")])
def test_wrong_length(kiwi: KiwiServer, worker: KiwiClient, difference: int, length: bytes) -> None:
    kiwi.fault("heartbeat", WrongLength(difference))
    data = read_all(worker.raw("GET", "/worker/heartbeat/w1"))
    assert b"Content-Length: " + length + b"\r\n" in data
    assert data.endswith(b"\r\n\r\ntrue")


def test_chunked_is_a_whole_answer(kiwi: KiwiServer, worker: KiwiClient) -> None:
    kiwi.enqueue("hello", "x" * 100)
    kiwi.fault("drain", Chunked(chunk_bytes=7))
    answer, body = worker.call("GET", "/worker/messages")
    assert answer.getheader("Transfer-Encoding") == "chunked"
    assert json.loads(body)[0]["params"] == "x" * 100
    assert worker.drain() == []


def test_chunked_can_lack_its_end(kiwi: KiwiServer, worker: KiwiClient) -> None:
    kiwi.fault("drain", Chunked(broken=True), idle_too=True)
    data = read_all(worker.raw("GET", "/worker/messages"))
    assert data.endswith(b"\r\n\r\n2\r\n[]\r\n")


def test_until_close_has_no_length(kiwi: KiwiServer, worker: KiwiClient) -> None:
    kiwi.fault("heartbeat", UntilClose())
    data = read_all(worker.raw("GET", "/worker/heartbeat/w1"))
    assert b"content-length" not in data.lower()
    assert data.endswith(b"\r\n\r\ntrue")


def test_byte_order_mark(kiwi: KiwiServer, worker: KiwiClient) -> None:
    kiwi.fault("heartbeat", ByteOrderMark())
    assert worker.call("GET", "/worker/heartbeat/w1")[1] == b"\xef\xbb\xbftrue"


def test_duplicate_messages_in_one_drain(kiwi: KiwiServer, worker: KiwiClient) -> None:
    first, second = kiwi.enqueue("hello"), kiwi.enqueue("hello")
    kiwi.fault("drain", DuplicateMessages())
    assert [message["request_id"] for message in worker.drain()] == [first, second, first, second]
    assert worker.drain() == []


def test_reorder_messages(kiwi: KiwiServer, worker: KiwiClient) -> None:
    sent = [kiwi.enqueue("hello") for _ in range(3)]
    kiwi.fault("drain", ReorderMessages())
    assert [message["request_id"] for message in worker.drain()] == sent[::-1]


def test_redeliver_hands_the_same_message_out_in_two_drains(kiwi: KiwiServer, worker: KiwiClient) -> None:
    request_id = kiwi.enqueue("hello")
    kiwi.fault("drain", Redeliver())
    drained = []
    for _ in range(3):
        drained.append([message["request_id"] for message in worker.drain()])
        worker.respond(request_id)
    assert drained == [[request_id], [request_id], []]


# --- arming ---


def test_faults_strike_in_the_order_armed_and_then_no_more(kiwi: KiwiServer, worker: KiwiClient) -> None:
    kiwi.fault("heartbeat", Status(503), times=2)
    kiwi.fault("heartbeat", Status(500))
    statuses = [worker.call("GET", "/worker/heartbeat/w1")[0].status for _ in range(4)]
    assert statuses == [503, 503, 500, 200]
    assert kiwi.armed_faults == []


def test_always_until_cleared(kiwi: KiwiServer, worker: KiwiClient) -> None:
    kiwi.fault("*", Status(503), times="always")
    assert {worker.call("GET", "/worker/heartbeat/w1")[0].status for _ in range(5)} == {503}
    kiwi.clear_faults()
    assert worker.call("GET", "/worker/heartbeat/w1")[0].status == 200


def test_a_path_pattern_and_a_condition_choose_the_calls(kiwi: KiwiServer, worker: KiwiClient) -> None:
    kiwi.fault("/worker/lock_request/a*", Status(503), times="always")
    kiwi.fault("respond", Status(500), where=lambda call: b"special" in call.body)
    locks = [worker.call("PUT", f"/worker/lock_request/{name}")[0].status for name in ("a1", "b1", "a2")]
    assert locks == [503, 200, 503]
    assert [worker.respond("r1"), worker.respond("special"), worker.respond("special")] == [200, 500, 200]


def test_probability_is_repeatable_by_seed() -> None:
    def statuses(seed: int) -> list[int]:
        with MisbehavingServer.kiwi(seed=seed) as server:
            client = KiwiClient(server).log_in()
            server.fault("heartbeat", Status(503), probability=0.5)
            found = [client.call("GET", "/worker/heartbeat/w1")[0].status for _ in range(40)]
            client.close()
            return found

    first = statuses(1)
    assert set(first) == {200, 503}
    assert first == statuses(1)
    assert first != statuses(2)


@pytest.mark.parametrize(
    ("call", "fault", "options", "text"),
    [
        ("nonsense", Html502(), {}, "no call is named 'nonsense'"),
        ("drain", PartialBody(), {"after": False}, "cannot strike before"),
        ("token", WrongClock(1), {"after": True}, "cannot strike after"),
        ("respond", ReorderMessages(), {}, "strikes only drain"),
        ("drain", Html502(), {"times": 0}, "times is 0"),
        ("drain", Html502(), {"probability": 2.0}, "between 0 and 1"),
    ],
)
def test_a_fault_that_makes_no_sense_is_refused(
    kiwi: KiwiServer, call: str, fault: Fault, options: dict[str, object], text: str
) -> None:
    with pytest.raises(ValueError, match=text):
        kiwi.fault(call, fault, **options)  # type: ignore[arg-type]


def test_stopping_ends_every_thread_and_connection() -> None:
    before = set(threading.enumerate())
    with MisbehavingServer.kiwi() as server:
        client = KiwiClient(server).log_in()
        client.register(run_mode="Lazy", ip="127.0.0.1", port=9)
        server.enqueue("hello", worker_id="nobody")
        server.enqueue("hello", worker_id="w1")
        client.drain()
        server.fault("heartbeat", Stall(600))
        socks = [client.raw("GET", "/worker/messages?wait=600"), client.raw("GET", "/worker/heartbeat/w1")]
        server.wait_for_calls("heartbeat", ended=False)
        server.wait_for_calls("drain", 2, ended=False)
    client.close()
    for sock in socks:
        sock.close()
    assert set(threading.enumerate()) - before == set()
    assert server.open_connections == 0


def _read_to_the_end(sock: socket.socket) -> None:
    while sock.recv(65536):
        pass
