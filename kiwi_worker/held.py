"""System calls made with the interpreter lock held.

Python gives the lock up around a system call, since it may wait. With several threads at work the lock is
then gone, and to win it back takes two context switches, which cost more than the call itself. For a call
that does not wait that is for nothing: `ctypes.PyDLL` makes it with the lock held. Measured with eight slots
and two calls a message, this takes a third off the processor time of a message, and more with a journal.
"""

from __future__ import annotations

import os
import select
import socket
import sys
import time
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final

__all__ = ["Writer", "readable", "sender"]

_NOW: Final = getattr(socket, "MSG_DONTWAIT", 0) | getattr(socket, "MSG_NOSIGNAL", 0)
_LONGEST_HELD_BYTES: Final = 65536
_STALL_SECONDS: Final = 0.005
_WARY_SECONDS: Final = 10.0


def sender(sock: socket.socket) -> Callable[[bytes], int]:
    """What does what `sock.send` does; only what cannot be sent at once goes by that, which may wait."""
    calls = _calls()
    if calls is None:
        return sock.send
    send, fileno, wait_and_send = calls.send, sock.fileno, sock.send

    def send_now(data: bytes) -> int:
        count: int = send(fileno(), data, len(data), _NOW)
        return count if count > 0 else wait_and_send(data)

    return send_now


def readable(sock: socket.socket) -> Callable[[], object]:
    """A cheap question, made once per connection: can something be read, or has the connection ended?"""
    calls = _calls()
    if calls is not None:
        poll, polled = calls.poll, calls.polled(sock.fileno())
        return lambda: poll(polled, 1, 0)
    if sys.platform == "win32":
        return lambda: select.select([sock], [], [], 0)[0]
    polling = select.poll()
    polling.register(sock, select.POLLIN)
    return lambda: polling.poll(0)


class Writer:
    """Writes to regular files: what does not take long with the lock held, the rest without.

    A write goes to memory and hardly ever waits, until a disk that is too busy makes it. The first one that
    took long is the last one that every thread had to wait for: for some time all are then made in the usual
    way, which holds up only the thread that writes.
    """

    def __init__(self) -> None:
        calls = _calls()
        self._write = None if calls is None else calls.write
        self._wary_until = 0.0

    def write(self, fd: int, data: bytes) -> int:
        """What `os.write` does."""
        since = time.monotonic()
        if self._write is None or since < self._wary_until or len(data) > _LONGEST_HELD_BYTES:
            return os.write(fd, data)
        count: int = self._write(fd, data, len(data))
        now = time.monotonic()
        if now - since > _STALL_SECONDS:
            self._wary_until = now + _WARY_SECONDS
        # The second attempt raises the error of the first, or goes on after a signal.
        return count if count >= 0 else os.write(fd, data)


class _Calls:
    """The C library's functions, which tell of an error by a negative result."""

    def __init__(self) -> None:
        import ctypes

        library = ctypes.PyDLL(None)

        class Polled(ctypes.Structure):
            _fields_ = (("fd", ctypes.c_int), ("events", ctypes.c_short), ("revents", ctypes.c_short))

        self.send: Any = library.send
        self.send.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_int)
        self.send.restype = ctypes.c_ssize_t
        self.write: Any = library.write
        self.write.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t)
        self.write.restype = ctypes.c_ssize_t
        self.poll: Any = library.poll
        # The number of descriptors is an unsigned int or long; 1 looks the same in both.
        self.poll.argtypes = (ctypes.c_void_p, ctypes.c_ulong, ctypes.c_int)
        self.polled: Callable[[int], Any] = lambda fd: ctypes.byref(Polled(fd, select.POLLIN, 0))


@lru_cache(1)
def _calls() -> _Calls | None:
    """The calls; None where a Python or a system does not have them."""
    if not hasattr(socket, "MSG_DONTWAIT"):
        return None
    try:
        return _Calls()
    except (ImportError, OSError, AttributeError, TypeError):
        return None
