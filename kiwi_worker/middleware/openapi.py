"""The OpenAPI description, made from the same operations that are routed."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from .._version import __version__
from .authentication import SUBJECT
from .operations import Operation
from .records import Registration
from .worker_side import FeedbackPost, Response

__all__ = ["description"]

EVENTS = "text/event-stream"
STRING = {"type": "string"}
SOME_TEXT = {"type": "string", "minLength": 1}
NAME = {"type": "string", "pattern": f"^{SUBJECT.pattern}$"}
METHOD_NAME = {"type": "string", "pattern": "^[^/]+$"}
IP_ADDRESS = {"anyOf": [{"type": "string", "format": "ipv4"}, {"type": "string", "format": "ipv6"}]}
NUMBER = {"type": "number"}
TEXT_OR_NULL = {"type": ["string", "null"]}


def description(operations: list[Operation]) -> dict[str, Any]:
    """The whole description as a plain value."""
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _describe(operation)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "kiwi-worker middleware",
            "version": __version__,
            "description": "The Kiwi worker protocol for workers; a side of our own for clients.",
        },
        "paths": paths,
        "components": {
            "schemas": _schemas(),
            "securitySchemes": {
                role: {"type": "http", "scheme": "bearer", "description": f"A token with role {role}"}
                for role in ("worker", "client")
            },
        },
    }


def _describe(operation: Operation) -> dict[str, Any]:
    described: dict[str, Any] = {
        "summary": operation.summary,
        "operationId": f"{operation.method.lower()}{re.sub(r'[^A-Za-z]+', '_', operation.path).rstrip('_')}",
        "parameters": _parameters(operation),
        "responses": {str(status): _answer(*answer) for status, answer in _answers(operation).items()},
    }
    if operation.role is not None:
        described["security"] = [{operation.role: []}]
    if operation.body is not None:
        kind = "application/x-www-form-urlencoded" if operation.form else "application/json"
        described["requestBody"] = {
            "required": operation.body != "Params",
            "content": {kind: {"schema": _reference(operation.body)}},
        }
    if operation.streams:
        described["responses"]["200"]["content"][EVENTS] = {"schema": _reference("EventStream")}
    return described


def _answers(operation: Operation) -> dict[int, tuple[str, str | None]]:
    refused = {401: ("no good token", "Problem")} if operation.role is not None else {}
    return {**operation.answers, **refused}


def _parameters(operation: Operation) -> list[dict[str, Any]]:
    in_path = [
        {"name": name, "in": "path", "required": True, "schema": STRING}
        for name in re.findall(r"{(\w+)}", operation.path)
    ]
    others = [
        {
            "name": p.name,
            "in": p.where,
            "description": p.meaning,
            "schema": {"type": p.kind, **dict(p.limits)},
        }
        for p in operation.parameters
    ]
    return in_path + others


def _answer(meaning: str, schema: str | None) -> dict[str, Any]:
    if schema is None:
        return {"description": meaning}
    kind = EVENTS if schema == "EventStream" else "application/json"
    return {"description": meaning, "content": {kind: {"schema": _reference(schema)}}}


def _reference(schema: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{schema}"}


def _object(required: dict[str, Any], optional: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"type": "object", "properties": {**required, **(optional or {})}, "required": list(required)}


def _schemas() -> dict[str, Any]:
    _, ours = msgspec.json.schema_components(
        [Registration, Response, FeedbackPost], ref_template="#/components/schemas/{name}"
    )
    _narrow(ours["Registration"], ours["FeedbackPost"])
    return {**ours, **_forms(), **_worker_bodies(), **_client_bodies()}


def _narrow(registration: dict[str, Any], feedback: dict[str, Any]) -> None:
    """What is asked of these beyond their types."""
    fields = registration["properties"]
    fields["methods"] = {"type": "array", "items": METHOD_NAME}
    fields["ip"] = {"anyOf": [*IP_ADDRESS["anyOf"], {"type": "null"}]}
    port = {"type": "integer", "minimum": 1, "maximum": 65535}
    registration["anyOf"] = [
        _object({"run_mode": {"const": "Eager"}}),
        _object({"run_mode": {"const": "Lazy"}, "ip": IP_ADDRESS, "port": port}),
    ]
    feedback["anyOf"] = [_object({"rid": SOME_TEXT}), _object({"st": {"const": 2}})]


def _forms() -> dict[str, Any]:
    return {
        "WorkerTokenForm": _token_form({"worker_id": NAME}, {}),
        "ClientTokenForm": _token_form({}, {"client_id": NAME}),
        "Token": _object(
            {"access_token": STRING, "token_type": STRING, "expires_in": NUMBER, "refresh_token": STRING}
        ),
        "Problem": _object({"error": STRING, "message": STRING}),
    }


def _token_form(required: dict[str, Any], optional: dict[str, Any]) -> dict[str, Any]:
    """The two grants: for the secret, and for a refresh token."""
    credentials = {"service_id": NAME, "auth_secret": SOME_TEXT, **required}
    by_secret = _object({"grant_type": {"const": "client_credentials"}, **credentials}, optional)
    refreshing = {"grant_type": {"const": "refresh_token"}, "refresh_token": SOME_TEXT}
    by_token = _object(refreshing, {"service_id": STRING, **required, **optional})
    return {"oneOf": [by_secret, by_token], "additionalProperties": STRING}


def _worker_bodies() -> dict[str, Any]:
    message = _object(
        {"request_id": STRING, "method": STRING, "lock_required": {"type": "boolean"}, "params": {}}
    )
    return {
        "ApplicationSettings": {"type": "object", "additionalProperties": STRING},
        "Messages": {"type": "array", "items": message},
        "Known": {"type": "boolean"},
    }


def _client_bodies() -> dict[str, Any]:
    ending = {
        "request_id": STRING,
        "status": {"enum": ["success", "failed", "error"]},
        "error_text": TEXT_OR_NULL,
        "result": {},
        "reason": {"enum": [None, "expired", "worker_died", "cancelled"]},
    }
    pending = {
        "request_id": STRING,
        "status": {"enum": ["pending"]},
        "state": {"enum": ["waiting", "running"]},
    }
    worker = {
        "worker_id": STRING,
        "run_mode": STRING,
        "methods": {"type": "array", "items": STRING},
        "version": TEXT_OR_NULL,
        "platform": TEXT_OR_NULL,
        "tags": {"type": "object", "additionalProperties": STRING},
        "registered_at": NUMBER,
        "seen_seconds_ago": NUMBER,
        "stopping": {"type": "boolean"},
        "unanswered": {"type": "integer"},
    }
    method = _object({"method": STRING, "workers": {"type": "integer"}})
    health = {"ready": {"type": "boolean"}, "open_calls": NUMBER, "workers": NUMBER, "failure": TEXT_OR_NULL}
    return {
        "Params": {"description": "an object, an array, or nothing"},
        "Ending": _object(ending),
        "Pending": _object(pending),
        "EventStream": {
            "description": "each event of the stream",
            **_object({"event": {"enum": ["accepted", "feedback", "answer", "stopping"]}, "data": STRING}),
        },
        "Workers": _object({"workers": {"type": "array", "items": _object(worker)}}),
        "Methods": _object({"service_id": STRING, "methods": {"type": "array", "items": method}}),
        "Health": _object(health),
    }
