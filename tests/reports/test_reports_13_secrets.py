"""Field reports on secrets in logs, representations and errors."""

from __future__ import annotations

import base64
import logging
import threading
import traceback
from collections.abc import Callable

import pytest

from kiwi_worker import Worker
from kiwi_worker.errors import KiwiWorkerError
from kiwi_worker.testing import (
    DropBefore,
    Fault,
    Html502,
    MisbehavingServer,
    NotHttp,
    PartialBody,
    Status,
    WrongJson,
)

NewWorker = Callable[..., Worker]

SECRET = "a-secret-that-must-not-be-seen"
FAULTS = [
    DropBefore(),
    Status(401),
    Status(403),
    Status(500),
    Html502(),
    WrongJson(),
    PartialBody(),
    NotHttp(),
]


@pytest.mark.parametrize("fault", FAULTS, ids=repr)
def test_report_71_no_failure_shows_a_secret_or_a_token(
    new_worker: NewWorker, caplog: pytest.LogCaptureFixture, fault: Fault
) -> None:
    told: list[str] = []
    with (
        MisbehavingServer.kiwi(auth_secret=SECRET, settings={"password": SECRET}) as server,
        caplog.at_level(logging.DEBUG),
    ):
        worker = new_worker(server, auth_secret=SECRET, heartbeat_delay=0.05, safety_interval=0.1)
        worker.method("hello")(lambda: "hello")
        with worker:
            server.assert_answered_once(server.enqueue("hello"), "success")
            for name in ("drain", "lock", "respond", "feedback", "heartbeat", "shutdown"):
                server.fault(name, fault)
            worker.feedback("x", "y")
            for _ in range(3):
                server.enqueue("hello", lock_required=True)
            server.wait_for_calls("heartbeat", 3)
            binding = worker._binding
            told += [repr(worker), repr(worker.settings), repr(vars(worker.settings)), repr(vars(worker))]
            told += [repr(binding), repr(vars(binding)), str(threading.enumerate()), repr(worker.keywords)]
        tokens = {call.request.header("authorization") for call in server.calls} - {None}
        for name in ("token", "register"):
            with MisbehavingServer.kiwi(auth_secret=SECRET) as other:
                other.fault(name, fault, times="always")
                failing = new_worker(other, auth_secret=SECRET, start_limit=0.1)
                try:
                    failing.start()
                except KiwiWorkerError as error:
                    told += [repr(error), repr(vars(error)), *traceback.format_exception(error)]
                failing.stop()
    told += [f"{record.getMessage()} {vars(record)} {record.exc_text}" for record in caplog.records]
    text = "\n".join(told)
    assert SECRET not in text
    assert base64.b64encode(SECRET.encode()).decode().rstrip("=")[:-1] not in text
    for authorization in tokens:
        assert str(authorization).split()[1] not in text
