"""`processes = N`: full workers under a small supervisor."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kiwi_worker.testing import MisbehavingServer

LIMIT_SECONDS = 30
PROGRAM = """
import os, time
from kiwi_worker import Worker

worker = Worker(run_mode={mode!r}, wait=1, grace_period={grace})

@worker.method
def pid() -> int:
    return os.getpid()

@worker.method
def hang() -> None:
    time.sleep(3600)

if __name__ == "__main__":
    worker.run()
"""


@pytest.fixture
def server() -> Iterator[Any]:
    with MisbehavingServer.kiwi() as running:
        yield running


@contextmanager
def running(
    server: Any,
    folder: Path,
    *,
    mode: str = "eager",
    grace: float = 2,
    command: str = "script",
    **settings: str,
) -> Iterator[subprocess.Popen[bytes]]:
    (folder / "program.py").write_text(PROGRAM.format(mode=mode, grace=grace))
    environment = {
        **os.environ,
        "KIWI_MIDDLEWARE_URL": server.url,
        "KIWI_SERVICE_ID": "test-service",
        "KIWI_AUTH_SECRET": "test-secret",
        "KIWI_WORKER_ID": "w",
        "KIWI_PROCESSES": "2",
        **settings,
    }
    commands = {"script": ["program.py"], "run": ["-m", "kiwi_worker", "run", "program"]}
    stdin = subprocess.PIPE if settings.get("KIWI_AUTH_SECRET_FILE") == "-" else None
    if stdin is not None:
        del environment["KIWI_AUTH_SECRET"]
    process = subprocess.Popen([sys.executable, *commands[command]], cwd=folder, env=environment, stdin=stdin)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        if process.stdin is not None:
            process.stdin.close()


def children_of(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def eventually(condition: Callable[[], object]) -> None:
    until = time.monotonic() + LIMIT_SECONDS
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.01)


@pytest.mark.parametrize("command", ["script", "run"])
def test_two_workers_register_serve_and_stop_in_order(server: Any, tmp_path: Path, command: str) -> None:
    with running(server, tmp_path, command=command) as process:
        server.wait_for_registration(2)
        children = children_of(process.pid)
        request = server.enqueue("pid")
        assert server.wait_for_response(request, LIMIT_SECONDS)["result"] in children
        process.terminate()
        assert process.wait(LIMIT_SECONDS) == 0
    assert sorted(one["worker_id"] for one in server.registrations) == ["w-1", "w-2"]
    assert sorted(server.shutdowns) == ["w-1", "w-2"]
    assert not any(map(is_alive, children))


def test_lazy_workers_have_a_probe_port_each(server: Any, tmp_path: Path) -> None:
    with running(server, tmp_path, mode="lazy", KIWI_WAKEUP_PROBE_SERVICE_PORT="0"):
        server.wait_for_registration(2)
        ports = {one["port"] for one in server.registrations}
    assert len(ports) == 2


def test_report_64_a_killed_process_is_replaced(server: Any, tmp_path: Path) -> None:
    with running(server, tmp_path) as process:
        server.wait_for_registration(2)
        victim = children_of(process.pid)[0]
        os.kill(victim, signal.SIGKILL)
        server.wait_for_registration(3)
        assert victim not in children_of(process.pid)
        process.terminate()
        assert process.wait(LIMIT_SECONDS) == 0


def test_no_orphan_when_the_supervisor_is_killed(server: Any, tmp_path: Path) -> None:
    with running(server, tmp_path) as process:
        server.wait_for_registration(2)
        children = children_of(process.pid)
        process.kill()
        eventually(lambda: not any(map(is_alive, children)))


def test_refused_credentials_end_all_with_their_status(server: Any, tmp_path: Path) -> None:
    with running(server, tmp_path, KIWI_AUTH_SECRET="wrong") as process:
        assert process.wait(LIMIT_SECONDS) == 77


def test_the_secret_on_standard_input_reaches_every_process(server: Any, tmp_path: Path) -> None:
    with running(server, tmp_path, KIWI_AUTH_SECRET_FILE="-") as process:
        assert process.stdin is not None
        process.stdin.write(b"test-secret\n")
        process.stdin.close()
        server.wait_for_registration(2)


def test_a_handler_that_never_ends_is_cut_off_and_the_status_says_so(server: Any, tmp_path: Path) -> None:
    with running(server, tmp_path, grace=0.2) as process:
        server.wait_for_registration(2)
        request = server.enqueue("hang")
        server.wait_until(lambda: server.queue_size() == 0)
        process.terminate()
        assert process.wait(LIMIT_SECONDS) == 1
    assert server.wait_for_response(request, LIMIT_SECONDS)["status"] in ("failed", "error")


def test_a_second_signal_ends_everything_at_once(server: Any, tmp_path: Path) -> None:
    with running(server, tmp_path, grace=60) as process:
        server.wait_for_registration(2)
        children = children_of(process.pid)
        server.enqueue("hang")
        server.wait_until(lambda: server.queue_size() == 0)
        process.terminate()
        eventually(lambda: server.shutdowns)
        process.terminate()
        assert process.wait(LIMIT_SECONDS) == 128 + signal.SIGTERM
        eventually(lambda: not any(map(is_alive, children)))
