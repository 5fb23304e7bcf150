"""The start: what is waited for, what ends it, and with which error."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from worker_tools import eventually, running, worker_environment, worker_settings

from kiwi_worker import Worker
from kiwi_worker.errors import (
    AuthenticationError,
    KiwiWorkerError,
    ProbePortError,
    RegistrationError,
    SettingsError,
    UnreachableError,
)
from kiwi_worker.testing import (
    DropBefore,
    Html502,
    KiwiServer,
    MisbehavingServer,
    NotHttp,
    PartialBody,
    Status,
    TooManyRequests,
    WrongClock,
)

NewWorker = Callable[..., Worker]


def make(new_worker: NewWorker, server: KiwiServer | str, **settings: Any) -> Worker:
    worker = new_worker(server, **settings)
    worker.method("hello")(lambda: "hello")
    return worker


def test_a_worker_may_start_before_its_middleware(new_worker: NewWorker) -> None:
    server = MisbehavingServer.kiwi()
    server.start()
    server.stop()
    worker = make(new_worker, server)
    starting = threading.Thread(target=worker.start)
    starting.start()
    time.sleep(0.1)  # so that it fails once at least
    assert starting.is_alive()
    with server:
        starting.join(20)
        server.assert_answered_once(server.enqueue("hello"), "success")
        worker.stop()
        server.assert_protocol_kept()


PASSING = [
    Status(500),
    Html502(),
    Status(503),
    Status(408),
    TooManyRequests(0),
    DropBefore(),
    DropBefore(reset=True),
    NotHttp(),
    PartialBody(),
]


@pytest.mark.parametrize("call", ["token", "register"])
@pytest.mark.parametrize("fault", PASSING, ids=repr)
def test_what_passes_is_waited_for(
    server: KiwiServer, new_worker: NewWorker, call: str, fault: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kiwi_worker.kiwi.tokens._FIRST_PAUSE_SECONDS", 0.01)
    server.fault(call, fault)
    with make(new_worker, server):
        server.assert_answered_once(server.enqueue("hello"), "success")
    assert len(server.calls_named(call)) == 2


@pytest.mark.parametrize("status", [400, 403, 404, 409, 422])
def test_a_refused_registration_ends_the_start(
    server: KiwiServer, new_worker: NewWorker, status: int
) -> None:
    server.fault("register", Status(status, b'{"error": "no such service"}'))
    worker = make(new_worker, server)
    with pytest.raises(RegistrationError, match=f"{status}.*no such service") as caught:
        worker.start()
    assert caught.value.exit_status == 78
    assert len(server.calls_named("register")) == 1
    assert not server.calls_named("drain")


def test_a_registration_refused_with_401_twice_is_a_matter_of_credentials(
    server: KiwiServer, new_worker: NewWorker
) -> None:
    server.fault("register", Status(401), times="always")
    worker = make(new_worker, server)
    with pytest.raises(AuthenticationError) as caught:
        worker.start()
    assert caught.value.exit_status == 77


@pytest.mark.parametrize("limit", [0.05, 0.6])
def test_a_start_limit_ends_the_waiting(new_worker: NewWorker, limit: float) -> None:
    worker = make(new_worker, "http://127.0.0.1:9", start_limit=limit)
    since = time.monotonic()
    with pytest.raises(UnreachableError, match=r"127\.0\.0\.1:9") as caught:
        worker.start()
    assert limit <= time.monotonic() - since < limit + 5
    assert caught.value.exit_status == 69


def test_a_port_in_use_ends_the_start(server: KiwiServer, new_worker: NewWorker) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        worker = make(new_worker, server, wakeup_probe_service_port=port)
        with pytest.raises(ProbePortError, match=str(port)) as caught:
            worker.start()
    assert caught.value.exit_status == 78
    assert not server.calls


def test_no_secret_ends_the_start(server: KiwiServer) -> None:
    settings = worker_settings(server)
    del settings["auth_secret"]
    worker = Worker(**settings)
    with pytest.raises(SettingsError, match="auth_secret"):
        worker.start()
    assert not server.calls


def test_the_secret_file_is_read_again_for_each_token(
    server: KiwiServer, new_worker: NewWorker, tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("test-secret\n")
    settings = worker_settings(server, auth_secret_file=str(secret))
    del settings["auth_secret"]
    worker = Worker(**settings)
    worker.method("hello")(lambda: "hello")
    with worker:
        server.assert_answered_once(server.enqueue("hello"), "success")
        server.change_secret("rotated")
        secret.write_text("rotated\n")
        server.expire_tokens()
        server.assert_answered_once(server.enqueue("hello"), "success")
        assert worker.failure is None


@pytest.mark.parametrize("offset", [-86_400 * 400, 86_400 * 400])
@pytest.mark.parametrize("send_expires_in", [True, False])
def test_a_wrong_clock_at_the_middleware_does_no_harm(
    new_worker: NewWorker, offset: float, send_expires_in: bool
) -> None:
    with MisbehavingServer.kiwi(send_expires_in=send_expires_in) as server:
        server.fault("*", WrongClock(offset), times="always")
        with make(new_worker, server):
            for _ in range(3):
                server.assert_answered_once(server.enqueue("hello"), "success")
        assert len(server.calls_named("token")) == 1


def test_one_token_for_all_threads_however_many_calls_fail(server: KiwiServer, new_worker: NewWorker) -> None:
    with make(new_worker, server, concurrency=8, heartbeat_delay=0.02) as worker:
        ids = [server.enqueue("hello", lock_required=True) for _ in range(100)]
        for _ in range(2):
            server.expire_tokens()
            worker.feedback("x", "y")
            server.wait_for_calls("heartbeat", len(server.calls_named("heartbeat")) + 2)
        for request_id in ids:
            server.assert_answered_once(request_id, "success")
    assert len(server.calls_named("token")) <= 4


STATUSES: dict[str, tuple[str, Any, int]] = {
    "credentials": ("token", Status(401), 77),
    "registration": ("register", Status(400), 78),
}


@pytest.mark.parametrize("case", STATUSES)
def test_exit_statuses_of_a_failed_start(server: KiwiServer, case: str) -> None:
    call, fault, expected = STATUSES[case]
    server.fault(call, fault, times="always")
    program = "from kiwi_worker import Worker\nWorker().run()"
    with running(program, **worker_environment(server)) as process:
        status, output, errors = process.end()
    assert (status, output) == (expected, "")
    assert errors.splitlines()[-1].startswith("kiwi-worker: ")
    assert "Traceback" not in errors
    assert "test-secret" not in errors


def test_exit_status_of_an_unreachable_middleware() -> None:
    program = "from kiwi_worker import Worker\nWorker().run()"
    with running(program, **worker_environment("http://127.0.0.1:9", start_limit=0.1)) as process:
        status, _, errors = process.end()
    assert status == 69
    assert errors.splitlines()[-1].startswith("kiwi-worker: the middleware at ")


def test_nothing_is_left_of_a_start_that_failed(server: KiwiServer, new_worker: NewWorker) -> None:
    server.fault("register", Status(403), times="always")
    before = threading.active_count()
    for _ in range(3):
        with pytest.raises(KiwiWorkerError):
            make(new_worker, server).start()
    eventually(lambda: server.open_connections == 0)
    eventually(lambda: threading.active_count() <= before)
