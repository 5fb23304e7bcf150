"""Running workers as the main program of a process: signals, exit statuses, and nothing else."""

from __future__ import annotations

import faulthandler
import logging
import os
import select
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable
from types import FrameType
from typing import Any

from kiwi_worker.errors import KiwiWorkerError
from kiwi_worker.settings import for_process
from kiwi_worker.worker import WorkerBase, error_of

__all__ = ["Signals", "run", "run_to_status"]

_logger = logging.getLogger("kiwi_worker.worker")

_STOP = [
    getattr(signal, name) for name in ("SIGTERM", "SIGINT", "SIGHUP", "SIGBREAK") if hasattr(signal, name)
]
_DUMP = getattr(signal, "SIGUSR1", None)
UNFINISHED = 1
WATCHDOG_SECONDS = 1.8
"""How long after the grace period a shutdown may still take."""

Handler = Callable[[int, "FrameType | None"], Any]


class Signals:
    """Stop signals, for as long as it is entered. Handlers only set a flag; earlier ones are restored.

    Off the main thread nothing can be installed, and only `wake` ends a wait.

    Attributes:
        stops: how many stop signals arrived.
    """

    def __init__(self) -> None:
        self.stops = 0
        self.dumps = 0
        self._near, self._far = socket.socketpair()
        self._before: dict[int, Any] = {}
        self._wakeup_before = -1

    def __enter__(self) -> Signals:
        self._near.setblocking(False)
        self._far.setblocking(False)
        if threading.current_thread() is threading.main_thread():
            self._wakeup_before = signal.set_wakeup_fd(self._far.fileno(), warn_on_full_buffer=False)
            for number in _STOP:
                self._install(number, self._on_stop)
            if _DUMP is not None:
                self._install(_DUMP, self._on_dump)
        return self

    def __exit__(self, *_: object) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)
        if self._before:
            signal.set_wakeup_fd(self._wakeup_before)
        self._near.close()
        self._far.close()

    def _install(self, number: int, handler: Handler) -> None:
        # What was ignored on purpose (a SIGHUP under nohup) stays ignored.
        if signal.getsignal(number) != signal.SIG_IGN:
            self._before[number] = signal.signal(number, handler)

    def _on_stop(self, number: int, frame: FrameType | None) -> None:
        self.stops += 1
        if self.stops > 1:
            os._exit(128 + number)
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

    def wait(self, seconds: float | None = None) -> None:
        """Wait for a signal, a `wake`, or the end of the time."""
        select.select([self._near], [], [], seconds)
        try:
            self._near.recv(4096)
        except BlockingIOError:
            pass


def run(*workers: WorkerBase[Any]) -> None:
    """Run one worker, or several in one process, until a signal says stop or one of them has to.

    Raises:
        SystemExit: with the exit status of the documentation when it is not 0.
    """
    status, error = run_to_status(*workers)
    if error is not None:
        print(f"kiwi-worker: {error}", file=sys.stderr)  # noqa: T201 - this is the main program
    if status:
        raise SystemExit(status)


def run_to_status(*workers: WorkerBase[Any]) -> tuple[int, KiwiWorkerError | None]:
    """Like `run`, but gives the exit status and the error it comes from, if any."""
    from kiwi_worker.supervisor import own_number, settle_under_supervisor, supervise

    number = own_number()
    count = max(worker.settings.processes for worker in workers)
    with Signals() as signals:
        if count > 1 and number is None:
            return supervise(workers[0].settings, signals), None
        if number is not None:
            settle_under_supervisor()
            for worker in workers:
                worker.configure(for_process(worker.settings, number))
        return _Run(workers, signals).status()


class _Run:
    def __init__(self, workers: tuple[WorkerBase[Any], ...], signals: Signals) -> None:
        self._workers = workers
        self._signals = signals
        self._error: KiwiWorkerError | None = None
        self._starting = 0

    def status(self) -> tuple[int, KiwiWorkerError | None]:
        for worker in self._workers:
            worker.notify_failures(self._signals.wake)
        self._start()
        while not self._over():
            self._signals.wait()
            self._dump()
        limit = max(worker.settings.grace_period for worker in self._workers) + WATCHDOG_SECONDS
        # A handler that never gives up the interpreter keeps Python from running; this ends it all the same.
        faulthandler.dump_traceback_later(limit, exit=True)
        try:
            clean = self._stop()
        finally:
            faulthandler.cancel_dump_traceback_later()
        error = self._error
        if error is not None:
            return error.exit_status, error
        return (0 if clean else UNFINISHED), None

    def _start(self) -> None:
        # On a thread of their own, so that a signal can end a start that waits for the middleware.
        for worker in self._workers:
            self._starting += 1
            thread = threading.Thread(
                target=self._start_one, args=(worker,), name=f"{worker.settings.worker_id}-start", daemon=True
            )
            thread.start()

    def _start_one(self, worker: WorkerBase[Any]) -> None:
        try:
            worker.start()
        except KiwiWorkerError as error:
            self._error = self._error or error
        except BaseException as error:
            _logger.critical("the start failed", exc_info=error, extra={"action": "start_failed"})
            self._error = self._error or KiwiWorkerError(f"{type(error).__name__}: {error}")
        finally:
            self._starting -= 1
            self._signals.wake()

    def _over(self) -> bool:
        self._error = self._error or next(filter(None, map(error_of, self._workers)), None)
        return bool(self._signals.stops or self._error)

    def _stop(self) -> bool:
        _logger.info("stopping", extra={"action": "stopping"})
        ended: list[bool] = []
        threads = [
            threading.Thread(
                target=lambda worker=worker: ended.append(worker.stop()),
                name=f"{worker.settings.worker_id}-stop",
                daemon=True,
            )
            for worker in self._workers
        ]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            self._signals.wait(0.05)
            self._dump()
        return all(ended) and len(ended) == len(threads)

    def _dump(self) -> None:
        while self._signals.dumps:
            self._signals.dumps -= 1
            print(_stacks(self._workers), file=sys.stderr, flush=True)  # noqa: T201 - it was asked for by a signal


def _stacks(workers: tuple[WorkerBase[Any], ...]) -> str:
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    lines = []
    for worker in workers:
        lines += [f"{worker!r}: {len(worker.running())} running"]
        lines += [f"  {call.key} {call.name} for {call.seconds:.1f} s" for call in worker.running()]
    for ident, frame in sys._current_frames().items():
        lines += [f"thread {names.get(ident, ident)}:", "".join(traceback.format_stack(frame)).rstrip()]
    return "\n".join(lines)
