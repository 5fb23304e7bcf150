"""What tests of workers share: settings, waiting, and workers in processes of their own."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import kiwi_worker
from kiwi_worker.testing import KiwiServer

LIMIT_SECONDS = 20.0
PACKAGES = str(Path(kiwi_worker.__file__).parents[1])


def worker_settings(server: KiwiServer | str, number: int = 1, **settings: Any) -> dict[str, Any]:
    """Keywords of a worker of this server, on loopback and any free port."""
    return {
        "middleware_url": server if isinstance(server, str) else server.url,
        "service_id": "test-service",
        "auth_secret": "test-secret",
        "worker_id": f"worker-{number}",
        "wakeup_probe_service_port": 0,
        "wakeup_probe_bind": "127.0.0.1",
        "grace_period": 10.0,
        **settings,
    }


def eventually(
    condition: Callable[[], object],
    what: Callable[[], str] = lambda: "it did not come about",
    limit_seconds: float = LIMIT_SECONDS,
) -> None:
    """Wait until the condition holds; fails with `what()` when it does not in time."""
    end = time.monotonic() + limit_seconds
    while not condition():
        assert time.monotonic() < end, what()
        time.sleep(0.002)


def actions(records: list[logging.LogRecord]) -> list[str]:
    """The `action` of each log record."""
    return [getattr(record, "action", "") for record in records]


class Process:
    """A program in a process of its own, whose lines are read as they come."""

    def __init__(self, program: str, **environment: str) -> None:
        self.popen = subprocess.Popen(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONPATH": PACKAGES, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def line(self) -> str:
        """The next line of its standard output."""
        assert self.popen.stdout is not None
        return self.popen.stdout.readline().strip()

    def write(self, line: str) -> None:
        """Write a line to its standard input."""
        assert self.popen.stdin is not None
        self.popen.stdin.write(f"{line}\n")
        self.popen.stdin.flush()

    def signal(self, number: int = signal.SIGTERM) -> None:
        """Send it a signal."""
        self.popen.send_signal(number)

    def end(self) -> tuple[int, str, str]:
        """Wait for its end: exit status, the rest of its output, and what it wrote to standard error."""
        output, errors = self.popen.communicate(timeout=LIMIT_SECONDS)
        return self.popen.returncode, output, errors


@contextlib.contextmanager
def running(program: str, **environment: str) -> Iterator[Process]:
    """A program in a process of its own, ended when the block is left."""
    process = Process(program, **environment)
    try:
        yield process
    finally:
        if process.popen.poll() is None:
            process.popen.kill()
        process.popen.communicate()


def worker_environment(server: KiwiServer | str, **settings: Any) -> dict[str, str]:
    """The environment of a worker process of this server."""
    given = worker_settings(server, **settings)
    return {f"KIWI_{key.upper()}": str(value) for key, value in given.items()}
