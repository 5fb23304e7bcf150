"""A worker is gone soon after its grace period, whatever its handlers do.

Two things see to that, because a handler may hold the interpreter lock for ever, and then nothing written in
Python runs. While Python runs at the stop, `faulthandler` is told to end the process at the limit, with
the stacks of all threads on standard error and status 1: its timer needs no interpreter lock any more. If
Python runs no more at the moment the signal comes, a process of its own sees the signal and kills the worker
(SIGKILL). It costs about 9 MiB, most of it shared with the worker, and sleeps until the end.

Neither is used where the process is not the worker's own: in a notebook, in a test run, in a thread.
"""

from __future__ import annotations

import contextlib
import faulthandler
import logging
import os
import signal
import sys
from types import TracebackType

from kiwi_worker.signals import STOP_SIGNALS, Signals

__all__ = ["LIMIT_SECONDS", "Watchdog", "owns_process"]

_logger = logging.getLogger("kiwi_worker.worker")

LIMIT_SECONDS = 1.35
"""How long after the grace period a stop may take."""
LATER_SECONDS = 0.1
"""The watchdog process gives the process's own timer so much longer."""
PROGRAM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "watchdog_program.py")


def owns_process() -> bool:
    """Whether this process is there for the program that called us, and for nobody else."""
    file = getattr(sys.modules.get("__main__"), "__file__", None)
    started = "-c" in sys.orig_argv if file is None else os.path.exists(file)
    return started and "_pytest.runner" not in sys.modules and "ipykernel" not in sys.modules


class Watchdog:
    """Ends this process when its stop takes too long; watches while it is entered.

    Args:
        grace_seconds: how long handlers may take once a stop has begun.
        signals: where stop signals arrive; entered already.

    Attributes:
        stays: whether it goes on when it is left: the process still has to end.
    """

    def __init__(self, grace_seconds: float, signals: Signals) -> None:
        self.stays = False
        self._own = owns_process()
        self._limit = grace_seconds + LIMIT_SECONDS
        self._signals = signals
        self._pid: int | None = None
        self._lifeline: int | None = None
        self._stopping = False

    def __enter__(self) -> Watchdog:
        if self._own and self._signals.installed and hasattr(os, "posix_spawn"):
            self._start()
            self._signals.on_stop_seen = self._tell
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.stays and self._own:
            return
        if self._stopping:
            faulthandler.cancel_dump_traceback_later()
        if self._pid is not None and self._lifeline is not None:
            os.close(self._lifeline)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(self._pid, 0)

    def stop_begins(self) -> None:
        """From now on the process has its grace period, and a moment."""
        if not self._own:
            return
        self._stopping = True
        self._tell()
        with contextlib.suppress(OSError, ValueError):  # there is no standard error to tell the stacks on
            faulthandler.dump_traceback_later(self._limit, exit=True, file=2)

    def _tell(self) -> None:
        if self._lifeline is not None:
            with contextlib.suppress(OSError):
                os.write(self._lifeline, b"\0")

    def _start(self) -> None:
        near, self._lifeline = os.pipe()
        try:
            if min(near, self._signals.fileno()) > 2:
                self._pid = self._spawn(near)
        except OSError as error:
            # The stop still works; only a handler that holds the interpreter lock can put it off.
            _logger.warning("no watchdog process: %s", error, extra={"action": "watchdog_failed"})
        finally:
            os.close(near)
        if self._pid is None:
            os.close(self._lifeline)
            self._lifeline = None

    def _spawn(self, near: int) -> int:
        numbers = ",".join(str(int(number)) for number in STOP_SIGNALS)
        arguments = [str(os.getpid()), str(self._limit + LATER_SECONDS), numbers]
        return os.posix_spawn(
            sys.executable,
            [sys.executable, "-I", "-S", PROGRAM, *arguments],
            os.environ,
            file_actions=[
                (os.POSIX_SPAWN_DUP2, near, 0),
                (os.POSIX_SPAWN_DUP2, self._signals.fileno(), 1),
            ],
            # What stops the worker, or everything (a terminal, a service manager), is not for the watchdog.
            setsigmask=STOP_SIGNALS,
            setsigdef=[signal.SIGPIPE],
        )
