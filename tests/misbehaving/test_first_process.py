"""A worker as the first process of a container, shown in a PID namespace (report 63)."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from programs import LIMIT_SECONDS, children_of, eventually, running

from kiwi_worker.testing import MisbehavingServer

BODY = """
@worker.method
def own_pid() -> int:
    return os.getpid()

@worker.method(executor="process")
def process_pid() -> int:
    return os.getpid()

@worker.method
def leave_an_orphan() -> None:
    program = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'pass'])"
    subprocess.run([sys.executable, "-c", program], check=True)
"""


def namespaces() -> list[str]:
    command = ["unshare", "--pid", "--fork", "--kill-child"]
    if shutil.which("unshare") is None:
        return []
    tried = subprocess.run([*command, "true"], capture_output=True, timeout=LIMIT_SECONDS)
    return command if tried.returncode == 0 else []


NEEDED = namespaces()
pytestmark = pytest.mark.skipif(not NEEDED, reason="this system makes no PID namespaces for us")


@pytest.fixture
def server() -> Iterator[Any]:
    with MisbehavingServer.kiwi() as running_server:
        yield running_server


@pytest.mark.parametrize("processes", [1, 2])
def test_report_63_the_first_process_of_a_container_serves_and_stops_in_order(
    server: Any, tmp_path: Path, processes: int
) -> None:
    command = (*NEEDED, sys.executable, "program.py")
    with running(BODY, server, tmp_path, command=command, processes=processes) as program:
        server.wait_for_registration(processes)
        first = server.wait_for_response(server.enqueue("own_pid"), LIMIT_SECONDS)["result"]
        assert (first == 1) == (processes == 1)
        assert server.wait_for_response(server.enqueue("process_pid"), LIMIT_SECONDS)["result"] > 1
        (worker,) = children_of(program.pid)
        os.kill(worker, signal.SIGTERM)
        assert program.end() == 0
    assert len(server.shutdowns) == processes


def test_report_63_a_supervisor_sees_orphans_off(server: Any, tmp_path: Path) -> None:
    command = (*NEEDED, sys.executable, "program.py")
    with running(BODY, server, tmp_path, command=command, processes=2) as program:
        server.wait_for_registration(2)
        (supervisor,) = children_of(program.pid)
        own = children_of(supervisor)
        for _ in range(3):
            server.assert_answered_once(server.enqueue("leave_an_orphan"), "success")
        eventually(lambda: children_of(supervisor) == own)
        os.kill(supervisor, signal.SIGTERM)
        assert program.end() == 0
