"""Whatever the middleware, or a proxy before it, answers to a caller: only what is declared is raised."""

from __future__ import annotations

import contextlib

import pytest
from any_answers import DEEP, bodies
from hypothesis import given, settings
from hypothesis import strategies as st

from kiwi_worker.calling.core import read
from kiwi_worker.calling.wire import EventReader
from kiwi_worker.client import CallError, Outcome
from kiwi_worker.errors import ProtocolError
from kiwi_worker.transport import Answer


@settings(deadline=None, max_examples=300)
@given(
    status=st.sampled_from([200, 202, 400, 404, 503]),
    body=bodies("request_id", "status", "result", "error_text", "reason", "error", "message"),
)
def test_any_answer_is_an_outcome_or_an_error_that_is_declared(status: int, body: bytes) -> None:
    with contextlib.suppress(CallError, ProtocolError):
        assert isinstance(read(Answer(status, body), Outcome), Outcome)


@settings(deadline=None, max_examples=200)
@given(
    st.lists(st.sampled_from([b"event: ", b"id: ", b"data: ", b": ", b"\n", b"7", b"x", b"{}", b"\xff"])).map(
        b"".join
    )
)
def test_any_event_is_one_or_an_error_that_is_declared(block: bytes) -> None:
    with contextlib.suppress(ProtocolError):
        EventReader().feed(block + b"\n\n")


def test_an_answer_nested_too_deep_is_an_error_of_the_protocol() -> None:
    with pytest.raises(ProtocolError, match="cannot be read"):
        read(Answer(200, DEEP), Outcome)
    with pytest.raises(CallError, match="not the middleware's own"):
        read(Answer(503, DEEP), Outcome)


@pytest.mark.parametrize("block", [b"id: x\ndata: {}\n\n", b"event: \xff\ndata: {}\n\n"])
def test_an_event_that_cannot_be_read_is_an_error_of_the_protocol(block: bytes) -> None:
    with pytest.raises(ProtocolError, match="event"):
        EventReader().feed(block)
