"""A handler process, as the worker sees it."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from typing import Any

from kiwi_worker.engine.processes.frames import (
    Call,
    Failed,
    FromChild,
    Hello,
    Link,
    Logged,
    Ready,
    Stopping,
    Told,
)
from kiwi_worker.engine.processes.origin import Origin
from kiwi_worker.engine.processes.records import least_level, write_record
from kiwi_worker.errors import KiwiWorkerError

__all__ = ["Child", "ChildFailed"]

START_SECONDS = 60.0
"""How long a process may take to load its modules and to run its start hooks."""
END_SECONDS = 1.0
"""How long a process may go on once it has closed its socket."""

_PROGRAM = (
    "import sys; sys.path[:] = {path!r}; "
    "from kiwi_worker.engine.processes.program import main; main({calls}, {control}, {worker})"
)


class ChildFailed(KiwiWorkerError):
    """A handler process ended before it could take a call.

    Attributes:
        traceback: where it failed, when it could tell.
        again: whether another one may well succeed.
    """

    def __init__(self, text: str, traceback: str = "", again: bool = False) -> None:
        super().__init__(text)
        self.traceback = traceback
        self.again = again


class Child:
    """One process, started fresh.

    It has a session of its own: signals of a terminal do not reach it, and what its handlers started can be
    ended with it.

    Args:
        origin: where it finds the worker.

    Attributes:
        calls: how many it has ended.
        memory_mib: its resident memory after the last call.
    """

    def __init__(self, origin: Origin) -> None:
        self.calls = 0
        self.memory_mib = 0.0
        self._origin = origin
        self._ready = False
        near, far = socket.socketpair()
        near_control, far_control = socket.socketpair()
        self._link, self._control = Link(near, FromChild), Link(near_control, FromChild)
        try:
            with far, far_control:
                self._popen = _start(far.fileno(), far_control.fileno())
        except BaseException:
            self._close()
            raise
        self.pid = self._popen.pid

    def get_ready(self) -> None:
        """Wait until it has loaded everything.

        Raises:
            ChildFailed: it could not.
        """
        if self._ready:
            return
        try:
            self._link.send(Hello(list(sys.argv), self._origin, least_level()))
            while isinstance(message := self._link.receive(START_SECONDS), Logged):
                write_record(message)
        except TimeoutError:
            raise ChildFailed(f"it was not ready after {START_SECONDS:g} s") from None
        except OSError:
            message = None
        if isinstance(message, Failed):
            raise ChildFailed(message.text, message.traceback)
        if not isinstance(message, Ready):
            raise ChildFailed(self.death(), again=True)
        self._ready = True

    def send(self, call: Call) -> None:
        """Give it a call.

        Raises:
            OSError: it is gone.
        """
        self._link.send(call)

    def receive(self) -> Any:
        """What it says next; None when it is gone."""
        return self._link.receive(None)

    def tell(self, message: Told | Stopping) -> None:
        """Tell it something while it runs a call."""
        with contextlib.suppress(OSError):
            self._control.send(message)

    @property
    def is_alive(self) -> bool:
        """Whether it has not ended."""
        return self._popen.poll() is None

    def kill(self) -> None:
        """End it now, and what it started."""
        if self._popen.returncode is None:
            # Not reaped yet, so the number is still its own, even when it ended just now.
            with contextlib.suppress(OSError):
                os.killpg(self.pid, signal.SIGKILL)

    def death(self) -> str:
        """How it ended; one that only closed its socket is killed."""
        try:
            status = self._popen.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            return "it closed its connection to the worker"
        if status >= 0:
            return f"it ended with exit status {status}"
        hint = "; perhaps the system was short of memory" if status == -signal.SIGKILL else ""
        return f"it was killed by {_name_of(-status)}{hint}"

    def retire(self) -> None:
        """Let it run its stop hooks and end."""
        self._link.say_no_more()

    def discard(self) -> None:
        """Kill it, unless it ended, and forget it."""
        self.kill()
        self._popen.wait()
        self._close()

    def _close(self) -> None:
        self._link.close()
        self._control.close()


def _start(calls: int, control: int) -> subprocess.Popen[bytes]:
    path = [entry for entry in sys.path if isinstance(entry, str)]
    program = _PROGRAM.format(path=path, calls=calls, control=control, worker=os.getpid())
    # The flags of this interpreter (-O, -W, -X …); multiprocessing takes them from there, too.
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    return subprocess.Popen(
        [sys.executable, *flags, "-c", program],
        stdin=subprocess.DEVNULL,
        pass_fds=[calls, control],
        start_new_session=True,
    )


def _name_of(number: int) -> str:
    try:
        return f"{signal.Signals(number).name} (signal {number})"
    except ValueError:
        return f"signal {number}"
