"""Stop signals, and what a main thread waits on.

The signal number is written to a socket by the interpreter's own handler, at C level, so that the main thread
wakes whichever thread the signal came to, and so that a watchdog process sees it even while no Python code
can run.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import threading
import weakref
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

__all__ = ["STOP_SIGNALS", "Signals", "leave_at_once", "restore_in_copies"]

STOP_SIGNALS = tuple(
    getattr(signal, name) for name in ("SIGTERM", "SIGINT", "SIGHUP", "SIGBREAK") if hasattr(signal, name)
)
_DUMP = getattr(signal, "SIGUSR1", None)
_CHILD = getattr(signal, "SIGCHLD", None)
_STOP_BYTES = frozenset(int(number) for number in STOP_SIGNALS)
_MOST_BYTES = 4096

Handler = Callable[[int, "FrameType | None"], Any]


def leave_at_once(number: int) -> None:
    """End the process now, as a second stop signal asks: 128 + n."""
    os._exit(128 + number)


class Signals:
    """Stop signals, for as long as it is entered. Handlers only count; earlier ones are restored.

    Off the main thread nothing can be installed, and only `wake` ends a wait. A signal mask that blocks stop
    signals, inherited from whoever started this process, is opened: it would make the worker, and all that
    its handlers start, deaf to them.

    Args:
        on_second: called with the number of a second stop signal, and of each further one.
        children: whether the end of a child process ends a wait, too.

    Attributes:
        stops: how many stop signals arrived.
        dumps: how often a dump of what runs was asked for.
        installed: whether signals can be seen.
        on_stop_seen: called when a wait finds a stop signal, before the byte that tells of it is taken away.
    """

    def __init__(self, on_second: Callable[[int], None] = leave_at_once, children: bool = False) -> None:
        self.stops = 0
        self.dumps = 0
        self.installed = False
        self.on_second = on_second
        self.on_stop_seen: Callable[[], None] = lambda: None
        self._near, self._far = socket.socketpair()
        self._children = children
        self._before: dict[int, Any] = {}
        self._mask_before: Any = None
        self._wakeup_before = -1
        if _restore_entered not in _restorers:
            restore_in_copies(_restore_entered)
        _entered.add(self)

    def __enter__(self) -> Signals:
        self._near.setblocking(False)
        self._far.setblocking(False)
        if threading.current_thread() is threading.main_thread():
            self._install_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._restore(self._wakeup_before)
        if self._mask_before is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, self._mask_before)
        self._near.close()
        self._far.close()

    def _restore(self, wakeup: int) -> None:
        if self.installed:
            self.installed = False
            signal.set_wakeup_fd(wakeup)
            for number, before in self._before.items():
                # None: it was installed by other than Python code, and cannot be put back.
                signal.signal(number, signal.SIG_DFL if before is None else before)

    def forked(self) -> None:
        """In a copy of this process: its signals are its own, and must not be told to the worker."""
        self._restore(-1)

    def fileno(self) -> int:
        """The descriptor that numbers of signals can be read from."""
        return self._near.fileno()

    def _install_all(self) -> None:
        self.installed = True
        self._wakeup_before = signal.set_wakeup_fd(self._far.fileno(), warn_on_full_buffer=False)
        for number in STOP_SIGNALS:
            self._install(number, self._on_stop)
        if _DUMP is not None:
            self._install(_DUMP, self._on_dump)
        if _CHILD is not None and self._children:
            self._install(_CHILD, self._chain)
        if hasattr(signal, "pthread_sigmask"):
            self._mask_before = signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)

    def _install(self, number: int, handler: Handler) -> None:
        # What was ignored on purpose (a SIGHUP under nohup) stays ignored.
        if signal.getsignal(number) != signal.SIG_IGN:
            self._before[number] = signal.signal(number, handler)

    def _on_stop(self, number: int, frame: FrameType | None) -> None:
        self.stops += 1
        if self.stops > 1:
            self.on_second(number)
        self._chain(number, frame)

    def _on_dump(self, number: int, frame: FrameType | None) -> None:
        self.dumps += 1
        self._chain(number, frame)

    def _chain(self, number: int, frame: FrameType | None) -> None:
        before = self._before.get(number)
        if callable(before) and before is not signal.default_int_handler:
            before(number, frame)

    def wake(self) -> None:
        """End a wait; from any thread."""
        try:
            self._far.send(b"\0")
        except OSError:
            pass  # it is full of wakes already, or over

    def wait(self, seconds: float | None = None, also: Sequence[socket.socket] = ()) -> list[socket.socket]:
        """Wait for a signal, a `wake`, the end of the time, or something to read.

        Args:
            seconds: the time; None for no limit.
            also: sockets to wait for as well.

        Returns:
            Those of `also` that can be read, or are over.
        """
        ready = _readable([self._near, *also], seconds)
        try:
            if not _STOP_BYTES.isdisjoint(self._near.recv(_MOST_BYTES, socket.MSG_PEEK)):
                self.on_stop_seen()
            self._near.recv(_MOST_BYTES)
        except BlockingIOError:
            pass
        return [sock for sock in also if sock in ready]


_entered: weakref.WeakSet[Signals] = weakref.WeakSet()
_restorers: list[Callable[[], None]] = []
_mask = threading.local()


def restore_in_copies(restore: Callable[[], None]) -> None:
    """Run something in every copy that forking makes of this process, before a stop signal can reach it.

    Such a signal comes from whoever made the copy, and is to end it. With the handlers of the worker, and
    their socket, it would be lost on the copy and stop the worker.
    """
    if not _restorers and hasattr(os, "register_at_fork"):
        os.register_at_fork(before=_block, after_in_parent=_unblock, after_in_child=_restore_and_unblock)
    _restorers.append(restore)


def _block() -> None:
    _mask.before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)


def _unblock() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _mask.before)


def _restore_and_unblock() -> None:
    for restore in _restorers:
        restore()
    _unblock()


def _restore_entered() -> None:
    for signals in list(_entered):
        signals.forked()


def _readable(sockets: list[socket.socket], seconds: float | None) -> list[socket.socket]:
    if not hasattr(select, "poll"):
        return select.select(sockets, [], [], seconds)[0]
    # Unlike select, poll takes any descriptor, also in a process that has more than a thousand open.
    by_number = {sock.fileno(): sock for sock in sockets}
    poll = select.poll()
    for number in by_number:
        poll.register(number, select.POLLIN)
    return [by_number[number] for number, _ in poll.poll(None if seconds is None else seconds * 1000)]
