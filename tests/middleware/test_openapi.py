"""The OpenAPI description says what is served, and what is served is described."""

from __future__ import annotations

import json
import re
import urllib.request
from typing import Any

import pytest

from kiwi_worker.testing.middleware import MiddlewareProcess

from .conftest import Workers


@pytest.fixture(scope="module")
def described(shared: MiddlewareProcess) -> dict[str, Any]:
    with urllib.request.urlopen(shared.url + "/openapi.json") as answer:
        return json.load(answer)


def operations(described: dict[str, Any]) -> list[tuple[str, str, dict[str, Any]]]:
    return [
        (method.upper(), path, operation)
        for path, methods in described["paths"].items()
        for method, operation in methods.items()
    ]


def test_worker_side_is_the_page(described: dict[str, Any]) -> None:
    served = {(method, path) for method, path, _ in operations(described) if path.startswith("/worker/")}
    assert served == {
        ("POST", "/worker/auth_token"),
        ("POST", "/worker/registration"),
        ("GET", "/worker/messages"),
        ("PUT", "/worker/lock_request/{request_id}"),
        ("POST", "/worker/response"),
        ("POST", "/worker/feedback"),
        ("GET", "/worker/heartbeat/{worker_id}"),
        ("PUT", "/worker/notify_worker_shutdown/{worker_id}"),
    }


def test_every_operation_is_served_with_a_status_it_names(
    described: dict[str, Any], middleware: MiddlewareProcess, workers: Workers
) -> None:
    plain = workers(middleware)
    for method, path, operation in operations(described):
        target = re.sub(r"{\w+}", "x", path)
        status, body = plain.send(method, target, None, {})
        assert str(status) in operation["responses"], (method, path, status)
        if "security" in operation:
            assert status == 401
        if status >= 400:
            assert set(body) == {"error", "message"}


def test_no_other_method_is_served(
    described: dict[str, Any], middleware: MiddlewareProcess, workers: Workers
) -> None:
    plain = workers(middleware)
    for path, methods in described["paths"].items():
        for method in {"GET", "POST", "PUT", "PATCH", "DELETE"} - {name.upper() for name in methods}:
            status, body = plain.send(method, re.sub(r"{\w+}", "x", path), None, {})
            assert (status, body["error"]) == (405, "method_not_allowed"), (method, path)


def test_roles_are_those_of_the_tokens(
    described: dict[str, Any], middleware: MiddlewareProcess, workers: Workers
) -> None:
    plain = workers(middleware)
    for method, path, operation in operations(described):
        if operation.get("security") == [{"client": []}]:
            status, _ = plain.call(method, re.sub(r"{\w+}", "x", path))
            assert status == 403, (method, path)


def test_every_reference_leads_somewhere(described: dict[str, Any]) -> None:
    schemas = described["components"]["schemas"]
    for reference in re.findall(r'"\$ref": "([^"]+)"', json.dumps(described)):
        assert reference.startswith("#/components/schemas/")
        assert reference.rpartition("/")[2] in schemas


def test_parameters_of_paths_are_described(described: dict[str, Any]) -> None:
    for _, path, operation in operations(described):
        named = [p["name"] for p in operation["parameters"] if p["in"] == "path"]
        assert named == re.findall(r"{(\w+)}", path)


def test_wrong_options_are_answered_with_a_status_that_is_named(
    described: dict[str, Any], middleware: MiddlewareProcess, workers: Workers
) -> None:
    worker, caller = workers(middleware), workers(middleware, "caller")
    worker.register("m")
    form = {"grant_type": "client_credentials", "service_id": middleware.service_id}
    answer = caller.post_form("/client/auth_token", {**form, "auth_secret": middleware.client_secret})
    caller.token = answer[1]["access_token"]
    with_wait = [
        (method, path, operation)
        for method, path, operation in operations(described)
        if "wait" in [parameter["name"] for parameter in operation["parameters"]]
    ]
    assert len(with_wait) == 3
    for method, path, operation in with_wait:
        speaker = worker if path.startswith("/worker") else caller
        target = path.format(request_id="x", service=middleware.service_id, method="m")
        assert speaker.call(method, f"{target}?wait=-1")[0] == 400
        assert "400" in operation["responses"], path


