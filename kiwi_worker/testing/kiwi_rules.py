"""What the Kiwi protocol page asks of a worker, checked call by call."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kiwi_worker.testing.calls import Call

__all__ = ["violations_of"]

_RUN_MODES = ("Lazy", "Connected", "Eager")
_STATUSES = ("success", "failed", "error")
_FEEDBACK = {"rid": str, "st": int, "sn": str, "ft": int, "pr": bool, "fc": str}
_JSON_CALLS = ("register", "respond", "feedback")


def violations_of(call: Call, *, is_registered: bool, locked_by: str | None, needs_lock: bool) -> list[str]:
    """What is wrong with this call, in sentences that name it.

    Args:
        call: the call; its `worker_id` is known.
        is_registered: whether its worker had registered before.
        locked_by: who holds the lock of the request it answers.
        needs_lock: whether the request it answers asks for one.
    """
    found = [*_any_call(call, is_registered), *_by_name(call, locked_by, needs_lock)]
    return [f"call {call.number} ({call.name}): {text}" for text in found]


def _any_call(call: Call, is_registered: bool) -> Iterator[str]:
    if call.name == "other":
        yield f"{call.method} {call.path} is no call of the protocol"
    elif call.name not in ("token", "register") and not is_registered:
        yield "it came before the registration"
    content_type = (call.request.header("content-type") or "").partition(";")[0]
    if call.name == "token" and content_type != "application/x-www-form-urlencoded":
        yield f"a token request is form-encoded, not {content_type!r}"
    if call.name in _JSON_CALLS and content_type != "application/json":
        yield f"the content type is {content_type!r}, not application/json"
    if call.name in ("heartbeat", "shutdown") and call.request.segments[2] != call.worker_id:
        yield f"the path names {call.request.segments[2]!r}, the token {call.worker_id!r}"


def _by_name(call: Call, locked_by: str | None, needs_lock: bool) -> Iterator[str]:
    if call.name not in _JSON_CALLS:
        return
    body = call.request.json_object()
    if body is None:
        yield "the body is no JSON object"
    elif call.name == "register":
        yield from _registration(body)
    elif call.name == "feedback":
        yield from _feedback(body)
    else:
        yield from _response(body)
        if needs_lock and locked_by != call.worker_id:
            yield f"it answers {body.get('request_id')!r}, whose lock {locked_by or 'nobody'} holds"


def _registration(body: dict[str, Any]) -> Iterator[str]:
    for key in ("worker_id", "service_id"):
        if not isinstance(body.get(key), str) or not body[key]:
            yield f"{key} is {body.get(key)!r}"
    if body.get("run_mode") not in _RUN_MODES:
        yield f"run_mode is {body.get('run_mode')!r}"
    methods = body.get("methods")
    if not isinstance(methods, list) or not all(
        isinstance(name, str) and "/" not in name for name in methods
    ):
        yield f"methods is {methods!r}, not a list of bare names"
    if body.get("run_mode") == "Lazy" and not (body.get("ip") and isinstance(body.get("port"), int)):
        yield "a lazy worker needs ip and port"


def _response(body: dict[str, Any]) -> Iterator[str]:
    if set(body) != {"request_id", "status", "error_text", "result"}:
        yield f"its keys are {sorted(body)}"
    if body.get("status") not in _STATUSES:
        yield f"status is {body.get('status')!r}"
    elif body["status"] == "success" and body.get("error_text") is not None:
        yield "error_text is not null on success"
    elif body["status"] != "success" and body.get("result") is not None:
        yield "result is not null on failure"
    elif body["status"] != "success" and not isinstance(body.get("error_text"), str):
        yield "a failure has no error_text"


def _feedback(body: dict[str, Any]) -> Iterator[str]:
    for key, kind in _FEEDBACK.items():
        value = body.get(key)
        if not isinstance(value, kind) and not (key == "rid" and value is None and body.get("st") == 2):
            yield f"{key} is {value!r}"
    if body.get("st") not in (1, 2):
        yield f"st is {body.get('st')!r}, not 1 or 2"
