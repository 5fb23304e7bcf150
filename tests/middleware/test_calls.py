"""The client side on the wire: time to live, idempotency, cancel, fetch later, bounds, bad input."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from kiwi_worker.errors import CallError
from kiwi_worker.testing.middleware import MiddlewareProcess, running_middleware

from .conftest import Workers
from .plain_worker import Background, PlainWorker, until


@pytest.fixture
def caller(middleware: MiddlewareProcess, workers: Workers) -> Iterator[PlainWorker]:
    """Plain calls with a client's token."""
    plain = workers(middleware, "caller")
    form = {
        "grant_type": "client_credentials",
        "service_id": middleware.service_id,
        "auth_secret": middleware.client_secret,
    }
    plain.token = plain.post_form("/client/auth_token", form)[1]["access_token"]
    return plain


def test_time_to_live_over_without_a_worker(middleware: MiddlewareProcess) -> None:
    outcome = middleware.client.outcome("m", time_to_live=0.1)
    assert (outcome.status, outcome.reason) == ("error", "expired")
    assert "no live worker" in (outcome.error_text or "")


def test_time_to_live_over_while_it_runs(middleware: MiddlewareProcess, workers: Workers) -> None:
    worker = workers(middleware)
    worker.register("m")
    request_id = middleware.client.start("m", time_to_live=0.3)
    worker.drain_some()
    outcome = middleware.client.wait(request_id)
    assert (outcome.status, outcome.reason) == ("error", "expired")
    assert "w1" in (outcome.error_text or "")
    assert worker.respond(request_id) == 409


def test_expired_call_is_not_drained(middleware: MiddlewareProcess, workers: Workers) -> None:
    worker = workers(middleware)
    worker.register("m")
    request_id = middleware.client.start("m", time_to_live=0.05)
    middleware.client.wait(request_id)
    assert worker.drain() == []


def test_same_key_is_the_same_call(middleware: MiddlewareProcess, workers: Workers) -> None:
    worker = workers(middleware)
    worker.register("m")
    with ThreadPoolExecutor(8) as pool:
        starts = [pool.submit(middleware.client.start, "m", [1], idempotency_key="k") for _ in range(30)]
        ids = {start.result() for start in starts}
    assert len(ids) == 1
    [request_id] = ids
    assert [m["request_id"] for m in worker.drain_some()] == [request_id]
    worker.respond(request_id, result="once")
    assert middleware.client.call("m", [1], idempotency_key="k") == "once"
    assert worker.drain() == []


def test_key_of_another_call_is_refused(middleware: MiddlewareProcess) -> None:
    middleware.client.start("m", [1], idempotency_key="k")
    for method, params in (("m", [2]), ("other", [1])):
        with pytest.raises(CallError) as caught:
            middleware.client.start(method, params, idempotency_key="k")
        assert caught.value.http_status == 409
    assert middleware.client.start("m", [2], idempotency_key="k2")


def test_keys_of_services_are_kept_apart(middleware: MiddlewareProcess) -> None:
    other = middleware.with_new_service()
    first = middleware.client.start("m", [1], idempotency_key="k")
    assert other.client.start("m", [2], idempotency_key="k") != first
    other.close_clients()


def test_cancel_before_it_was_drained(middleware: MiddlewareProcess, workers: Workers) -> None:
    worker = workers(middleware)
    worker.register("m")
    request_id = middleware.client.start("m")
    outcome = middleware.client.cancel(request_id)
    assert (outcome.status, outcome.reason) == ("error", "cancelled")
    assert worker.drain() == []


def test_cancel_while_it_runs(middleware: MiddlewareProcess, workers: Workers) -> None:
    worker = workers(middleware)
    worker.register("m")
    waiting = Background(lambda: middleware.client.outcome("m"))
    [message] = worker.drain(wait=10)
    middleware.client.cancel(message["request_id"])
    assert waiting.result().reason == "cancelled"
    assert worker.respond(message["request_id"]) == 409


def test_cancel_after_the_end_changes_nothing(middleware: MiddlewareProcess, workers: Workers) -> None:
    worker = workers(middleware)
    worker.register("m")
    request_id = middleware.client.start("m")
    worker.drain_some()
    worker.respond(request_id, result=1)
    assert middleware.client.cancel(request_id).result == 1


