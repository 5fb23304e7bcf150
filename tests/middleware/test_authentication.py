"""Tokens (the page's section "Authentication") and what they allow."""

from __future__ import annotations

import json
import time

import jwt
import pytest

from kiwi_worker.middleware.stores.directory import Directory
from kiwi_worker.testing.middleware import MiddlewareProcess, running_middleware

from .conftest import Workers
from .plain_worker import PlainWorker, until

TOKEN = "/worker/auth_token"


def claims_of(token: str) -> dict[str, object]:
    return jwt.decode(token, options={"verify_signature": False})


def test_worker_token_carries_sub_role_and_service(middleware: MiddlewareProcess, workers: Workers) -> None:
    answer = workers(middleware, "worker-7").authenticate()
    assert answer["token_type"] == "Bearer"
    assert answer["expires_in"] == 3600
    assert answer["refresh_token"]
    claims = claims_of(answer["access_token"])
    assert (claims["sub"], claims["role"], claims["service_id"]) == (
        "worker-7",
        "worker",
        middleware.service_id,
    )
    assert claims["exp"] - claims["iat"] == pytest.approx(3600, abs=1)
    assert abs(claims["iat"] - time.time()) < 60


def test_token_is_signed_with_hs256(middleware: MiddlewareProcess, workers: Workers) -> None:
    token = workers(middleware).token
    assert jwt.get_unverified_header(token)["alg"] == "HS256"


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"auth_secret": "wrong"}, 401),
        ({"service_id": "nobody"}, 401),
        ({"auth_secret": ""}, 400),
        ({"worker_id": ""}, 400),
        ({"worker_id": "a\nb"}, 400),
        ({"worker_id": "x" * 201}, 400),
        ({"grant_type": "password"}, 400),
        ({"grant_type": ""}, 400),
    ],
)
def test_refused_token_request(
    middleware: MiddlewareProcess, workers: Workers, change: dict[str, str], status: int
) -> None:
    worker = workers(middleware)
    form = {
        "grant_type": "client_credentials",
        "service_id": middleware.service_id,
        "auth_secret": middleware.worker_secret,
        "worker_id": "w1",
    }
    refused, answer = worker.post_form(TOKEN, {**form, **change})
    assert refused == status
    assert set(answer) == {"error", "message"}
    assert middleware.worker_secret not in json.dumps(answer)


def test_client_secret_is_no_worker_secret(middleware: MiddlewareProcess, workers: Workers) -> None:
    worker = workers(middleware)
    form = {"grant_type": "client_credentials", "service_id": middleware.service_id, "worker_id": "w1"}
    assert worker.post_form(TOKEN, {**form, "auth_secret": middleware.client_secret})[0] == 401
    form = {"grant_type": "client_credentials", "service_id": middleware.service_id}
    assert worker.post_form("/client/auth_token", {**form, "auth_secret": middleware.worker_secret})[0] == 401


def test_token_request_must_be_a_form(middleware: MiddlewareProcess, workers: Workers) -> None:
    worker = workers(middleware)
    status, answer = worker.send("POST", TOKEN, b"{}", {"Content-Type": "application/json"})
    assert status == 400
    assert "form" in answer["message"]
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    for body in (b"\xff\xfe=1", b"grant_type=a&grant_type=b", b"&".join(b"a%d=1" % n for n in range(99))):
        assert worker.send("POST", TOKEN, body, headers)[0] == 400


def test_secret_is_decoded_once(middleware: MiddlewareProcess, workers: Workers) -> None:
    """Field report 5: characters of a secret that a form encodes."""
    worker = workers(middleware)
    form = {"grant_type": "client_credentials", "service_id": middleware.service_id, "worker_id": "w1"}
    secret = middleware.worker_secret
    double = secret.replace("_", "%5F")
    assert worker.post_form(TOKEN, {**form, "auth_secret": double})[0] == 401
    raw = (
        f"grant_type=client_credentials&service_id={middleware.service_id}&worker_id=w1&auth_secret={double}"
    )
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    assert worker.send("POST", TOKEN, raw.encode(), headers)[0] == 200


def test_refresh_token_brings_a_token(middleware: MiddlewareProcess, workers: Workers) -> None:
    worker = workers(middleware)
    refresh_token = worker.authenticate()["refresh_token"]
    form = {
        "grant_type": "refresh_token",
        "refresh_token": refresh_token,
        "service_id": middleware.service_id,
        "worker_id": "w1",
    }
    status, answer = worker.post_form(TOKEN, form)
    assert status == 200
    assert claims_of(answer["access_token"])["sub"] == "w1"
    worker.token = answer["access_token"]
    worker.register("m")


@pytest.mark.parametrize(
    "change",
    [{"refresh_token": "nonsense"}, {"worker_id": "w2"}, {"service_id": "other"}],
)
def test_dead_refresh_token(middleware: MiddlewareProcess, workers: Workers, change: dict[str, str]) -> None:
    worker = workers(middleware)
    form = {
        "grant_type": "refresh_token",
        "refresh_token": worker.authenticate()["refresh_token"],
        "service_id": middleware.service_id,
        "worker_id": "w1",
    }
    assert worker.post_form(TOKEN, {**form, **change})[0] == 401


