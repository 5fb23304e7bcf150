"""Whatever the runtime, or a proxy before it, answers: only what is declared is raised."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, cast

import pytest
from any_answers import DEEP, bodies
from hypothesis import given, settings
from hypothesis import strategies as st

from kiwi_worker.errors import ProtocolError
from kiwi_worker.orbit.calls import Execution, OrbitCallError, _checked, _execution
from kiwi_worker.orbit.http import HttpWire
from kiwi_worker.orbit.servers import Credentials, Servers
from kiwi_worker.orbit.wire import Refused
from kiwi_worker.transport import Answer

REGISTERED = ("worker_session_id", "heartbeat_interval_ms", "session_timeout_ms", "warnings")
ASSIGNMENT = ("token", "task_name", "contract_version", "input", "attempt", "redelivery", "deadline_ms", "x")
Ask = Callable[[HttpWire], object]
CALLS: dict[str, tuple[Ask, tuple[str, ...]]] = {
    "register": (lambda wire: wire.register({}, 1), REGISTERED),
    "poll": (lambda wire: wire.poll("s", 0), ASSIGNMENT),
    "heartbeat": (lambda wire: wire.heartbeat("s", 1), ("accepted", "cancel")),
    "complete": (lambda wire: wire.result("complete", b"{}", 1), ("accepted", "reason")),
    "unregister": (lambda wire: wire.unregister("s", 1), ()),
}


class Answers:
    """In place of a connection."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer

    def call(self, *_: Any, **__: Any) -> Answer:
        return self.answer


def wire_answered(answer: Answer) -> HttpWire:
    wire = HttpWire([], Servers(1, Credentials(None)), user_agent="test")
    wire._channels[0] = cast(Any, Answers(answer))
    return wire


@pytest.mark.parametrize("call", CALLS)
@settings(deadline=None, max_examples=150)
@given(
    status=st.sampled_from([200, 200, 200, 204, 400, 404, 409, 503]),
    head=st.sampled_from(["x-orbit-api-version: 1", "content-type: text/plain", "Retry-After: -1", "x"]),
    data=st.data(),
)
def test_any_answer_is_what_it_should_be_or_an_error_that_is_declared(
    call: str, status: int, head: str, data: st.DataObject
) -> None:
    ask, names = CALLS[call]
    body = data.draw(bodies(*names, "error"))
    answer = Answer(status, body, f"HTTP/1.1 {status} X\r\n{head}".encode())
    with contextlib.suppress(ProtocolError, Refused):
        ask(wire_answered(answer))


@pytest.mark.parametrize("call", ["register", "poll", "heartbeat", "complete"])
def test_an_answer_nested_too_deep_is_an_error_of_the_protocol(call: str) -> None:
    ask, _ = CALLS[call]
    wire = wire_answered(Answer(200, b'{"x":%b}' % DEEP, b"HTTP/1.1 200 OK\r\nx-orbit-api-version: 1"))
    with pytest.raises(ProtocolError, match="not what the protocol page says"):
        ask(wire)


def test_a_refusal_nested_too_deep_is_still_a_refusal() -> None:
    with pytest.raises(Refused) as caught:
        wire_answered(Answer(503, DEEP)).poll("s", 0)
    assert (caught.value.status, caught.value.ours) == (503, False)


@settings(deadline=None, max_examples=200)
@given(
    status=st.sampled_from([200, 400, 404, 503]),
    body=bodies("error", "id", "status", "workflow", "output", "steps"),
)
def test_any_answer_to_a_client_is_an_execution_or_an_error_that_is_declared(
    status: int, body: bytes
) -> None:
    with contextlib.suppress(OrbitCallError, ProtocolError):
        assert isinstance(_execution(_checked(Answer(status, body))), Execution)