def test_call_and_fetch_later(middleware: MiddlewareProcess, workers: Workers) -> None:
    request_id = middleware.client.start("m")
    pending = middleware.client.fetch(request_id)
    assert (pending.status, pending.state) == ("pending", "waiting")
    worker = workers(middleware)
    worker.register("m")
    worker.drain_some()
    assert middleware.client.fetch(request_id).state == "running"
    worker.respond(request_id, result=[1])
    for _ in range(3):
        assert middleware.client.fetch(request_id).result == [1]


def test_wait_that_is_too_short(middleware: MiddlewareProcess) -> None:
    outcome = middleware.client.outcome("m", timeout=0.05)
    assert outcome.status == "pending"
    with pytest.raises(CallError) as caught:
        middleware.client.call("m", timeout=0.05)
    assert caught.value.outcome.status == "pending"
    assert caught.value.outcome.request_id in str(caught.value)


def test_many_wait_for_one_call(middleware: MiddlewareProcess, workers: Workers) -> None:
    worker = workers(middleware)
    worker.register("m")
    request_id = middleware.client.start("m")
    waits = [Background(lambda: middleware.client.wait(request_id)) for _ in range(5)]
    worker.drain_some()
    worker.respond(request_id, result=5)
    assert [wait.result().result for wait in waits] == [5] * 5


@pytest.mark.parametrize(
    "query",
    ["wait=x", "wait=-1", "wait=nan", "wait=inf", "ttl=soon", "lock=yes", "lock=1", "wat=1", "wait=1&wait=2"],
)
def test_wrong_option_is_named(caller: PlainWorker, query: str) -> None:
    status, answer = caller.call("POST", f"/client/call/{caller.service_id}/m?{query}", {})
    assert status == 400
    assert query.split("=")[0] in answer["message"] or "query" in answer["message"]


@pytest.mark.parametrize(
    "body", [b"{", b"nope", b"[1,]", b'{"a": NaN}', b'"\xff"', b"\xef\xbb\xbf{}", b"{}{}"]
)
def test_params_that_are_no_json(caller: PlainWorker, body: bytes) -> None:
    headers = {"Authorization": f"Bearer {caller.token}"}
    status, answer = caller.send("POST", f"/client/call/{caller.service_id}/m?wait=0", body, headers)
    assert (status, answer["error"]) == (400, "bad_request")


def test_deep_params_do_no_harm(middleware: MiddlewareProcess, caller: PlainWorker, workers: Workers) -> None:
    headers = {"Authorization": f"Bearer {caller.token}"}
    body = b"[" * 50_000 + b"]" * 50_000
    status, _ = caller.send("POST", f"/client/call/{caller.service_id}/m?wait=0", body, headers)
    assert status in (202, 400)
    assert caller.call("POST", f"/client/call/{caller.service_id}/m?wait=0", {})[0] == 202


@pytest.mark.parametrize("method", ["a%2Fb", ""])
def test_method_that_cannot_be_one(caller: PlainWorker, method: str) -> None:
    assert caller.call("POST", f"/client/call/{caller.service_id}/{method}?wait=0", {})[0] in (400, 404)


@pytest.mark.parametrize("request_id", ["x", "%00", "a%2Fb", "%E2%98%83", "..", "x" * 3000])
def test_unknown_call(caller: PlainWorker, request_id: str) -> None:
    for method in ("GET", "DELETE"):
        status, answer = caller.call(method, f"/client/calls/{request_id}")
        assert (status, answer["error"]) == (404, "not_found")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b"[]",
        b'{"request_id": "x"}',
        b'{"request_id": 1, "status": "success"}',
        b'{"request_id": "x", "status": "done"}',
        b'{"request_id": "x", "status": "success", "result": }',
        b'{"request_id": "x", "status": "success", "result": NaN}',
        b'{"request_id": "x", "status": "failed", "error_text": 5}',
        b"<html>",
    ],
)
def test_response_that_is_none(middleware: MiddlewareProcess, workers: Workers, body: bytes) -> None:
    worker = workers(middleware)
    worker.register("m")
    headers = {"Authorization": f"Bearer {worker.token}"}
    status, answer = worker.send("POST", "/worker/response", body, headers)
    assert (status, answer["error"]) == (400, "bad_request")


