"""Worker programs in processes of their own, for what can only be tried on a whole process."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import kiwi_worker

LIMIT_SECONDS = 30.0
PACKAGES = str(Path(kiwi_worker.__file__).parents[1])

HEAD = """
import ctypes, logging, os, re, signal, subprocess, sys, threading, time
from kiwi_worker import Context, Worker

worker = Worker()
"""
FOOT = """
if __name__ == "__main__":
    worker.run()
"""


class Program:
    """A running program; standard error is collected in a file, so that it never fills a pipe."""

    def __init__(self, command: list[str], folder: Path, environment: dict[str, str]) -> None:
        self.errors_file = folder / "errors.txt"
        with self.errors_file.open("wb") as errors:
            # A group of its own, so that signals for all of it do not reach the tests.
            self.popen = subprocess.Popen(
                command, cwd=folder, env=environment, stderr=errors, start_new_session=True
            )
        self.pid = self.popen.pid

    def signal(self, number: int = signal.SIGTERM) -> None:
        self.popen.send_signal(number)

    def end(self) -> int:
        """Wait for its end and give its status."""
        return self.popen.wait(LIMIT_SECONDS)

    def seconds_to_end(self) -> tuple[int, float]:
        """Its status, and how long its end took from now."""
        since = time.monotonic()
        return self.end(), time.monotonic() - since

    @property
    def errors(self) -> str:
        """What it wrote to standard error so far."""
        return self.errors_file.read_text()


@contextlib.contextmanager
def running(
    body: str,
    server: Any,
    folder: Path,
    *,
    arguments: tuple[str, ...] = (),
    command: tuple[str, ...] = (),
    foot: str = FOOT,
    **settings: object,
) -> Iterator[Program]:
    """A worker program made of this body, killed when the block is left.

    Args:
        arguments: what Python is run with, when that is not the program's file.
        command: what is run, when that is not Python.
        foot: what runs the worker.
    """
    (folder / "program.py").write_text(HEAD + body + foot)
    given = {
        "middleware_url": server if isinstance(server, str) else server.url,
        "service_id": "test-service",
        "auth_secret": "test-secret",
        "worker_id": "w",
        "run_mode": "eager",
        "wait": 20,
        "wakeup_probe_service_port": 0,
        "wakeup_probe_bind": "127.0.0.1",
        **settings,
    }
    environment = {f"KIWI_{key.upper()}": str(value) for key, value in given.items()}
    program = Program(
        list(command) or [sys.executable, *(arguments or ("program.py",))],
        folder,
        {**os.environ, "PYTHONPATH": PACKAGES, **environment},
    )
    try:
        yield program
    finally:
        program.popen.kill()
        program.popen.wait()


def children_of(pid: int) -> list[int]:
    """The processes it started that are there."""
    lists = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(word) for one in lists for word in one.read_text().split()]


def is_alive(pid: int) -> bool:
    """Whether there is such a process, and it has not ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def eventually(condition: Callable[[], object], what: str = "it did not come about") -> None:
    """Wait until the condition holds."""
    until = time.monotonic() + LIMIT_SECONDS
    while not condition():
        assert time.monotonic() < until, what
        time.sleep(0.005)
