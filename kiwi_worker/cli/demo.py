"""`kiwi-worker demo`: a middleware and two workers as real processes, and calls of every kind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import click

from kiwi_worker.client import Client
from kiwi_worker.demo.play import ACTS, Line, Stage
from kiwi_worker.demo.table import show
from kiwi_worker.testing.middleware import MiddlewareProcess

__all__ = ["demo"]

SERVICE = "demo"
MODES = ("lazy", "eager")
READY_SECONDS = 30.0
STOP_SECONDS = 30.0


@click.command("demo")
@click.option("--keep", is_flag=True, help="Leave everything running until Ctrl-C, and tell how to call it.")
def demo(keep: bool) -> None:
    """Start a middleware, a lazy and an eager worker, call them, show what came of it, and stop them.

    Exit status: 0 when every outcome was the right one, else 1.
    """
    # SIGTERM unwinds like Ctrl-C, so that no process is left behind; and a shell that started us in the
    # background may have let us inherit that SIGINT is ignored.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with tempfile.TemporaryDirectory(prefix="kiwi-demo-") as folder, ExitStack() as stack:
        sys.exit(_run(Path(folder), stack, keep))


def _run(folder: Path, stack: ExitStack, keep: bool) -> int:
    click.echo("starting a middleware on an SQLite file, and two workers …")
    middleware = stack.enter_context(MiddlewareProcess(folder / "middleware.db", SERVICE))
    workers = {mode: stack.enter_context(_worker(mode, middleware, folder)) for mode in MODES}
    client = middleware.client
    _await_workers(client, workers)
    click.echo(f"  middleware at {middleware.url}, workers demo-lazy and demo-eager are registered\n")
    stage = Stage(client, folder / "reservations")
    lines = [act.perform(stage) for act in ACTS]
    if keep:
        _show(lines)
        _keep(middleware, folder)
        return 0 if all(line.right for line in lines) else 1
    lines.append(_stop(middleware, workers))
    _show(lines)
    wrong = [line.what for line in lines if not line.right]
    if wrong:
        click.echo(f"{len(wrong)} of {len(lines)} outcomes were not the right ones: {', '.join(wrong)}")
        return 1
    click.echo(f"all {len(lines)} outcomes were the right ones")
    return 0


def _show(lines: list[Line]) -> None:
    for row in show(lines):
        click.echo(row)


@contextmanager
def _worker(mode: str, middleware: MiddlewareProcess, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    reservations = folder / "reservations"
    reservations.touch()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("KIWI_")}
    environment |= {
        "KIWI_MIDDLEWARE_URL": middleware.url,
        "KIWI_SERVICE_ID": SERVICE,
        "KIWI_AUTH_SECRET": middleware.worker_secret,
        "DEMO_RESERVATIONS": str(reservations),
    }
    command = [sys.executable, "-m", "kiwi_worker", "run", "kiwi_worker.demo.tasks", "--run-mode", mode]
    command += ["--worker-id", f"demo-{mode}", "--wakeup-probe-service-port", "0", "--log-level", "critical"]
    # A group of their own: a Ctrl-C is for us, and we stop them in order.
    process = subprocess.Popen(command, env=environment, start_new_session=True)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


def _await_workers(client: Client, workers: dict[str, subprocess.Popen[bytes]]) -> None:
    until = time.monotonic() + READY_SECONDS
    while len(client.workers()) < len(workers):
        for mode, process in workers.items():
            if process.poll() is not None:
                raise click.ClickException(f"the {mode} worker ended with status {process.returncode}")
        if time.monotonic() > until:
            raise click.ClickException(f"the workers did not register within {READY_SECONDS:.0f} s")
        time.sleep(0.05)


def _stop(middleware: MiddlewareProcess, workers: dict[str, subprocess.Popen[bytes]]) -> Line:
    since = time.monotonic()
    for process in workers.values():
        process.send_signal(signal.SIGTERM)
    statuses = {mode: _status(process) for mode, process in workers.items()}
    middleware.close_clients()
    statuses["middleware"] = middleware.stop()
    came = ", ".join(f"{name} {status}" for name, status in statuses.items())
    return Line(
        "SIGTERM to all three", f"exit statuses: {came}", not any(statuses.values()), time.monotonic() - since
    )


def _status(process: subprocess.Popen[bytes]) -> int | str:
    try:
        return process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        return "still running"


def _keep(middleware: MiddlewareProcess, folder: Path) -> None:
    secret = folder / "client-secret"
    secret.touch(mode=0o600)
    secret.write_text(middleware.client_secret)
    click.echo("Call it from another terminal:\n")
    click.echo(f"  export KIWI_MIDDLEWARE_URL={middleware.url} KIWI_CLIENT_SECRET_FILE={secret}")
    for call in ("hello name=Ada", "longtask steps=10", "divide a=1 b=0", "reserve seat=12C --lock"):
        click.echo(f"  kiwi-worker call {SERVICE}/{call}")
    click.echo("\nCtrl-C stops everything.")
    stopped = threading.Event()
    try:
        stopped.wait()
    except KeyboardInterrupt:
        click.echo()
