"""`kiwi-worker orbit-runtime`: an ORBIT runtime for the laptop."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Any

import click

from kiwi_worker.errors import KiwiWorkerError, SettingsError
from kiwi_worker.orbit.runtime.durations import duration_ms
from kiwi_worker.orbit.runtime.http import DEFAULT_MAX_BODY
from kiwi_worker.orbit.runtime.options import RuntimeOptions

_LEVELS = ("debug", "info", "warning", "error")
_FILE = click.Path(path_type=Path)


def _milliseconds(context: click.Context, parameter: click.Parameter, value: str) -> int:
    try:
        return duration_ms(value if value[-1:].isalpha() else f"{value}s", "session timeout")
    except SettingsError as error:
        raise click.BadParameter(error.problem) from None


@click.command("orbit-runtime")
@click.option("--deploy", type=_FILE, required=True, help="TOML file of one-step workflows.")
@click.option("--db", type=_FILE, help="SQLite file to keep executions in; without it, memory.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to serve HTTP on.")
@click.option("--port", type=click.IntRange(0, 65535), default=7233, show_default=True, help="0: a free one.")
@click.option("--grpc-addr", envvar="ORBIT_GRPC_ADDR", help="HOST:PORT to serve gRPC on as well.")
@click.option("--proto", default="assumed", show_default=True, help="worker.proto of the gRPC binding.")
@click.option("--token", envvar="ORBIT_TOKEN", help="Admin token; better in ORBIT_TOKEN.")
@click.option("--worker-token", envvar="ORBIT_WORKER_TOKEN", help="Token for worker calls only.")
@click.option("--workers-file", type=_FILE, help="TOML file of per-worker credentials.")
@click.option(
    "--session-timeout", callback=_milliseconds, default="30s", show_default=True, help="Silence allowed."
)
@click.option(
    "--max-body", type=click.IntRange(1), default=DEFAULT_MAX_BODY, show_default=True, help="Bytes."
)
@click.option("--tls-cert", type=_FILE, help="PEM certificate; serves https and grpcs.")
@click.option("--tls-key", type=_FILE, help="PEM key of the certificate.")
@click.option("--tls-client-ca", type=_FILE, help="PEM CA that must have signed client certificates.")
@click.option("--log-level", type=click.Choice(_LEVELS), default="info", show_default=True)
def orbit_runtime(*, session_timeout: int, log_level: str, **given: Any) -> None:
    """Run a small ORBIT runtime, to try and test workers on.

    Workflows have one step, and perhaps a compensation; the workflow language is the real runtime's own.
    Without --token and --workers-file nobody needs credentials, and only loopback addresses are served.
    """
    logging.basicConfig(level=log_level.upper(), format="%(asctime)s %(levelname)s %(message)s")
    try:
        options = RuntimeOptions(session_timeout_ms=session_timeout, **given)
        # imported here: it loads the HTTP server, which the other commands can do without
        from kiwi_worker.orbit.runtime import server

        server.run(options, click.echo)
    except KiwiWorkerError as error:
        click.echo(f"kiwi-worker orbit-runtime: {error}", err=True)
        sys.exit(error.exit_status)


if __name__ == "__main__":
    orbit_runtime()
