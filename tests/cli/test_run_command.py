"""`kiwi-worker run` as the main program of a process: work, signals, exit statuses, what it prints."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kiwi_worker.testing import KiwiServer, MisbehavingServer, Status

LIMIT_SECONDS = 30.0

MODULE = """
import time
from kiwi_worker import Context, Worker

worker = Worker(version="in code", wakeup_probe_service_port=0, heartbeat_delay=0.05)

@worker.method
def hello(name: str = "world", *, ctx: Context) -> str:
    ctx.logger.info("greeting")
    return f"hello {name}"

@worker.method
def stuck() -> None:
    time.sleep(600)

other = Worker(run_mode="eager", worker_id="other", service_id="test", wait=0.5)

@other.method
def pair() -> int:
    return 2

both = [worker, other]
"""


class Run:
    """A running command, whose output is read at its end."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def ended(self, number: int | None = None) -> tuple[int, list[str]]:
        """Its exit status and the lines of its log; after a signal, when one is given."""
        if number is not None:
            self.process.send_signal(number)
        output, errors = self.process.communicate(timeout=LIMIT_SECONDS)
        assert output == ""
        return self.process.returncode, errors.splitlines()


@pytest.fixture
def server() -> Iterator[KiwiServer]:
    with MisbehavingServer.kiwi(service_id="test", auth_secret="a-secret-of-this-file") as running:
        yield running


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "tasks.py").write_text(MODULE)
    return tmp_path


