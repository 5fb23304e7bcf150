"""A bundled middleware for tests: a real process on a free port, on an SQLite file of its own.

from kiwi_worker.testing.middleware import running_middleware

with running_middleware(heartbeat_delay=0.2) as middleware:
    worker = Worker(middleware_url=middleware.url, service_id=middleware.service_id,
                    auth_secret=middleware.worker_secret, ...)
    middleware.client.call("hello")
"""

from __future__ import annotations

import copy
import os
import queue
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

from ..client import Client
from ..middleware.stores.directory import Directory
from ..orphans import ending_with_us

__all__ = ["MiddlewareProcess", "running_middleware"]

START_SECONDS = 30.0
STOP_SECONDS = 20.0


class MiddlewareProcess:
    """A middleware as a process; start it, stop it, kill it, start it again on the same file and port.

    Args:
        db: the SQLite file; a temporary one when left out.
        service_id: the service that is made in it, with fresh secrets.
        ends_with_us: let it end, too, when this process is killed, and be out of reach of a terminal's
            Ctrl-C; then start it in the main thread.
        settings: settings of the middleware, by key: `heartbeat_delay=0.2`.

    Attributes:
        url: its base address while it runs; the same after a restart.
        service_id, worker_secret, client_secret: the service.
        process: the running process.
    """

    def __init__(
        self,
        db: str | os.PathLike[str] | None = None,
        service_id: str = "demo",
        *,
        ends_with_us: bool = False,
        **settings: object,
    ) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="kiwi-middleware-") if db is None else None
        self.db = str(Path(self._folder.name) / "middleware.db") if self._folder is not None else str(db)
        self.service_id = service_id
        with Directory(self.db) as directory:
            made = directory.add_service(service_id)
        self.worker_secret, self.client_secret = made["worker"], made["client"]
        self.url = ""
        self.output: list[str] = []
        self.process: subprocess.Popen[str] | None = None
        self._settings = {"port": 0, **settings}
        self._ends_with_us = ends_with_us
        self._clients: list[Client] = []
        self._reader: threading.Thread | None = None

    def __enter__(self) -> MiddlewareProcess:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def client(self) -> Client:
        """A client of the service; closed with the middleware."""
        if not self._clients:
            self.new_client()
        return self._clients[0]

    def new_client(self, **settings: object) -> Client:
        """Another client; closed with the middleware."""
        client = Client(self.url, service_id=self.service_id, client_secret=self.client_secret, **settings)
        self._clients.append(client)
        return client

    def with_new_service(self) -> MiddlewareProcess:
        """The same process seen with a fresh service: tests can share a middleware, and nothing else."""
        view = copy.copy(self)
        view.service_id = f"service-{secrets.token_hex(4)}"
        with Directory(self.db) as directory:
            made = directory.add_service(view.service_id)
        view.worker_secret, view.client_secret = made["worker"], made["client"]
        view._clients = []
        return view

    def close_clients(self) -> None:
        """Close every client made here."""
        for client in self._clients:
            client.close()
        self._clients.clear()

    def start(self) -> None:
        """Start it, and wait until it accepts connections.

        Raises:
            RuntimeError: it ended instead; its output is in the text.
        """
        options = [f"--{key.replace('_', '-')}={value}" for key, value in self._settings.items()]
        arguments = ["-m", "kiwi_worker.cli.middleware", "--db", self.db, *options]
        command = ending_with_us(arguments) if self._ends_with_us else [sys.executable, *arguments]
        self.process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=self._ends_with_us,
        )
        lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._reader = threading.Thread(
            target=self._read, args=(self.process, lines), name="middleware-output"
        )
        self._reader.start()
        self._wait_until_ready(lines)

    def stop(self) -> int:
        """End it with SIGTERM; its exit status."""
        return self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End it with SIGKILL, as a crash would."""
        self._end(signal.SIGKILL)

    def close(self) -> None:
        """Stop it if it runs, close its clients, remove its temporary folder."""
        self.close_clients()
        if self.process is not None:
            self.stop()
        if self._folder is not None:
            self._folder.cleanup()

    def _wait_until_ready(self, lines: queue.SimpleQueue[str | None]) -> None:
        while True:
            try:
                line = lines.get(timeout=START_SECONDS)
            except queue.Empty:
                line = None
            if line is None:
                self._end(signal.SIGKILL)
                raise RuntimeError("the middleware did not start:\n" + "".join(self.output))
            if line.startswith("middleware listens on "):
                self.url = line.split()[-1]
                self._settings["port"] = self.url.rpartition(":")[2]
                return

    def _read(self, process: subprocess.Popen[str], lines: queue.SimpleQueue[str | None]) -> None:
        assert process.stdout is not None
        with process.stdout:
            for line in process.stdout:
                self.output.append(line)
                lines.put(line)
        lines.put(None)

    def _end(self, number: signal.Signals) -> int:
        process = self.process
        assert process is not None
        if process.poll() is None:
            process.send_signal(number)
        try:
            status = process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            status = process.wait(STOP_SECONDS)
        if self._reader is not None:
            self._reader.join(STOP_SECONDS)
        return status


@contextmanager
def running_middleware(**settings: object) -> Iterator[MiddlewareProcess]:
    """A middleware with one service `demo`, stopped at the end; takes what `MiddlewareProcess` takes."""
    with MiddlewareProcess(**settings) as middleware:  # type: ignore[arg-type]
        yield middleware
