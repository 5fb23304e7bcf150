"""Registration (the page's section of that name)."""

from __future__ import annotations

from typing import Any

import pytest

from kiwi_worker.middleware.stores.directory import Directory
from kiwi_worker.testing.middleware import MiddlewareProcess

from .conftest import Workers


def test_answer_is_the_map_of_application_settings(middleware: MiddlewareProcess, workers: Workers) -> None:
    with Directory(middleware.db) as directory:
        directory.set_application_setting(middleware.service_id, "script_hint", "python")
    assert workers(middleware).register("m") == {"heartbeat_delay": "30", "script_hint": "python"}


def test_application_setting_wins_over_the_heartbeat_delay(
    middleware: MiddlewareProcess, workers: Workers
) -> None:
    with Directory(middleware.db) as directory:
        directory.set_application_setting(middleware.service_id, "a", "1")
        directory.set_application_setting(middleware.service_id, "a", None)
    assert workers(middleware).register("m") == {"heartbeat_delay": "30"}


@pytest.mark.parametrize(
    ("field", "value", "named"),
    [
        ("worker_id", 7, "worker_id"),
        ("service_id", None, "service_id"),
        ("run_mode", "Connected", "run_mode"),
        ("run_mode", "lazy", "run_mode"),
        ("run_mode", 1, "run_mode"),
        ("methods", "hello", "methods"),
        ("methods", [1], "methods"),
        ("methods", ["service/hello"], "methods"),
        ("methods", [""], "methods"),
        ("ip", "not an address", "ip"),
        ("ip", 5, "ip"),
        ("port", "55222", "port"),
        ("port", 0, "port"),
        ("port", 65536, "port"),
        ("port", 1.5, "port"),
        ("version", 1, "version"),
        ("tags", ["os"], "tags"),
        ("tags", {"os": 1}, "tags"),
        ("supported_executors", "python", "supported_executors"),
        ("platform", 1, "platform"),
        ("interactive_desktop", "false", "interactive_desktop"),
        ("browser_runtime", 0, "browser_runtime"),
    ],
)
def test_wrong_field_is_named(
    middleware: MiddlewareProcess, workers: Workers, field: str, value: Any, named: str
) -> None:
    worker = workers(middleware)
    body = worker.registration("m", run_mode="Lazy")
    status, answer = worker.call("POST", "/worker/registration", {**body, field: value})
    assert status == 400
    assert named in answer["message"]
    assert worker.beat() is False


@pytest.mark.parametrize("field", ["worker_id", "service_id", "run_mode", "methods"])
def test_missing_field_is_named(middleware: MiddlewareProcess, workers: Workers, field: str) -> None:
    worker = workers(middleware)
    body = worker.registration("m")
    del body[field]
    status, answer = worker.call("POST", "/worker/registration", body)
    assert status == 400
    assert field in answer["message"]


def test_lazy_needs_an_address(middleware: MiddlewareProcess, workers: Workers) -> None:
    worker = workers(middleware)
    for field in ("ip", "port"):
        body = {**worker.registration("m", run_mode="Lazy"), field: None}
        status, answer = worker.call("POST", "/worker/registration", body)
        assert status == 400
        assert field in answer["message"]


def test_fields_for_script_workers_may_be_left_out(middleware: MiddlewareProcess, workers: Workers) -> None:
    worker = workers(middleware)
    body = {
        "worker_id": "w1",
        "service_id": middleware.service_id,
        "run_mode": "Eager",
        "methods": [],
        "later": "a field of a later page",
    }
    assert worker.call("POST", "/worker/registration", body)[0] == 200


@pytest.mark.parametrize(
    "body", [b"", b"null", b"[]", b"{", b'{"a":\xff}', b"\xef\xbb\xbf{}", b"[" * 100_000]
)
def test_no_registration_at_all(middleware: MiddlewareProcess, workers: Workers, body: bytes) -> None:
    worker = workers(middleware)
    headers = {"Authorization": f"Bearer {worker.token}"}
    status, answer = worker.send("POST", "/worker/registration", body, headers)
    assert status == 400
    assert answer["error"] == "bad_request"


def test_worker_that_did_not_register(middleware: MiddlewareProcess, workers: Workers) -> None:
    worker = workers(middleware)
    assert worker.beat() is False
    assert worker.call("GET", "/worker/messages")[0] == 404
    assert worker.lock("x") == 404
    assert worker.leave() == 404


def test_workers_and_methods_are_listed(middleware: MiddlewareProcess, workers: Workers) -> None:
    workers(middleware, "w1").register("hello", "shared", tags={"os": "linux"})
    workers(middleware, "w2").register("shared")
    leaving = workers(middleware, "w3")
    leaving.register("shared")
    leaving.leave()
    listed = {worker.worker_id: worker for worker in middleware.client.workers()}
    assert sorted(listed) == ["w1", "w2", "w3"]
    assert listed["w1"].methods == ["hello", "shared"]
    assert listed["w1"].tags == {"os": "linux"}
    assert listed["w1"].run_mode == "Eager"
    assert listed["w3"].stopping
    assert [(m.method, m.workers) for m in middleware.client.methods()] == [("hello", 1), ("shared", 2)]
