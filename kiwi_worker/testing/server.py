"""A server that misbehaves on purpose, for testing workers.

In process:

    with MisbehavingServer.kiwi() as server:
        server.fault("respond", DropBefore(), after=True)

As a process, which prints its address on one line and ends on SIGINT or SIGTERM:

    python -m kiwi_worker.testing.server --port 8420 --fault respond:Status:status=503,times=2

The faults of the process form can be changed while it runs, through `/_faults` (see `control`).
"""

from __future__ import annotations

import signal
import threading
from typing import Any

import click

from kiwi_worker.testing.base import MisbehavingServer
from kiwi_worker.testing.control import arm_described, described
from kiwi_worker.testing.kiwi_server import KiwiServer
from kiwi_worker.testing.orbit_server import OrbitServer

__all__ = ["KiwiServer", "MisbehavingServer", "OrbitServer", "main"]

MisbehavingServer.kiwi = KiwiServer
MisbehavingServer.orbit = OrbitServer


@click.command(help="Serve a worker protocol, and misbehave as told.")
@click.option("--protocol", type=click.Choice(["kiwi", "orbit"]), default="kiwi", show_default=True)
@click.option("--host", default="127.0.0.1", show_default=True)
@click.option("--port", type=int, default=0, help="0 for any free one, which is printed.")
@click.option("--seed", type=int, help="Makes faults by probability repeatable.")
@click.option("--fault", "faults", multiple=True, metavar="CALL:FAULT:key=value,…", help="Arm a fault.")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="Set an argument of the server.")
def main(
    protocol: str, host: str, port: int, seed: int | None, faults: tuple[str, ...], settings: tuple[str, ...]
) -> None:
    """Run the process form until SIGINT or SIGTERM."""
    stop = _stop_on_signals()
    kind: type[KiwiServer | OrbitServer] = KiwiServer if protocol == "kiwi" else OrbitServer
    try:
        server = kind(host=host, port=port, seed=seed, **_settings(settings))
        for text in faults:
            arm_described(server, described(text))
    except (ValueError, TypeError) as error:
        raise click.UsageError(str(error)) from error
    with server:
        click.echo(server.url)
        stop.wait()


def _stop_on_signals() -> threading.Event:
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    return stop


def _settings(pairs: tuple[str, ...]) -> dict[str, Any]:
    """`key=value` pairs as keywords, read the way a fault's values are."""
    values = described("x:x:" + ",".join(pairs)) if pairs else {}
    return {key: value for key, value in values.items() if key not in ("call", "fault")}


if __name__ == "__main__":
    main()
