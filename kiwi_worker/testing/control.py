"""The control paths of a running server, for tests in another process or another language.

| path | does |
|---|---|
| `GET /_faults` | lists what is armed |
| `POST /_faults` | arms one: `{"call": "respond", "fault": "Status", "status": 503, "times": 2}` |
| `DELETE /_faults` | disarms all |
| `GET /_calls` | every call so far: name, method, path, status, outcome, fault |
| `POST /_enqueue` | enqueues a message or task: the keywords of `enqueue` or `enqueue_task`; answers its id |
| `GET /_answers` | the accepted responses, or the results |

`times`, `probability`, `after` and `idle_too` mean what they mean for `MisbehavingServer.fault`; every other
key belongs to the fault. Control paths are never struck by faults and are not among the calls.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from kiwi_worker.testing.faults import fault_named
from kiwi_worker.testing.wire import Reply, Request

if TYPE_CHECKING:
    from kiwi_worker.testing.base import MisbehavingServer
    from kiwi_worker.testing.calls import Call
    from kiwi_worker.testing.schedule import ArmedFault

__all__ = ["answer_control", "arm_described", "described"]

_ARMING = ("times", "probability", "after", "idle_too")


def described(text: str) -> dict[str, Any]:
    """The mapping that a command line's `CALL:FAULT:key=value,…` stands for. Values are JSON, else text.

    Raises:
        ValueError: the text has another form.
    """
    call, _, rest = text.partition(":")
    fault, _, pairs = rest.partition(":")
    if not call or not fault or any("=" not in pair for pair in pairs.split(",") if pair):
        raise ValueError(f"{text!r} is not CALL:FAULT or CALL:FAULT:key=value,key=value")
    values = (pair.partition("=") for pair in pairs.split(",") if pair)
    return {"call": call, "fault": fault, **{key.strip(): _value(value) for key, _, value in values}}


def arm_described(server: MisbehavingServer, description: Mapping[str, Any]) -> ArmedFault:
    """Arm the fault a mapping describes (see the module).

    Raises:
        ValueError: a key is missing or wrong.
    """
    rest = dict(description)
    try:
        call, name = rest.pop("call"), rest.pop("fault")
    except KeyError as error:
        raise ValueError(f"{error} is missing") from None
    arming = {key: rest.pop(key) for key in _ARMING if key in rest}
    return server.fault(call, fault_named(name, **rest), **arming)


def answer_control(server: MisbehavingServer, request: Request) -> Reply:
    """The answer of a control path; 400 says what was wrong, 404 that there is no such path."""
    handler = _HANDLERS.get((request.method, request.path))
    if handler is None:
        return _error(404, f"no {request.method} {request.path} here")
    try:
        return Reply(200, json.dumps(handler(server, request.body)).encode() + b"\n")
    except (ValueError, TypeError) as error:
        return _error(400, str(error))


def _list_faults(server: MisbehavingServer, body: bytes) -> object:
    return [_fault_facts(armed) for armed in server.armed_faults]


def _arm(server: MisbehavingServer, body: bytes) -> object:
    return _fault_facts(arm_described(server, json.loads(body)))


def _clear(server: MisbehavingServer, body: bytes) -> object:
    server.clear_faults()
    return []


def _list_calls(server: MisbehavingServer, body: bytes) -> object:
    return [_call_facts(call) for call in server.calls]


def _enqueue(server: MisbehavingServer, body: bytes) -> object:
    return server.enqueue_described(json.loads(body))


def _answers(server: MisbehavingServer, body: bytes) -> object:
    return server.answers()


def _fault_facts(armed: ArmedFault) -> dict[str, object]:
    return {
        "call": armed.target,
        "fault": repr(armed.fault),
        "moment": armed.moment,
        "left": armed.left,
        "probability": armed.probability,
        "struck": armed.struck,
    }


def _call_facts(call: Call) -> dict[str, object]:
    return {
        "number": call.number,
        "name": call.name,
        "method": call.method,
        "path": call.path,
        "connection": call.connection,
        "worker_id": call.worker_id,
        "acted": call.acted,
        "status": call.status,
        "outcome": call.outcome,
        "fault": None if call.fault is None else repr(call.fault),
    }


def _error(status: int, text: str) -> Reply:
    return Reply(status, json.dumps({"error": text}).encode() + b"\n")


def _value(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return text


_HANDLERS: dict[tuple[str, str], Callable[[MisbehavingServer, bytes], object]] = {
    ("GET", "/_faults"): _list_faults,
    ("POST", "/_faults"): _arm,
    ("DELETE", "/_faults"): _clear,
    ("GET", "/_calls"): _list_calls,
    ("POST", "/_enqueue"): _enqueue,
    ("GET", "/_answers"): _answers,
}
