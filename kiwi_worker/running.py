"""Running workers as the main program of a process: signals, exit statuses, and nothing else."""

from __future__ import annotations

import logging
import sys
import threading
import traceback
from typing import Any

from kiwi_worker.errors import KiwiWorkerError, SettingsError
from kiwi_worker.loading import end_loading
from kiwi_worker.observe.systemd import Systemd
from kiwi_worker.seat import Seat
from kiwi_worker.settings.command_line import is_importing
from kiwi_worker.signals import Signals, leave_at_once
from kiwi_worker.watchdog import Watchdog
from kiwi_worker.worker import WorkerBase, error_of

__all__ = ["run", "run_to_status"]

_logger = logging.getLogger("kiwi_worker.worker")

UNFINISHED = 1


def run(*workers: WorkerBase[Any]) -> None:
    """Run one worker, or several in one process, until a signal says stop or one of them has to.

    In a module that `kiwi-worker run` imports it does nothing: the command runs the worker afterwards.

    Raises:
        SystemExit: with the exit status of the documentation when it is not 0.
    """
    if is_importing():
        return
    status, error = run_to_status(*workers)
    if error is not None:
        print(f"kiwi-worker: {error}", file=sys.stderr)  # noqa: T201 - this is the main program
    if status:
        raise SystemExit(status)


def run_to_status(*workers: WorkerBase[Any]) -> tuple[int, KiwiWorkerError | None]:
    """Like `run`, but gives the exit status and the error it comes from, if any."""
    end_loading()
    seat = Seat.taken()
    if seat is None and max(worker.settings.processes for worker in workers) > 1:
        from kiwi_worker.supervisor import supervise

        try:
            return supervise(workers), None
        except SettingsError as error:
            return error.exit_status, error
    if seat is not None:
        workers = seat.workers(workers)
    with (
        Signals(leave_at_once if seat is None else _stay) as signals,
        _watchdog(workers, signals) as watchdog,
    ):
        if seat is not None:
            seat.watch()
        return _Run(workers, signals, watchdog, seat).status()


def _stay(number: int) -> None:
    """One of several processes may hear a signal twice: from its supervisor, and with all of its group."""


def _watchdog(workers: tuple[WorkerBase[Any], ...], signals: Signals) -> Watchdog:
    return Watchdog(max((worker.settings.grace_period for worker in workers), default=0.0), signals)


class _Run:
    def __init__(
        self,
        workers: tuple[WorkerBase[Any], ...],
        signals: Signals,
        watchdog: Watchdog,
        seat: Seat | None,
    ) -> None:
        self._workers = workers
        self._signals = signals
        self._watchdog = watchdog
        self._seat = seat
        self._error: KiwiWorkerError | None = None
        self._starting = 0
        self._started: list[bool] = []
        self._abandoned = False
        # Of several processes the supervisor is the one that systemd listens to.
        self._systemd = Systemd(self._is_live, {} if seat is not None else None)

    def status(self) -> tuple[int, KiwiWorkerError | None]:
        for worker in self._workers:
            worker.notify_failures(self._signals.wake)
        self._start()
        while not self._over():
            self._wait()
        self._watchdog.stop_begins()
        self._systemd.stopping()
        clean = self._stop()
        error = self._error
        if error is not None:
            return error.exit_status, error
        # What was cut off runs on, and may hold up the end of the process.
        self._watchdog.stays = not clean
        return (0 if clean else UNFINISHED), None

    def _wait(self, seconds: float | None = None) -> None:
        if seconds is None:
            seconds = self._systemd.interval_seconds
        also = [self._seat.link] if self._seat is not None and not self._abandoned else []
        # The supervisor never says anything; it is gone.
        self._abandoned |= bool(self._signals.wait(seconds, also))
        self._dump()
        self._systemd.tick()

    def _is_live(self) -> bool:
        snapshots = [worker.snapshot() for worker in self._workers]
        return not any(snapshot.stuck for snapshot in snapshots if snapshot is not None)

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
        else:
            self._tell_started()
        finally:
            self._starting -= 1
            self._signals.wake()

    def _tell_started(self) -> None:
        if self._seat is not None:
            self._seat.tell_started()
        self._started.append(True)
        if len(self._started) == len(self._workers):
            self._systemd.ready()

    def _over(self) -> bool:
        self._error = self._error or next(filter(None, map(error_of, self._workers)), None)
        return bool(self._signals.stops or self._abandoned or self._error)

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
            self._wait(0.05)
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
