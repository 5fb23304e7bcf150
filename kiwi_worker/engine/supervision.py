"""Threads that cannot die unseen.

Each has a name and a task. When the task raises, it is started again after a pause; when that happens too
often, the worker is stopped with an error, so that it is never alive and deaf.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from kiwi_worker.errors import ForgottenError, KiwiWorkerError, StartError

__all__ = ["Crew"]

_logger = logging.getLogger("kiwi_worker.engine")

RESTARTS = 5
"""How often a task may be started again within `WINDOW_SECONDS`."""
WINDOW_SECONDS = 60.0
PAUSE_SECONDS = 0.2


class Crew:
    """The threads of one worker.

    Args:
        name: what the thread names begin with.
        on_fatal: called with the error that no restart can mend, at most once for each thread.
    """

    def __init__(self, name: str, on_fatal: Callable[[BaseException], None]) -> None:
        self._name = name
        self._on_fatal = on_fatal
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._closing = threading.Event()
        self.restarts = 0

    def start(self, task: str, run: Callable[[], None]) -> threading.Thread:
        """Run a task on a thread of its own until it returns.

        Raises:
            RuntimeError: the system gives no more threads.
        """
        thread = threading.Thread(
            target=self._watch, args=(task, run), name=f"{self._name}-{task}", daemon=True
        )
        with self._lock:
            self._threads = [other for other in self._threads if other.is_alive() or other.ident is None]
            self._threads.append(thread)
        try:
            thread.start()
        except RuntimeError:
            with self._lock:
                self._threads.remove(thread)
            raise
        return thread

    def close(self) -> None:
        """Tasks that fail from now on are not started again."""
        self._closing.set()

    def join(self, seconds: float) -> list[str]:
        """Wait for all threads to end; gives the names of those that did not."""
        until = time.monotonic() + seconds
        with self._lock:
            threads = list(self._threads)
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, until - time.monotonic()))
        return [thread.name for thread in threads if thread.is_alive()]

    def _watch(self, task: str, run: Callable[[], None]) -> None:
        failures: list[float] = []
        while True:
            try:
                return run()
            except (StartError, ForgottenError) as error:
                return self._on_fatal(error)
            except BaseException as error:  # noqa: BLE001 - whatever it was, the thread must not be lost with it
                if not self._may_restart(task, failures, error):
                    return None
            self._closing.wait(PAUSE_SECONDS * len(failures))

    def _may_restart(self, task: str, failures: list[float], error: BaseException) -> bool:
        now = time.monotonic()
        failures[:] = [moment for moment in failures if now - moment < WINDOW_SECONDS]
        failures.append(now)
        extra = {"action": "restart_thread", "thread_task": task}
        if self._closing.is_set():
            _logger.warning(
                "thread %s ended with an error during shutdown", task, exc_info=error, extra=extra
            )
            return False
        if len(failures) > RESTARTS:
            _logger.critical("thread %s keeps failing: the worker stops", task, exc_info=error, extra=extra)
            self._on_fatal(ThreadFailed(task, error))
            return False
        self.restarts += 1
        _logger.error("thread %s failed and is started again", task, exc_info=error, extra=extra)
        return True


class ThreadFailed(KiwiWorkerError):
    """A background thread failed again and again; the worker stops rather than live on deaf."""

    def __init__(self, task: str, error: BaseException) -> None:
        super().__init__(
            f"the thread {task!r} failed {RESTARTS + 1} times in {WINDOW_SECONDS:.0f} s: {error!r}"
        )
        self.task = task
