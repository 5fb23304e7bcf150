"""Field reports on forks and process starts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from programs import PACKAGES
from worker_tools import worker_settings

from kiwi_worker.testing import KiwiServer

PROGRAM = """
import multiprocessing, sys, threading
from kiwi_worker import Worker

worker = Worker()

@worker.method
def hello(name: str = "world") -> str:
    return f"hello {name}"

@worker.method(executor="process")
def far(number: int) -> int:
    return number + 1

def serve(stop) -> None:
    with worker:
        stop.wait()

if __name__ == "__main__":
    assert threading.active_count() == 1, "a worker that has not started has no thread"
    context = multiprocessing.get_context(sys.argv[1])
    stop = context.Event()
    child = context.Process(target=serve, args=(stop,))
    child.start()
    sys.stdin.read()
    stop.set()
    child.join()
    sys.exit(child.exitcode)
"""
STRICT = ("-X", "dev", "-W", "error")


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_report_65_a_worker_runs_in_a_child_of_any_start_method(
    server: KiwiServer, tmp_path: Path, method: str
) -> None:
    _run_in_a_child(server, tmp_path, method, ())


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_report_67_nothing_of_it_is_deprecated(server: KiwiServer, tmp_path: Path, method: str) -> None:
    _run_in_a_child(server, tmp_path, method, STRICT)


def _run_in_a_child(server: KiwiServer, tmp_path: Path, method: str, flags: tuple[str, ...]) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    settings = worker_settings(server, run_mode="eager", wait=1, grace_period=3)
    environment = {f"KIWI_{key.upper()}": str(value) for key, value in settings.items()}
    with subprocess.Popen(
        [sys.executable, *flags, "program.py", method],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": PACKAGES, **environment},
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as program:
        answer = server.assert_answered_once(server.enqueue("hello", {"name": "Ada"}), timeout=20)
        assert answer["result"] == "hello Ada"
        if method != "fork":
            assert server.assert_answered_once(server.enqueue("far", [1]), timeout=20)["result"] == 2
        _, errors = program.communicate(timeout=20)
    assert program.returncode == 0, errors
    assert "Warning" not in errors
