"""Field reports on duplicates and locks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from programs import running

from kiwi_worker import Worker
from kiwi_worker.testing import DropBefore, DuplicateMessages, Fault, KiwiServer, Redeliver, Status

NewWorker = Callable[..., Worker]


@pytest.mark.parametrize("fault", [DuplicateMessages(3), Redeliver()], ids=repr)
@pytest.mark.parametrize("lock_required", [False, True])
def test_report_41_a_message_that_comes_twice_runs_once(
    server: KiwiServer, new_worker: NewWorker, fault: Fault, lock_required: bool
) -> None:
    ran: list[int] = []
    worker = new_worker(server, safety_interval=0.05)
    worker.method("note")(lambda number: ran.append(number))
    server.fault("drain", fault)
    requests = [server.enqueue("note", [number], lock_required) for number in range(10)]
    with worker:
        for request in requests:
            server.assert_answered_once(request, "success")
        server.probe()
        server.assert_answered_once(server.enqueue("note", [10]), "success")
    assert sorted(ran) == list(range(11))
    assert server.refused_responses == []


def test_report_41_probes_and_looks_at_once_run_each_message_once(
    server: KiwiServer, new_worker: NewWorker
) -> None:
    ran: list[int] = []
    worker = new_worker(server, safety_interval=0.01)
    worker.method("note")(lambda number: ran.append(number))
    with worker:
        requests = [server.enqueue("note", [number]) for number in range(50)]
        for request in requests:
            server.assert_answered_once(request, "success")
    assert sorted(ran) == list(range(50))


@pytest.mark.parametrize("status", [404, 409, 423])
def test_report_42_a_refused_lock_starts_and_answers_nothing(
    server: KiwiServer, new_worker: NewWorker, status: int
) -> None:
    ran: list[str] = []
    worker = new_worker(server)
    worker.method("note")(lambda text: ran.append(text))
    refused = server.enqueue("note", ["refused"], True)
    server.refuse_locks(refused, status=status)
    with worker:
        server.wait_for_calls("lock")
        server.assert_answered_once(server.enqueue("note", ["mine"], True), "success")
    assert ran == ["mine"]
    assert [one["request_id"] for one in server.responses] != [refused]


@pytest.mark.parametrize(
    ("fault", "after"),
    [(Status(500), False), (Status(503), False), (DropBefore(), False), (DropBefore(), True)],
    ids=repr,
)
def test_report_42_a_lock_in_doubt_is_asked_for_again_before_the_handler_runs(
    server: KiwiServer, new_worker: NewWorker, fault: Fault, after: bool
) -> None:
    ran: list[int] = []
    worker = new_worker(server)
    worker.method("note")(lambda number: ran.append(number))
    server.fault("lock", fault, after=after)
    with worker:
        server.assert_answered_once(server.enqueue("note", [1], True), "success")
    assert len(server.calls_named("lock")) == 2
    assert ran == [1]


KILLER = """
@worker.method
def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)

@worker.method(on_crash="run_again")
def kill_again() -> None:
    os.kill(os.getpid(), signal.SIGKILL)

@worker.method
def hello() -> str:
    return "hello"
"""


def test_report_44_a_message_that_kills_its_worker_is_answered_by_the_next(
    server: KiwiServer, tmp_path: Path
) -> None:
    journal = tmp_path / "journal"
    killing = server.enqueue("kill")
    with running(KILLER, server, tmp_path, journal=journal) as program:
        assert program.end() == -9
    waiting = server.enqueue("hello")
    with running(KILLER, server, tmp_path, journal=journal) as program:
        assert "died" in server.assert_answered_once(killing, "error")["error_text"]
        server.assert_answered_once(waiting, "success")
        program.signal()
        assert program.end() == 0


def test_report_44_a_message_that_kills_every_run_is_not_run_for_ever(
    server: KiwiServer, tmp_path: Path
) -> None:
    journal = tmp_path / "journal"
    killing = server.enqueue("kill_again")
    for _ in range(3):
        with running(KILLER, server, tmp_path, journal=journal) as program:
            assert program.end() == -9
    with running(KILLER, server, tmp_path, journal=journal) as program:
        text = server.assert_answered_once(killing, "error")["error_text"]
        assert "3 times" in text
        server.assert_answered_once(server.enqueue("hello"), "success")
        program.signal()
        assert program.end() == 0


def test_report_44_a_message_without_payload_comes_once(server: KiwiServer, new_worker: NewWorker) -> None:
    worker = new_worker(server, safety_interval=0.05)
    worker.method("hello")(lambda: "hello")
    for raw in (b"{}", b"null", b'{"request_id": "x"}'):
        server.enqueue_raw(raw)
    with worker:
        server.assert_answered_once("x", "error")
        server.assert_answered_once(server.enqueue("hello"), "success")
    assert server.queue_size() == 0
