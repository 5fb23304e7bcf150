"""Many processes: a small supervisor that starts full workers, replaces the dead, and passes signals on.

Each process is the command line of this one, run anew (`sys.orig_argv`), with its place in the environment.
That is one way for `kiwi-worker run` and for a script: settings come from where they came before, so none
of them has to be handed over; what the program does before it runs its worker is done in each process; and
everything is fresh, nothing is forked or pickled. The processes share nothing.

Each has a session of its own, so that a terminal's Ctrl-C comes to the supervisor alone, which passes it on.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

from kiwi_worker.errors import SettingsError
from kiwi_worker.observe.systemd import Systemd
from kiwi_worker.seat import VARIABLE
from kiwi_worker.settings import secret_reader
from kiwi_worker.signals import Signals, leave_at_once
from kiwi_worker.watchdog import owns_process
from kiwi_worker.worker import WorkerBase

__all__ = ["Supervisor", "supervise"]

_logger = logging.getLogger("kiwi_worker.supervisor")

FATAL = frozenset({2, 69, 77, 78})
"""Statuses that a new process would end with as well: usage, start-up limit, credentials, settings."""
KILL_SECONDS = 1.55
"""How long after the grace period a process may take before it is killed; its own watchdog is earlier."""
FIRST_PAUSE_SECONDS = 0.2
LONGEST_PAUSE_SECONDS = 30.0
STEADY_SECONDS = 30.0
"""A process that lived so long is not one that keeps failing."""
START_ATTEMPTS = 5
"""How often in a row a process may end before it has started; then the program is what fails."""
END_SECONDS = 3.0
"""How long a process may take to end once it closed its socket."""
LOOK_SECONDS = 0.1


def supervise(workers: Sequence[WorkerBase[Any]]) -> int:
    """Run as many processes as the workers want until a signal says stop, or one says that none can run.

    Returns:
        The exit status: that of the process that cannot run, else the worst of those at the stop.

    Raises:
        SettingsError: this program cannot be run anew.
    """
    _check_command()
    settings = [worker.settings for worker in workers]
    supervisor = Supervisor(
        max(one.processes for one in settings),
        grace_seconds=max(one.grace_period for one in settings),
        standard_input=_standard_input(workers),
    )
    return supervisor.run()


def _check_command() -> None:
    if os.name != "posix":
        raise SettingsError("processes", "only 1 is possible on this system: run several services instead")
    if not owns_process() or not sys.executable:
        raise SettingsError(
            "processes",
            "only 1 is possible here: several are the same command run anew, and this program is no command "
            "of its own (a notebook, a test run, or read from standard input)",
        )


def _standard_input(workers: Sequence[WorkerBase[Any]]) -> bytes:
    # Standard input can be read once; each process gets what came there on its own.
    for worker in workers:
        credential, read = worker.settings.credential, secret_reader(worker.settings)
        if credential is not None and read is not None and getattr(worker.settings, credential[1]) == "-":
            return read().encode()
    return b""


class _Process:
    """One of the processes, started as often as needed.

    Attributes:
        number: which one, from 1.
        pid: its process id; that of the last one when it does not run.
        link: the socket between it and the supervisor; None when there is none.
        has_started: whether it did what a start has to.
        due: when it is to be started, on the monotonic clock; None while it runs.
    """

    def __init__(self, number: int, standard_input: bytes) -> None:
        self.number = number
        self.pid: int | None = None
        self.link: socket.socket | None = None
        self.due: float | None = 0.0
        self._standard_input = standard_input
        self._popen: subprocess.Popen[bytes] | None = None
        self._started_at = 0.0
        self.has_started = False
        self._ending_since: float | None = None
        self._failures = 0

    def start(self) -> None:
        """Run the command once more."""
        self.due = self._ending_since = None
        self.has_started = False
        self._started_at = time.monotonic()
        self.link, far = socket.socketpair()
        with far:
            self._popen = subprocess.Popen(
                [sys.executable, *sys.orig_argv[1:]],
                env={**os.environ, VARIABLE: f"{self.number}:{os.getpid()}:{far.fileno()}"},
                pass_fds=[far.fileno()],
                stdin=subprocess.PIPE,
                start_new_session=True,
            )
        self.pid = self._popen.pid
        self._feed()
        self._log(logging.INFO, "process_started", "started")

    def _feed(self) -> None:
        # A secret is smaller than a pipe, so that this never waits.
        assert self._popen is not None
        assert self._popen.stdin is not None
        try:
            with self._popen.stdin as far:
                far.write(self._standard_input)
        except BrokenPipeError:
            pass  # it ended already

    def look(self) -> int | None:
        """Hear what it says; gives its exit status when it has ended, once."""
        if self._popen is None:
            return None
        status = self._popen.poll()
        if status is None:
            self._hear()
            if self._ending_since is None or time.monotonic() < self._ending_since + END_SECONDS:
                return None
            self.send(signal.SIGKILL)
            status = self._popen.wait()
        self._close()
        self._popen = None
        return 128 - status if status < 0 else status

    def _hear(self) -> None:
        if self.link is None:
            return
        try:
            said = self.link.recv(64, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except ConnectionError:
            said = b""
        if said:
            self.has_started = True
        else:
            self._close()
            self._ending_since = time.monotonic()

    def _close(self) -> None:
        if self.link is not None:
            self.link.close()
            self.link = None

    def may_go_on(self, status: int) -> bool:
        """It ended by itself: whether it is to be started again, which it is after a pause that grows."""
        now = time.monotonic()
        if self.has_started and now - self._started_at > STEADY_SECONDS:
            self._failures = 0
        self._failures += 1
        if status in FATAL or (not self.has_started and self._failures >= START_ATTEMPTS):
            self._log(logging.CRITICAL, "process_gave_up", f"ended with status {status}: all processes stop")
            return False
        pause = min(LONGEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2 ** (self._failures - 1))
        self.due = now + pause
        text = f"ended with status {status}, and is started again in {pause:g} s"
        self._log(logging.ERROR, "process_ended", text)
        return True

    def is_clean(self, status: int) -> bool:
        """Whether that is a clean end after it was told to stop: what had not started yet dies of SIGTERM."""
        return status == 0 or (status == 128 + signal.SIGTERM and not self.has_started)

    def send(self, number: int) -> None:
        """Send it a signal, if it runs."""
        if self._popen is not None:
            self._popen.send_signal(number)

    @property
    def runs(self) -> bool:
        """Whether it was started and has not been seen to end."""
        return self._popen is not None

    @property
    def is_ending(self) -> bool:
        """Whether it closed its socket and is still there."""
        return self._ending_since is not None and self.runs

    def _log(self, level: int, action: str, text: str) -> None:
        _logger.log(
            level,
            "process %d %s",
            self.number,
            text,
            extra={"action": action, "process_number": self.number, "process_pid": self.pid},
        )


class Supervisor:
    """Keeps a number of processes running; it sleeps while nothing happens to them.

    Args:
        count: how many.
        grace_seconds: how long a process may take to stop before it is killed soon.
        standard_input: what each gets on its standard input.
    """

    def __init__(self, count: int, *, grace_seconds: float, standard_input: bytes = b"") -> None:
        self._processes = [_Process(number, standard_input) for number in range(1, count + 1)]
        self._grace_seconds = grace_seconds
        self._status = 0
        self._fatal: int | None = None
        self._systemd = Systemd(lambda: True)
        self._is_ready = False

    def run(self) -> int:
        """Run them until a signal says stop, or one of them says that none can run; gives the status."""
        with Signals(self._leave, children=True) as signals:
            try:
                while not signals.stops and self._fatal is None:
                    self._start_due()
                    self._wait(signals, self._seconds_to_next_start())
                    self._replace_ended()
                    self._tell_ready()
                self._systemd.stopping()
                self._stop(signals)
            finally:
                self._send(signal.SIGKILL)
        return self._status if self._fatal is None else self._fatal

    def _tell_ready(self) -> None:
        if not self._is_ready and all(process.has_started for process in self._processes):
            self._is_ready = True
            self._systemd.ready()

    def _leave(self, number: int) -> None:
        self._send(signal.SIGKILL)
        leave_at_once(number)

    def _send(self, number: int) -> None:
        for process in self._processes:
            process.send(number)

    def _wait(self, signals: Signals, seconds: float | None) -> None:
        if any(process.is_ending for process in self._processes):
            seconds = LOOK_SECONDS if seconds is None else min(seconds, LOOK_SECONDS)
        self._systemd.tick()
        tick = self._systemd.interval_seconds
        if tick is not None:
            seconds = tick if seconds is None else min(seconds, tick)
        signals.wait(seconds, [process.link for process in self._processes if process.link is not None])
        while signals.dumps:
            signals.dumps -= 1
            self._send(signal.SIGUSR1)
        if os.getpid() == 1:
            _reap_strangers({process.pid for process in self._processes})

    def _start_due(self) -> None:
        now = time.monotonic()
        for process in self._processes:
            if process.due is not None and process.due <= now:
                process.start()

    def _seconds_to_next_start(self) -> float | None:
        due = [process.due for process in self._processes if process.due is not None]
        return max(0.0, min(due) - time.monotonic()) if due else None

    def _replace_ended(self) -> None:
        for process in self._processes:
            status = process.look()
            if status is not None and not process.may_go_on(status):
                self._fatal = max(status, self._fatal or 1)

    def _stop(self, signals: Signals) -> None:
        self._send(signal.SIGTERM)
        end = time.monotonic() + self._grace_seconds + KILL_SECONDS
        while self._run_on():
            self._wait(signals, max(0.0, end - time.monotonic()))
            if time.monotonic() >= end:
                self._cut_off()
                end += END_SECONDS

    def _run_on(self) -> bool:
        for process in self._processes:
            status = process.look()
            if status is not None and not process.is_clean(status):
                self._status = max(self._status, status)
        return any(process.runs for process in self._processes)

    def _cut_off(self) -> None:
        numbers = [process.number for process in self._processes if process.runs]
        _logger.error(
            "processes %s are killed: their time to stop is over",
            numbers,
            extra={"action": "processes_killed"},
        )
        self._send(signal.SIGKILL)


def _reap_strangers(own: set[int | None]) -> None:
    """As the first process of a container: orphans become its children, and somebody has to see them off."""
    while (ended := _peek_at_ended()) is not None and ended not in own:
        os.waitpid(ended, os.WNOHANG)


def _peek_at_ended() -> int | None:
    try:
        found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return None
    return None if found is None else found.si_pid
