"""The ORBIT dev runtime as a real process, for tests.

with running_runtime(WORKFLOWS, token="admin") as runtime:
    worker = OrbitWorker(server=runtime.url, ...)
    runtime.kill()
    runtime.start()      # the same ports and the same database
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Iterator
from pathlib import Path

__all__ = ["RunningRuntime", "running_runtime"]

START_LIMIT_SECONDS = 30.0
STOP_LIMIT_SECONDS = 15.0
_LINES_KEPT = 2000
_READY = "ready"
"""The last line the process says at its start; see `kiwi_worker.orbit.runtime.server.READY`."""


class RunningRuntime:
    """A dev runtime in a process of its own.

    Attributes:
        url: where HTTP is served.
        grpc_url: where gRPC is served (`grpc://` or `grpcs://`), or None.
        process: the process of the latest `start`.
    """

    def __init__(self, arguments: list[str], environment: dict[str, str], grpc: bool) -> None:
        self.url = ""
        self.grpc_url: str | None = None
        self.process: subprocess.Popen[str]
        self._arguments, self._environment, self._grpc = arguments, environment, grpc
        self._ports = {"http": 0, "grpc": 0}
        self._lines: deque[str] = deque(maxlen=_LINES_KEPT)
        self._ready = threading.Event()
        """It serves, or has ended."""
        self._serves = False
        self._reader: threading.Thread | None = None

    def start(self) -> None:
        """Start the process and wait until it serves; after the first time, on the same ports.

        Raises:
            RuntimeError: if it ended or does not serve in time; the text holds what it said.
        """
        self._ready.clear()
        self._serves = False
        self.process = subprocess.Popen(
            [sys.executable, "-m", "kiwi_worker.cli.orbit_runtime", *self._arguments, *self._addresses()],
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, name="orbit-runtime-output", daemon=True)
        self._reader.start()
        if not self._ready.wait(START_LIMIT_SECONDS) or not self._serves:
            self.kill()
            raise RuntimeError(f"the dev runtime did not start:\n{self.output()}")

    def _addresses(self) -> list[str]:
        grpc = ["--grpc-addr", f"127.0.0.1:{self._ports['grpc']}"] if self._grpc else []
        return ["--port", str(self._ports["http"]), *grpc]

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                self._take(line.rstrip("\n"))
        # the end of the output is the end of the process: whoever waits for it need not wait longer
        self._ready.set()

    def _take(self, line: str) -> None:
        self._lines.append(line)
        if line.startswith("serving "):
            self._note_address(line.removeprefix("serving "))
        if line == _READY:
            self._serves = True
            self._ready.set()

    def _note_address(self, url: str) -> None:
        kind = "grpc" if url.startswith("grpc") else "http"
        self._ports[kind] = int(url.rpartition(":")[2])
        if kind == "grpc":
            self.grpc_url = url
        else:
            self.url = url

    def output(self) -> str:
        """What the process wrote, its log included; the latest lines."""
        return "\n".join(self._lines)

    def stop(self) -> int:
        """End it in order; returns the exit status."""
        if self.process.poll() is None:
            self.process.terminate()
        return self._reap()

    def kill(self) -> None:
        """End it as a crash would."""
        self.process.kill()
        self._reap()

    def _reap(self) -> int:
        try:
            status = self.process.wait(STOP_LIMIT_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            status = self.process.wait()
        if self._reader is not None:
            self._reader.join(STOP_LIMIT_SECONDS)
        return status


@contextlib.contextmanager
def running_runtime(
    deploy: str | Path,
    *,
    token: str | None = None,
    worker_token: str | None = None,
    db: Path | None = None,
    workers: str | None = None,
    session_timeout: str = "30s",
    max_body: int | None = None,
    grpc: bool = False,
    proto: str | Path | None = None,
    tls_cert: Path | None = None,
    tls_key: Path | None = None,
    tls_client_ca: Path | None = None,
) -> Iterator[RunningRuntime]:
    """A dev runtime on free loopback ports while the block runs.

    Args:
        deploy: the workflows, as a TOML file's path or its text.
        token, worker_token: as the options of the command; no token is inherited from the environment.
        db: an SQLite file; needed for what should outlive `kill` and `start`.
        workers: the text of a workers file.
        session_timeout: for example `500ms`.
        max_body: the largest request, in bytes.
        grpc: serve gRPC too.
        proto: the `worker.proto` of the gRPC binding; `assumed` when left out.
        tls_cert, tls_key, tls_client_ca: PEM files.
    """
    with tempfile.TemporaryDirectory(prefix="orbit-runtime-") as folder:
        options = {
            "--deploy": _file(Path(folder, "deploy.toml"), deploy),
            "--workers-file": None if workers is None else _file(Path(folder, "workers.toml"), workers),
            "--db": db,
            "--session-timeout": session_timeout,
            "--max-body": max_body,
            "--proto": proto,
            "--tls-cert": tls_cert,
            "--tls-key": tls_key,
            "--tls-client-ca": tls_client_ca,
        }
        given = [text for name, value in options.items() if value is not None for text in (name, str(value))]
        runtime = RunningRuntime(given, _environment(token, worker_token), grpc)
        runtime.start()
        try:
            yield runtime
        finally:
            runtime.stop()


def _file(path: Path, content: str | Path) -> Path:
    if isinstance(content, Path):
        return content
    path.write_text(content, "utf-8")
    return path


def _environment(token: str | None, worker_token: str | None) -> dict[str, str]:
    # tokens go by the environment, so that no list of processes shows them
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ORBIT_")}
    tokens = {"ORBIT_TOKEN": token, "ORBIT_WORKER_TOKEN": worker_token}
    return kept | {name: value for name, value in tokens.items() if value is not None}
