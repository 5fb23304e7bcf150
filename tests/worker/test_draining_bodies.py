"""What a drain may be answered with, and that a bad part of it takes nothing else down."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable

import pytest
from worker_tools import actions

from kiwi_worker import Worker
from kiwi_worker.errors import ProtocolError
from kiwi_worker.kiwi.messages import elements_of, salvage
from kiwi_worker.testing import (
    ByteOrderMark,
    Chunked,
    DropAfter,
    DropBefore,
    DuplicateMessages,
    EmptyBody,
    ExtraBytes,
    Html502,
    KiwiServer,
    NotHttp,
    PartialBody,
    Redeliver,
    Status,
    UntilClose,
    WrongLength,
)
from kiwi_worker.testing.faults import Fault

NewWorker = Callable[..., Worker]


@pytest.fixture
def greeter(server: KiwiServer, new_worker: NewWorker) -> Worker:
    worker = new_worker(server, safety_interval=0.1)

    @worker.method
    def hello(name: str = "world") -> str:
        return f"hello {name}"

    return worker


EMPTY = [
    EmptyBody(200),
    EmptyBody(204),
    Status(200, b"null"),
    Status(200, b"[]"),
    Status(200, b" \r\n"),
    Status(200, b" [ ] "),
    Status(200, b"\xef\xbb\xbf[]"),
    Status(200, b"\xef\xbb\xbf"),
    Status(200, b"[]", content_type=None),
    Status(200, b"[]", content_type="text/html"),
]


@pytest.mark.parametrize("fault", EMPTY, ids=repr)
def test_no_messages_is_no_failure(
    server: KiwiServer, greeter: Worker, fault: Fault, caplog: pytest.LogCaptureFixture
) -> None:
    server.fault("drain", fault)
    with caplog.at_level(logging.INFO), greeter:
        server.wait_for_calls("drain")
        server.assert_answered_once(server.enqueue("hello"), "success")
    assert not {"drain_failed", "cut_drain"} & set(actions(caplog.records))


FAILING = [
    Html502(),
    Status(500),
    Status(503, headers=(("Retry-After", "0"),)),
    Status(404),
    Status(403),
    Status(200, b"{}"),
    Status(200, b'"x"'),
    Status(200, b"<html>maintenance</html>", content_type="text/html"),
    NotHttp(),
    DropBefore(),
    DropBefore(reset=True),
]


@pytest.mark.parametrize("fault", FAILING, ids=repr)
def test_a_failed_drain_is_done_again(
    server: KiwiServer, greeter: Worker, fault: Fault, caplog: pytest.LogCaptureFixture
) -> None:
    server.probes = False
    greeter.configure(type(greeter.settings).load({**greeter.keywords, "safety_interval": 600}))
    request_id = server.enqueue("hello")
    server.fault("drain", fault)
    with caplog.at_level(logging.INFO), greeter:
        server.assert_answered_once(request_id, "success")
        assert len(server.calls_named("drain")) == 2
    assert actions(caplog.records).count("drain_failed") == 1


@pytest.mark.parametrize(
    "fault", [ByteOrderMark(), Chunked(), Chunked(chunk_bytes=1), UntilClose(), ExtraBytes()], ids=repr
)
def test_unusual_frames_lose_nothing(server: KiwiServer, greeter: Worker, fault: Fault) -> None:
    server.fault("drain", fault)
    ids = [server.enqueue("hello", {"name": "Ünï \u2028 \U0001f600"}) for _ in range(5)]
    with greeter:
        for request_id in ids:
            assert (
                server.assert_answered_once(request_id, "success")["result"] == "hello Ünï \u2028 \U0001f600"
            )


BROKEN_OFF = [
    PartialBody(n_bytes=250),
    DropAfter(n_bytes=400),
    Chunked(broken=True),
    WrongLength(10),
]


@pytest.mark.parametrize("fault", BROKEN_OFF, ids=repr)
def test_what_came_whole_of_a_cut_drain_is_handled(
    server: KiwiServer, greeter: Worker, fault: Fault, caplog: pytest.LogCaptureFixture
) -> None:
    server.fault("drain", fault)
    ids = [server.enqueue("hello", {"name": "x"}) for _ in range(5)]
    with caplog.at_level(logging.INFO), greeter:
        server.assert_answered_once(ids[0], "success")
        server.assert_answered_once(server.enqueue("hello"), "success")
    assert actions(caplog.records).count("cut_drain") == 1
    assert "drain" in caplog.text


def test_a_drain_that_lost_its_whole_answer_is_counted_as_cut(
    server: KiwiServer, greeter: Worker, caplog: pytest.LogCaptureFixture
) -> None:
    server.fault("drain", DropBefore(), after=True)
    server.enqueue("hello")
    with caplog.at_level(logging.INFO), greeter:
        server.wait_for_calls("drain")
        server.assert_answered_once(server.enqueue("hello"), "success")
    assert actions(caplog.records).count("cut_drain") == 1


def _message(request_id: str = "neighbour", **fields: object) -> bytes:
    known = {"request_id": request_id, "method": "hello", "lock_required": False, "params": None}
    return json.dumps({**known, **fields}).encode()


MALFORMED = {
    "no method": b'{"request_id": "bad", "lock_required": false}',
    "method is a number": b'{"request_id": "bad", "method": 5}',
    "lock is a text": b'{"request_id": "bad", "method": "hello", "lock_required": "no"}',
    "lock is a number": b'{"request_id": "bad", "method": "hello", "lock_required": 1}',
    "lock is null": b'{"request_id": "bad", "method": "hello", "lock_required": null}',
    "method is null": b'{"request_id": "bad", "method": null, "params": {}}',
}


@pytest.mark.parametrize("raw", MALFORMED.values(), ids=MALFORMED)
def test_a_malformed_message_with_an_id_is_answered(
    server: KiwiServer, greeter: Worker, raw: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    server.enqueue("hello", request_id="before")
    server.enqueue_raw(raw)
    server.enqueue("hello", request_id="after")
    with caplog.at_level(logging.INFO), greeter:
        server.assert_answered_once("before", "success")
        server.assert_answered_once("after", "success")
        response = server.assert_answered_once("bad", "error")
    assert response["error_text"].startswith("malformed message: ")
    locks = [call.path for call in server.calls_named("lock")]
    asks = b'"no"' in raw or b'"lock_required": 1' in raw
    assert locks == (["/worker/lock_request/bad"] if asks else [])
    assert actions(caplog.records).count("malformed_message") == 1


WITHOUT_ID = {
    "null": b"null",
    "number": b"17",
    "text": b'"hello"',
    "array": b"[1, 2]",
    "no id": b'{"method": "hello"}',
    "id is a number": b'{"request_id": 12, "method": "hello"}',
    "id is null": b'{"request_id": null, "method": "hello"}',
    "id is empty": b'{"request_id": "", "method": "hello"}',
    "lone surrogate": b'{"request_id": "\\ud800", "method": "hello"}',
    "not JSON": b'{"request_id": tru}',
    "not UTF-8": b'{"request_id": "x", "method": "\xff\xfe"}',
    "nested too deep": b'{"request_id": "deep", "method": "hello", "params": '
    + b"[" * 200_000
    + b"]" * 200_000
    + b"}",
}


@pytest.mark.parametrize("raw", WITHOUT_ID.values(), ids=WITHOUT_ID)
def test_a_malformed_message_takes_no_neighbour_down(
    server: KiwiServer, greeter: Worker, raw: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    server.enqueue("hello", request_id="before")
    server.enqueue_raw(raw)
    server.enqueue("hello", request_id="after", lock_required=True)
    with caplog.at_level(logging.INFO), greeter:
        server.assert_answered_once("before", "success")
        server.assert_answered_once("after", "success")
        server.assert_answered_once(server.enqueue("hello"), "success")
    assert "malformed_message" in actions(caplog.records)
    assert "restart_thread" not in actions(caplog.records)


def test_all_bad_neighbours_in_one_drain(server: KiwiServer, greeter: Worker) -> None:
    good = []
    for raw in [*MALFORMED.values(), *WITHOUT_ID.values()]:
        server.enqueue_raw(raw)
        good.append(server.enqueue("hello"))
    with greeter:
        for request_id in good:
            server.assert_answered_once(request_id, "success")


def test_fields_nobody_knows_are_ignored(server: KiwiServer, greeter: Worker) -> None:
    server.enqueue_raw(_message("extra", priority=3, lock_required=False, nested={"a": [1]}))
    server.enqueue_raw(b'{"request_id": "short", "method": "hello"}')
    with greeter:
        server.assert_answered_once("extra", "success")
        server.assert_answered_once("short", "success")


HOSTILE_IDS = [
    "a/b/c",
    "../../worker/auth_token",
    "x\r\nX-Evil: 1",
    "nul\x00id",
    "ünïcode-\U0001f600",
    "with space?and=query&x#y%2F",
    " ",
    'quote"back\\slash',
    "l" * 3000,
]


@pytest.mark.parametrize("request_id", HOSTILE_IDS, ids=ascii)
@pytest.mark.parametrize("lock_required", [False, True])
def test_ids_are_data_and_never_a_path(
    server: KiwiServer, greeter: Worker, request_id: str, lock_required: bool
) -> None:
    with greeter:
        server.enqueue("hello", request_id=request_id, lock_required=lock_required)
        server.assert_answered_once(request_id, "success")
    for call in server.calls_named("lock"):
        assert call.request.segments == ("worker", "lock_request", request_id)
        assert call.path.count("/") == 3
        assert not any(name.lower() == "x-evil" for name, _ in call.headers)
    assert not server.calls_named("other")


def test_the_same_id_twice_in_one_drain_runs_once(server: KiwiServer, new_worker: NewWorker) -> None:
    ran: list[int] = []
    worker = new_worker(server)

    @worker.method
    def note(number: int) -> int:
        ran.append(number)
        return number

    server.fault("drain", DuplicateMessages(copies=3))
    ids = [server.enqueue("note", [number]) for number in range(10)]
    with worker:
        for request_id in ids:
            server.assert_answered_once(request_id, "success")
    assert sorted(ran) == list(range(10))
    assert not server.refused_responses


@pytest.mark.parametrize("lock_required", [False, True])
def test_the_same_id_in_two_drains_runs_once(
    server: KiwiServer, new_worker: NewWorker, lock_required: bool
) -> None:
    ran: list[int] = []
    worker = new_worker(server)

    @worker.method
    def note(number: int) -> int:
        ran.append(number)
        return number

    server.fault("drain", Redeliver())
    ids = [server.enqueue("note", [number], lock_required) for number in range(5)]
    with worker:
        for request_id in ids:
            server.assert_answered_once(request_id, "success")
        server.probe()
        server.assert_answered_once(server.enqueue("note", [99]), "success")
    assert sorted(ran) == [0, 1, 2, 3, 4, 99]
    assert not server.refused_responses


# The splitter, on its own


WHOLE = b'{"request_id": "1", "params": {"a": ["]}", "\\"[", "\\\\"]}}'


@pytest.mark.parametrize("end", range(len(WHOLE) * 2 + 3))
def test_an_array_cut_anywhere_gives_its_whole_elements(end: int) -> None:
    body = b"[" + WHOLE + b"," + WHOLE + b"]"
    found, lost = salvage(body[:end])
    whole = (end >= 1 + len(WHOLE)) + (end >= 2 + 2 * len(WHOLE))
    assert found == [WHOLE] * whole
    assert lost == len(body[1 + whole * (len(WHOLE) + 1) : end].strip())


@pytest.mark.parametrize("body", [b"{}", b"true", b"x", b"<html>", b'{"a": tru', b'"['])
def test_what_is_no_array_is_an_error(body: bytes) -> None:
    with pytest.raises(ProtocolError):
        elements_of(body)
    assert salvage(body) == ([], len(body))