def test_access_token_is_no_refresh_token_and_the_other_way_round(
    middleware: MiddlewareProcess, workers: Workers
) -> None:
    worker = workers(middleware)
    answer = worker.authenticate()
    form = {"grant_type": "refresh_token", "refresh_token": answer["access_token"]}
    assert worker.post_form(TOKEN, form)[0] == 401
    worker.token = answer["refresh_token"]
    assert worker.call("GET", "/worker/messages")[0] == 403


def test_refresh_token_dies_with_its_secret(middleware: MiddlewareProcess, workers: Workers) -> None:
    worker = workers(middleware)
    refresh_token = worker.authenticate()["refresh_token"]
    with Directory(middleware.db) as directory:
        kept = directory.secrets(middleware.service_id)
        directory.remove_secret(next(r.secret_id for r in kept if r.role == "worker"))
    form = {"grant_type": "refresh_token", "refresh_token": refresh_token}
    assert worker.post_form(TOKEN, form)[0] == 401
    form = {"grant_type": "client_credentials", "service_id": middleware.service_id, "worker_id": "w1"}
    assert worker.post_form(TOKEN, {**form, "auth_secret": middleware.worker_secret})[0] == 401


def test_lifetimes_are_settings(workers: Workers) -> None:
    with running_middleware(worker_token_lifetime=1, refresh_token_lifetime=1) as middleware:
        worker = workers(middleware)
        answer = worker.authenticate()
        assert answer["expires_in"] == 1
        worker.token = answer["access_token"]
        worker.register("m")
        until(lambda: worker.call("GET", "/worker/messages")[0] == 401)
        form = {"grant_type": "refresh_token", "refresh_token": answer["refresh_token"]}
        assert worker.post_form(TOKEN, form)[0] == 401


@pytest.mark.parametrize(
    "authorization",
    [None, "", "Bearer", "Bearer nonsense", "Basic dTpw", "Bearer a.b.c", "Bearer " + "x" * 5000],
)
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/worker/registration"),
        ("GET", "/worker/messages"),
        ("PUT", "/worker/lock_request/x"),
        ("POST", "/worker/response"),
        ("POST", "/worker/feedback"),
        ("GET", "/worker/heartbeat/w1"),
        ("PUT", "/worker/notify_worker_shutdown/w1"),
        ("POST", "/client/call/demo/m"),
        ("GET", "/client/calls/x"),
        ("DELETE", "/client/calls/x"),
        ("GET", "/client/calls/x/feedback"),
        ("GET", "/client/workers"),
        ("GET", "/client/methods"),
    ],
)
def test_no_good_token(
    middleware: MiddlewareProcess, workers: Workers, method: str, path: str, authorization: str | None
) -> None:
    headers = {} if authorization is None else {"Authorization": authorization}
    status, answer = workers(middleware).send(method, path, None, headers)
    assert status == 401
    assert answer["error"] == "unauthorized"


def test_token_with_another_key_or_without_one(middleware: MiddlewareProcess, workers: Workers) -> None:
    worker = workers(middleware)
    claims = claims_of(worker.token)
    for token in (
        jwt.encode(claims, "another key that is long enough for HS256", algorithm="HS256"),
        jwt.encode(claims, None, algorithm="none"),
        jwt.encode({**claims, "sub": 7}, "another key that is long enough for HS256", algorithm="HS256"),
    ):
        worker.token = token
        assert worker.call("GET", "/worker/messages")[0] == 401


def test_worker_may_speak_only_for_itself(middleware: MiddlewareProcess, workers: Workers) -> None:
    worker = workers(middleware)
    worker.register("m")
    assert worker.call("GET", "/worker/heartbeat/w2")[0] == 403
    assert worker.call("PUT", "/worker/notify_worker_shutdown/w2")[0] == 403
    assert worker.call("POST", "/worker/registration", worker.registration("m", worker_id="w2"))[0] == 403
    other = worker.registration("m", service_id="other")
    assert worker.call("POST", "/worker/registration", other)[0] == 403


def test_roles_are_kept_apart(middleware: MiddlewareProcess, workers: Workers) -> None:
    worker = workers(middleware)
    assert worker.call("GET", "/client/workers")[0] == 403
    form = {
        "grant_type": "client_credentials",
        "service_id": middleware.service_id,
        "auth_secret": middleware.client_secret,
    }
    status, answer = worker.post_form("/client/auth_token", form)
    assert status == 200
    assert claims_of(answer["access_token"])["role"] == "client"
    worker.token = answer["access_token"]
    assert worker.call("GET", "/worker/messages")[0] == 403
    assert worker.call("POST", "/client/call/other-service/m")[0] == 403


def test_signing_key_is_kept(workers: Workers) -> None:
    with running_middleware() as middleware:
        worker = workers(middleware)
        worker.register("m")
        middleware.stop()
        middleware.start()
        worker.close()
        assert worker.drain() == []


def test_worker_id_with_every_kind_of_character(middleware: MiddlewareProcess) -> None:
    worker = PlainWorker(middleware.url, middleware.service_id, middleware.worker_secret, "höst/1%2F?#&;a b…")
    worker.register("m")
    assert worker.beat() is True
    assert worker.leave() == 204
    worker.close()