def test_a_body_is_described_as_required_where_it_is(described: dict[str, Any]) -> None:
    bodies = {
        path: operation["requestBody"]["required"]
        for _, path, operation in operations(described)
        if "requestBody" in operation
    }
    assert [path for path, required in bodies.items() if not required] == ["/client/call/{service}/{method}"]


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({}, 200),
        ({"run_mode": "Lazy", "port": None}, 400),
        ({"run_mode": "Lazy", "ip": None}, 400),
        ({"run_mode": "Connected"}, 400),
        ({"run_mode": "Eager", "ip": None, "port": None}, 200),
        ({"run_mode": "Eager", "ip": "a name"}, 400),
        ({"methods": ["a/b"]}, 400),
        ({"methods": [""]}, 400),
    ],
)
def test_the_description_of_a_registration_says_what_is_taken(
    described: dict[str, Any],
    middleware: MiddlewareProcess,
    workers: Workers,
    change: dict[str, Any],
    status: int,
) -> None:
    jsonschema = pytest.importorskip("jsonschema_rs")
    worker = workers(middleware)
    body = {**worker.registration("m", run_mode="Lazy"), **change}
    assert worker.call("POST", "/worker/registration", body)[0] == status
    schema = {"$ref": "#/components/schemas/Registration", "components": described["components"]}
    assert jsonschema.is_valid(schema, body, validate_formats=True) == (status == 200)


def fits(value: Any, schema: dict[str, Any], schemas: dict[str, Any]) -> bool:
    if "$ref" in schema:
        return fits(value, schemas[schema["$ref"].rpartition("/")[2]], schemas)
    if "enum" in schema:
        return value in schema["enum"]
    kinds = schema.get("type", [])
    names = {"object": dict, "array": list, "string": str, "boolean": bool, "null": type(None)}
    numbers = {"number": (int, float), "integer": int}
    wanted = [kinds] if isinstance(kinds, str) else kinds
    if wanted and not any(isinstance(value, {**names, **numbers}[kind]) for kind in wanted):
        return False
    if isinstance(value, dict):
        properties = schema.get("properties", {})
        known = all(name in value for name in schema.get("required", []))
        return known and all(fits(v, properties.get(k, {}), schemas) for k, v in value.items())
    if isinstance(value, list):
        return all(fits(item, schema.get("items", {}), schemas) for item in value)
    return True


def test_answers_have_the_described_form(
    described: dict[str, Any], middleware: MiddlewareProcess, workers: Workers
) -> None:
    schemas = described["components"]["schemas"]

    def check(schema: str, answer: tuple[int, Any]) -> Any:
        assert answer[0] < 300, answer
        assert fits(answer[1], schemas[schema], schemas), (schema, answer[1])
        return answer[1]

    worker, caller = workers(middleware), workers(middleware, "caller")
    credentials = {"service_id": middleware.service_id, "grant_type": "client_credentials"}
    form = {**credentials, "auth_secret": middleware.client_secret}
    token = check("Token", caller.post_form("/client/auth_token", form))
    caller.token = token["access_token"]
    check("ApplicationSettings", worker.call("POST", "/worker/registration", worker.registration("m")))
    pending = check("Pending", caller.call("POST", f"/client/call/{middleware.service_id}/m?wait=0", {}))
    check("Workers", caller.call("GET", "/client/workers"))
    check("Methods", caller.call("GET", "/client/methods"))
    check("Messages", worker.call("GET", "/worker/messages"))
    check("Known", worker.call("GET", "/worker/heartbeat/w1"))
    check("Pending", caller.call("GET", f"/client/calls/{pending['request_id']}"))
    check("Ending", caller.call("DELETE", f"/client/calls/{pending['request_id']}"))
    check("Ending", caller.call("GET", f"/client/calls/{pending['request_id']}"))
    check("Health", caller.call("GET", "/health"))
