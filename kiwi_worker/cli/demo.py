"""`kiwi-worker demo`: a middleware and two workers as real processes, and calls of every kind."""

from __future__ import annotations

import shlex
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

import click

from kiwi_worker.demo.play import ACTS, Line, Stage
from kiwi_worker.demo.processes import MODES, SERVICE, Processes
from kiwi_worker.demo.table import show

__all__ = ["demo"]

STOPS = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
LOOK_SECONDS = 1.0
CALLS = ("hello name=Ada", "longtask steps=10", "divide a=1 b=0", "reserve seat=12C --lock")


@click.command("demo")
@click.option("--keep", is_flag=True, help="Leave everything running until Ctrl-C, and tell how to call it.")
def demo(keep: bool) -> None:
    """Start a middleware, a lazy and an eager worker, call them, show what came of it, and stop them.

    Exit status: 0 when every outcome was the right one, else 1.
    """
    # These unwind like Ctrl-C, so that no process is left behind; and a shell that started us in the
    # background may have let us inherit that SIGINT is ignored.
    for number in STOPS:
        signal.signal(number, _leave)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with tempfile.TemporaryDirectory(prefix="kiwi-demo-") as folder:
        sys.exit(_run(Path(folder), keep))


def _leave(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)


def _run(folder: Path, keep: bool) -> int:
    click.echo("starting a middleware on an SQLite file, and two workers …")
    with Processes(folder) as processes:
        click.echo(f"  middleware at {processes.middleware.url}")
        click.echo(f"  {' and '.join(f'demo-{mode}' for mode in MODES)} are registered\n")
        stage = Stage(processes.client, processes.reservations)
        lines = [act.perform(stage) for act in ACTS]
        if keep:
            _show(lines)
            _keep(processes, folder)
        shown = len(lines) if keep else 0
        lines.append(_stop(processes))
    _show(lines[shown:])
    return _judged(lines)


def _show(lines: Sequence[Line]) -> None:
    for row in show(lines):
        click.echo(row)


def _judged(lines: Sequence[Line]) -> int:
    wrong = [line.what for line in lines if not line.right]
    if wrong:
        click.secho(f"{len(wrong)} of {len(lines)} outcomes were not the right ones:", fg="red", bold=True)
        click.echo("\n".join(f"  {what}" for what in wrong))
        return 1
    click.secho(f"all {len(lines)} outcomes were the right ones", fg="green")
    return 0


def _stop(processes: Processes) -> Line:
    since = time.monotonic()
    statuses = processes.stop()
    came = ", ".join(f"{name} {status}" for name, status in statuses.items())
    right = not any(statuses.values())
    return Line("SIGTERM to all three", f"exit statuses: {came}", right, time.monotonic() - since)


def _keep(processes: Processes, folder: Path) -> None:
    secret = folder / "client-secret"
    secret.touch(mode=0o600)
    secret.write_text(processes.middleware.client_secret)
    click.echo("Call it from another terminal:\n")
    click.echo(f"  export KIWI_MIDDLEWARE_URL={processes.middleware.url}")
    click.echo(f"  export KIWI_CLIENT_SECRET_FILE={shlex.quote(str(secret))}")
    for call in CALLS:
        click.echo(f"  {_own_command()} call {SERVICE}/{call}")
    click.echo("\nCtrl-C stops everything.")
    try:
        while processes.dead() is None:
            time.sleep(LOOK_SECONDS)
    except KeyboardInterrupt:
        click.echo()
    else:
        click.echo(f"{processes.dead()}; the others are stopped")


def _own_command() -> str:
    """How this command is called from a shell that may be in another folder."""
    if Path(sys.argv[0]).name == "__main__.py":
        return shlex.join([sys.executable, "-m", "kiwi_worker"])
    own = Path(sys.argv[0]).absolute()
    found = shutil.which("kiwi-worker")
    return "kiwi-worker" if found is not None and Path(found).absolute() == own else shlex.quote(str(own))
