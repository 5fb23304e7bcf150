"""A thread that brings a journal to the disk once a second."""

from __future__ import annotations

import threading
from collections.abc import Callable

__all__ = ["IntervalSync"]


class IntervalSync:
    """Calls `sync` every `interval_seconds` until stopped; `sync` handles its own errors."""

    def __init__(self, sync: Callable[[], None], interval_seconds: float = 1.0) -> None:
        self._sync = sync
        self._interval_seconds = interval_seconds
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kiwi-journal-sync", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread and wait for it."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(self._interval_seconds):
            self._sync()
