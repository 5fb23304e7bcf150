"""The thread that starts handler processes.

The kernel ends a process with the thread that started it, which is how none is left behind. Slots come to
their end before the processes do, so they have them started by a thread that stays.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue

from kiwi_worker.engine.processes.child import Child

__all__ = ["Starter"]


class _Wish:
    """A process somebody waits for."""

    def __init__(self) -> None:
        self.done = threading.Event()
        self.child: Child | None = None
        self.error: BaseException | None = None


class Starter:
    """Starts processes on a thread of its own, which begins with the first one.

    Args:
        make: starts one.
    """

    def __init__(self, make: Callable[[], Child]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._wishes: SimpleQueue[_Wish | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def start(self) -> Child:
        """A new process.

        Raises:
            OSError: there can be none.
        """
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name="process-starter", daemon=True)
                self._thread.start()
        wish = _Wish()
        self._wishes.put(wish)
        wish.done.wait()
        if wish.child is None:
            raise wish.error or OSError("no process was started")
        return wish.child

    def close(self) -> None:
        """End the thread, and with it every process that is still there."""
        if self._thread is not None:
            self._wishes.put(None)
            self._thread.join()

    def _serve(self) -> None:
        while (wish := self._wishes.get()) is not None:
            try:
                wish.child = self._make()
            except BaseException as error:  # noqa: BLE001 - it is raised where the process is waited for
                wish.error = error
            wish.done.set()
