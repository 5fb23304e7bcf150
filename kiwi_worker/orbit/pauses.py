"""Pauses after polls that failed."""

from __future__ import annotations

import threading

__all__ = ["Pauses"]


class Pauses:
    """Where slots wait before they poll again; news of the runtime may end that early.

    Args:
        stopping: once it is set nobody waits; `end` has to be called then.
    """

    def __init__(self, stopping: threading.Event) -> None:
        self._stopping = stopping
        self._ended = threading.Condition()
        self._waiting = 0

    def wait(self, seconds: float, *, ends_early: bool) -> None:
        """Wait so long, or until `end` when that is allowed to end it."""
        if not ends_early:
            self._stopping.wait(seconds)
            return
        with self._ended:
            if not self._stopping.is_set():
                self._waiting += 1
                self._ended.wait(seconds)
                self._waiting -= 1

    def end(self) -> None:
        """The runtime answered, or the worker stops."""
        if self._waiting:
            with self._ended:
                self._ended.notify_all()
