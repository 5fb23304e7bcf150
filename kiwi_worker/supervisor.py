"""Many processes: a small supervisor that starts full workers, replaces the dead, and passes signals on.

Each child is the very command line of this process, run anew, with its number in the environment. So a worker
of `kiwi-worker run` and one of a script come up in the same way, fresh. They share nothing.
"""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING

from kiwi_worker.settings import WorkerSettings, secret_reader
from kiwi_worker.transport.retry import Backoff

if TYPE_CHECKING:
    from kiwi_worker.running import Signals

__all__ = ["own_number", "settle_under_supervisor", "supervise"]

_logger = logging.getLogger("kiwi_worker.supervisor")

NUMBER = "_KIWI_WORKER_PROCESS"
"""The variable that tells a child its number, and the supervisor's process id."""
FATAL = frozenset({2, 77, 78})
"""Statuses that a new process would end with, too: credentials or settings have to change first."""
KILL_SECONDS = 1.8
"""How long after the grace period a child may still take before it is killed."""
STEADY_SECONDS = 30.0
"""A child that lived so long is restarted without a pause."""
PR_SET_PDEATHSIG = 1


def own_number() -> int | None:
    """Which of several processes this is, from 1; None when it is not one of them."""
    number, _, parent = os.environ.get(NUMBER, "").partition(":")
    # Whatever else a child starts inherits the variable, and is not a child of the supervisor.
    return int(number) if parent == str(os.getppid()) and number.isdigit() else None


def settle_under_supervisor() -> None:
    """In a child: stop in order when the supervisor is gone, however it went."""
    if sys.platform != "linux":
        return
    supervisor = os.environ[NUMBER].partition(":")[2]
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if str(os.getppid()) != supervisor:
        os.kill(os.getpid(), signal.SIGTERM)


class _Child:
    """One worker process, started again as often as needed."""

    def __init__(self, number: int, secret: str | None, signals: Signals) -> None:
        self.number = number
        self._secret = secret
        self._signals = signals
        self._pauses = Backoff(0.5, 30.0)
        self._started_at = 0.0
        self.restart_at = 0.0
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it; its end wakes the supervisor."""
        self._started_at = time.monotonic()
        feeds = self._secret is not None
        process = self.process = subprocess.Popen(
            sys.orig_argv,
            env={**os.environ, NUMBER: f"{self.number}:{os.getpid()}"},
            stdin=subprocess.PIPE if feeds else None,
        )
        if feeds and process.stdin is not None and self._secret is not None:
            process.stdin.write(self._secret.encode())
            process.stdin.close()
        thread = threading.Thread(target=self._await_end, args=(process,), daemon=True)
        thread.name = f"await-process-{self.number}"
        thread.start()
        _logger.info("process %d started", self.number, extra={"action": "process_started"})

    def _await_end(self, process: subprocess.Popen[bytes]) -> None:
        process.wait()
        self._signals.wake()

    @property
    def status(self) -> int | None:
        """Its exit status, None while it runs."""
        return None if self.process is None else self.process.poll()

    def note_end(self) -> None:
        """It ended, and is to be started again, soon or later."""
        lived = time.monotonic() - self._started_at
        if lived >= STEADY_SECONDS:
            self._pauses.reset()
        pause = 0.0 if lived >= STEADY_SECONDS else 0.2 + self._pauses.next()
        _logger.error(
            "process %d ended with %s, next start in %.1f s",
            self.number,
            self.status,
            pause,
            extra={"action": "process_ended"},
        )
        self.process = None
        self.restart_at = time.monotonic() + pause

    def send(self, number: int) -> None:
        """Pass a signal on."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(number)


def supervise(settings: WorkerSettings, signals: Signals) -> int:
    """Run `settings.processes` children until a signal says stop, or one says that none can run.

    Returns:
        The exit status: that of the child that cannot run, else the worst of those at the stop.
    """
    secret = _secret_of(settings)
    children = [_Child(n, secret, signals) for n in range(1, settings.processes + 1)]
    fatal: int | None = None
    while not signals.stops and fatal is None:
        fatal = _turn(children)
        if fatal is None and not signals.stops:
            signals.wait(_seconds_to_next_start(children))
    return _stop(children, settings.grace_period, signals, fatal)


def _secret_of(settings: WorkerSettings) -> str | None:
    # Standard input can be read once; each child gets what came there on its own.
    file_key = settings.credential[1] if settings.credential is not None else ""
    if not file_key or getattr(settings, file_key) != "-":
        return None
    reader = secret_reader(settings)
    return None if reader is None else reader()


def _turn(children: list[_Child]) -> int | None:
    for child in children:
        status = child.status
        if status in FATAL:
            return status
        if status is not None:
            child.note_end()
        if child.process is None and time.monotonic() >= child.restart_at:
            child.start()
    return None


def _seconds_to_next_start(children: list[_Child]) -> float | None:
    due = [child.restart_at for child in children if child.process is None]
    return max(0.0, min(due) - time.monotonic()) if due else None


def _stop(children: list[_Child], grace_seconds: float, signals: Signals, fatal: int | None) -> int:
    for child in children:
        child.send(signal.SIGTERM)
    end = time.monotonic() + grace_seconds + KILL_SECONDS
    while any(child.process is not None and child.status is None for child in children):
        left = end - time.monotonic()
        if left <= 0:
            for child in children:
                child.send(signal.SIGKILL)
            end = float("inf")
        signals.wait(max(0.01, min(left, 3600.0)))
    if fatal is not None:
        return fatal
    statuses = [child.status for child in children if child.status is not None]
    return max((1 if status < 0 else status for status in statuses), default=0)