def test_result_is_passed_on_as_it_is(middleware: MiddlewareProcess, workers: Workers) -> None:
    worker = workers(middleware)
    worker.register("m")
    headers = {"Authorization": f"Bearer {worker.token}"}
    value = {"big": 2**70, "float": 1e-7, "text": "\u2028\n", "nested": [[]]}
    request_id = middleware.client.start("m")
    worker.drain_some()
    body = json.dumps({"request_id": request_id, "status": "success", "result": value}, indent=2).encode()
    assert worker.send("POST", "/worker/response", body, headers)[0] == 200
    assert middleware.client.wait(request_id).result == value
    assert list(middleware.client.follow(request_id))[-1].result == value


def test_bounds_of_queue_and_body(workers: Workers) -> None:
    with running_middleware(queue_length=3, max_body_bytes=2000) as middleware:
        worker = workers(middleware)
        worker.register("m")
        client = middleware.new_client(retry_limit=0)
        ids = [client.start("m", ["x" * 1000]) for _ in range(3)]
        with pytest.raises(CallError) as caught:
            client.start("m")
        assert (caught.value.http_status, caught.value.code) == (429, "queue_full")
        worker.drain_some()
        assert worker.respond(ids[0], result="x" * 3000) == 413
        assert worker.respond(ids[0], result="x" * 1000) == 200
        with pytest.raises(CallError) as caught:
            client.start("m", ["x" * 3000])
        assert caught.value.http_status == 413
        assert client.start("m")


def test_bytes_of_the_queue_are_bounded(workers: Workers) -> None:
    with running_middleware(max_queue_bytes=2000) as middleware:
        client = middleware.new_client(retry_limit=0)
        ids = [client.start("m", ["x" * 900]) for _ in range(3)]
        with pytest.raises(CallError):
            client.start("m", [])
        client.cancel(ids[0])
        client.cancel(ids[1])
        assert client.start("m", [])


def test_results_are_kept_for_a_limited_time_and_number(workers: Workers) -> None:
    with running_middleware(max_results=5) as middleware:
        ids = [middleware.client.start("m", [n], idempotency_key=str(n)) for n in range(10)]
        for request_id in ids:
            middleware.client.cancel(request_id)

        def dropped() -> bool:
            try:
                middleware.client.fetch(ids[0])
            except CallError as error:
                return error.http_status == 404
            return False

        until(dropped)
        assert middleware.client.fetch(ids[-1]).reason == "cancelled"
        assert middleware.client.start("m", [0], idempotency_key="0") not in ids
        assert middleware.client.start("m", [9], idempotency_key="9") == ids[9]


def test_other_paths_and_methods(caller: PlainWorker) -> None:
    for path in ("/", "/worker", "/worker/nothing", "/client/call/only-one", "/%00", "//worker/messages"):
        status, answer = caller.call("GET", path)
        assert (status, answer["error"]) == (404, "not_found"), path
    for method, path in (("POST", "/worker/messages"), ("GET", "/worker/response"), ("PATCH", "/health")):
        status, answer = caller.call(method, path)
        assert (status, answer["error"]) == (405, "method_not_allowed"), path


def raw(middleware: MiddlewareProcess, data: bytes) -> bytes:
    import socket
    from urllib.parse import urlsplit

    parts = urlsplit(middleware.url)
    received = b""
    with socket.create_connection((parts.hostname, parts.port), timeout=10) as connection:
        connection.sendall(data)
        while part := connection.recv(65536):
            received += part
    return received


@pytest.mark.parametrize(
    "data",
    [
        b"nonsense\r\n\r\n",
        b"GET / HTTP/1.1\r\nbad header\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\n" + b"X-Long: " + b"x" * 70_000 + b"\r\n\r\n",
        b"POST /worker/response HTTP/1.1\r\nContent-Length: x\r\n\r\n",
    ],
)
def test_request_that_is_no_http(middleware: MiddlewareProcess, data: bytes) -> None:
    head, _, body = raw(middleware, data).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400")
    problem: dict[str, Any] = json.loads(body)
    assert problem["error"] == "bad_request"
