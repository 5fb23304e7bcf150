"""The processes of the demo: a middleware on an SQLite file, a lazy and an eager worker."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path
from types import TracebackType

from kiwi_worker.client import Client
from kiwi_worker.errors import KiwiWorkerError, StartError
from kiwi_worker.orphans import ending_with_us
from kiwi_worker.testing.middleware import MiddlewareProcess

__all__ = ["MODES", "SERVICE", "Processes"]

SERVICE = "demo"
MODES = ("lazy", "eager")
READY_SECONDS = 30.0
STOP_SECONDS = 30.0


class Processes:
    """All of them run inside the block, and none after it, however it is left.

    Args:
        folder: where the SQLite file and the notes of the handlers are.

    Raises:
        StartError: from entering it, when one of them does not start.
    """

    def __init__(self, folder: Path) -> None:
        self.reservations = folder / "reservations"
        self.reservations.touch()
        self._folder = folder
        self._workers: dict[str, subprocess.Popen[bytes]] = {}
        self.middleware = MiddlewareProcess(folder / "middleware.db", SERVICE, ends_with_us=True)

    def __enter__(self) -> Processes:
        try:
            self._start()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    @property
    def client(self) -> Client:
        """Calls the methods of the workers."""
        return self.middleware.client

    def _start(self) -> None:
        try:
            self.middleware.start()
        except RuntimeError as error:
            raise StartError(str(error)) from None
        for mode in MODES:
            self._workers[mode] = self._started(mode)
        self._await_workers()

    def _started(self, mode: str) -> subprocess.Popen[bytes]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("KIWI_")}
        environment = {
            **kept,
            "KIWI_MIDDLEWARE_URL": self.middleware.url,
            "KIWI_SERVICE_ID": SERVICE,
            "KIWI_AUTH_SECRET": self.middleware.worker_secret,
            "DEMO_RESERVATIONS": str(self.reservations),
        }
        command = ["-m", "kiwi_worker", "run", "kiwi_worker.demo.tasks", "--run-mode", mode]
        command += ["--worker-id", f"demo-{mode}", "--wakeup-probe-service-port", "0"]
        command += ["--log-level", "critical"]
        # A group of their own: a Ctrl-C is for us, and we stop them in order.
        return subprocess.Popen(ending_with_us(command), env=environment, start_new_session=True)

    def _await_workers(self) -> None:
        until = time.monotonic() + READY_SECONDS
        while len(self.client.workers()) < len(MODES):
            dead = self.dead()
            if dead is not None:
                raise StartError(dead)
            if time.monotonic() > until:
                raise StartError(f"the workers did not register within {READY_SECONDS:.0f} s")
            time.sleep(0.05)

    def dead(self) -> str | None:
        """Which of them ended by itself, in words; None when all run."""
        for name, process in self._all().items():
            if process.poll() is not None:
                return f"the {name} ended with status {process.returncode}"
        return None

    def _all(self) -> dict[str, subprocess.Popen[bytes] | subprocess.Popen[str]]:
        workers = {f"{mode} worker": process for mode, process in self._workers.items()}
        middleware = {} if self.middleware.process is None else {"middleware": self.middleware.process}
        return {**workers, **middleware}

    def stop(self) -> dict[str, int | str]:
        """Send each of them SIGTERM, the middleware last; their exit statuses by name."""
        for process in self._workers.values():
            process.send_signal(signal.SIGTERM)
        statuses = {mode: _status(process) for mode, process in self._workers.items()}
        self.middleware.close_clients()
        return {**statuses, "middleware": self.middleware.stop()}

    def _end(self) -> None:
        for process in self._workers.values():
            process.kill()
        for process in self._workers.values():
            process.wait()
        try:
            self.middleware.close()
        except KiwiWorkerError:
            pass


def _status(process: subprocess.Popen[bytes]) -> int | str:
    try:
        return process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        return "still running"