@contextmanager
def running(
    folder: Path, url: str, *arguments: str, target: str = "tasks", **environment: str
) -> Iterator[Run]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("KIWI_", "ORBIT_"))}
    given = {
        "KIWI_MIDDLEWARE_URL": url,
        "KIWI_SERVICE_ID": "test",
        "KIWI_AUTH_SECRET": "a-secret-of-this-file",
        "KIWI_WORKER_ID": "w1",
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "kiwi_worker", "run", target, *arguments],
        cwd=folder,
        env={**clean, **given, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield Run(process)
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_it_serves_until_a_signal_and_ends_with_0(
    server: KiwiServer, folder: Path, number: signal.Signals
) -> None:
    with running(folder, server.url, "--version", "1.2.3") as run:
        registration = server.wait_for_registration()
        request_id = server.enqueue("hello", {"name": "Ada"})
        server.assert_answered_once(request_id, "success")
        status, log = run.ended(number)

    assert (status, registration["version"]) == (0, "1.2.3")
    assert sorted(registration["methods"]) == ["hello", "stuck"]
    (greeting,) = (line for line in log if "greeting" in line)
    assert greeting.endswith(f"greeting [method=hello request_id={request_id}]")
    assert server.shutdowns == ["w1"]


def test_a_module_that_runs_its_worker_itself_is_run_once_and_not_by_a_check(
    server: KiwiServer, folder: Path
) -> None:
    (folder / "script.py").write_text(MODULE + "\nworker.run()\n")
    with running(folder, server.url, "--check", target="script") as run:
        output, errors = run.process.communicate(timeout=LIMIT_SECONDS)
        assert (run.process.returncode, errors) == (0, "")
        assert output.endswith("all right; connected to nothing\n")
    assert server.calls == []

    with running(folder, server.url, "--version", "1.2.3", target="script") as run:
        assert server.wait_for_registration()["version"] == "1.2.3"
        assert run.ended(signal.SIGTERM)[0] == 0
    assert len(server.registrations) == 1


def test_workers_of_a_list_share_the_process(server: KiwiServer, folder: Path) -> None:
    with running(folder, server.url, target="tasks:both") as run:
        server.wait_for_registration(2)
        answers = [server.enqueue("hello", worker_id="w1"), server.enqueue("pair", worker_id="other")]
        for request_id in answers:
            server.assert_answered_once(request_id, "success")
        assert run.ended(signal.SIGTERM)[0] == 0
    assert sorted(server.shutdowns) == ["other", "w1"]


def test_a_second_signal_ends_it_at_once(server: KiwiServer, folder: Path) -> None:
    with running(folder, server.url) as run:
        server.wait_for_registration()
        server.enqueue("stuck")
        wait_until(lambda: server.queue_size("w1") == 0)
        run.process.terminate()
        wait_until(lambda: server.shutdowns)
        assert run.ended(signal.SIGTERM)[0] == 128 + signal.SIGTERM


def test_work_that_outlasts_the_grace_period_is_status_1(server: KiwiServer, folder: Path) -> None:
    with running(folder, server.url, "--grace-period", "0.2") as run:
        server.wait_for_registration()
        request_id = server.enqueue("stuck")
        wait_until(lambda: server.queue_size("w1") == 0)
        assert run.ended(signal.SIGTERM)[0] == 1
    server.assert_answered_once(request_id, "failed")


REFUSALS: list[tuple[str, dict[str, Any], int, str]] = [
    ("credentials", {"KIWI_AUTH_SECRET": "another-wrong-secret"}, 77, "refused"),
    (
        "start limit",
        {"KIWI_MIDDLEWARE_URL": "http://127.0.0.1:9", "KIWI_START_LIMIT": "0.2"},
        69,
        "within 0.2 s",
    ),
    ("probe port", {"KIWI_WAKEUP_PROBE_BIND": "192.0.2.1"}, 78, "192.0.2.1"),
    ("journal", {"KIWI_JOURNAL": "no/such/folder/journal"}, 78, "journal"),
]


@pytest.mark.parametrize(
    ("environment", "status", "word"), [case[1:] for case in REFUSALS], ids=[case[0] for case in REFUSALS]
)
def test_a_start_that_cannot_succeed_is_one_line_and_a_status(
    server: KiwiServer, folder: Path, environment: dict[str, str], status: int, word: str
) -> None:
    with running(folder, server.url, "--log-level", "critical", **environment) as run:
        ended, log = run.ended()
    assert (ended, len(log)) == (status, 1), log
    assert log[0].startswith("kiwi-worker run: ")
    assert word in log[0]


def test_a_refused_registration_is_78(server: KiwiServer, folder: Path) -> None:
    server.fault("register", Status(422), times="always")
    with running(folder, server.url, "--log-level", "critical") as run:
        ended, log = run.ended()
    assert (ended, len(log)) == (78, 1), log


def test_a_middleware_that_forgets_the_worker_is_75(server: KiwiServer, folder: Path) -> None:
    with running(folder, server.url) as run:
        server.wait_for_registration()
        server.forget_workers()
        ended, log = run.ended()
    assert ended == 75
    assert log[-1].startswith("kiwi-worker run: ")


@pytest.mark.parametrize("traceback_wanted", [False, True])
def test_a_start_hook_that_raises_is_1_and_a_traceback_only_on_demand(
    server: KiwiServer, folder: Path, traceback_wanted: bool
) -> None:
    (folder / "hooked.py").write_text(
        MODULE + "\n@worker.on_start\ndef connect(): raise OSError('no\\ndatabase')\n"
    )
    options = ["--log-level", "critical", *(["--traceback"] if traceback_wanted else [])]
    with running(folder, server.url, *options, target="hooked") as run:
        ended, log = run.ended()
    assert ended == 1
    assert log[-1] == "kiwi-worker run: start hook `connect` raised OSError: no database"
    assert (len(log) > 1) == traceback_wanted
    assert any("hooked.py" in line for line in log) == traceback_wanted


def test_nothing_secret_is_logged_at_debug(server: KiwiServer, folder: Path) -> None:
    with running(folder, server.url, "--log-level", "debug") as run:
        server.wait_for_registration()
        server.expire_tokens()
        server.assert_answered_once(server.enqueue("hello"), "success")
        status, log = run.ended(signal.SIGTERM)
    assert status == 0
    assert any(" DEBUG " in line for line in log)
    assert not [line for line in log if "a-secret-of-this-file" in line or "eyJ" in line]


def test_reload_starts_anew_when_a_file_changes(server: KiwiServer, folder: Path) -> None:
    pytest.importorskip("watchfiles")
    with running(folder, server.url, "--reload") as run:
        server.wait_for_registration()
        (folder / "tasks.py").write_text(MODULE.replace("pair", "trio").replace('"in code"', '"changed"'))
        server.wait_for_registration(2, timeout=LIMIT_SECONDS)
        status, log = run.ended(signal.SIGINT)
    assert [one["version"] for one in server.registrations] == ["in code", "changed"]
    assert status == 0
    assert len(server.calls_named("shutdown")) == 2
    assert "kiwi-worker run: a file changed, starting anew" in log


def wait_until(condition: Any) -> None:
    end = time.monotonic() + LIMIT_SECONDS
    while not condition():
        assert time.monotonic() < end, "it did not come about"
        threading.Event().wait(0.01)
