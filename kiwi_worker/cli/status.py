"""`kiwi-worker status`: whether a worker is well, for people and for probes that run a command."""

from __future__ import annotations

import http.client
import json
import os
import sys
from typing import Any
from urllib.parse import urlsplit

import click

from kiwi_worker.observe.health_file import read_health_file

__all__ = ["status"]

LIMIT_SECONDS = 5.0
MOST_BYTES = 4 * 2**20
UNWELL = 1
UNKNOWN = 3
"""There is nobody to ask."""


@click.command("status")
@click.option("--file", "file", type=click.Path(), help="The worker's health_file.  [KIWI_HEALTH_FILE]")
@click.option("--url", help="Its health_port, such as http://127.0.0.1:8421.  [KIWI_HEALTH_PORT]")
@click.option("--live", "state", flag_value="live", help="Ask only whether its loops turn.")
@click.option("--ready", "state", flag_value="ready", help="Ask only whether it is ready for work.")
@click.option("--json", "as_json", is_flag=True, help="Print everything as one JSON object.")
def status(file: str | None, url: str | None, state: str | None, as_json: bool) -> None:
    """Tell whether a worker is healthy, as its health file or port says.

    \b
    Exit status: 0 it is; 1 it is not, and the reasons are printed; 3 there is no worker to ask, or
    its file is too old to be believed; 2 usage.
    """
    try:
        said = _ask(file, url)
    except (OSError, ValueError, http.client.HTTPException) as error:
        click.echo(f"kiwi-worker status: {error or type(error).__name__}", err=True)
        sys.exit(UNKNOWN)
    state = state or "healthy"
    if as_json:
        click.echo(json.dumps(said))
    else:
        for worker in said["workers"]:
            click.echo(_line(worker, state))
    sys.exit(0 if said[state] else UNWELL)


def _ask(file: str | None, url: str | None) -> dict[str, Any]:
    if file is not None and url is not None:
        raise click.UsageError("give --file or --url, not both")
    if file is None and url is None:
        file = os.environ.get("KIWI_HEALTH_FILE") or None
        port = os.environ.get("KIWI_HEALTH_PORT") or None
        url = None if port is None or file is not None else f"http://127.0.0.1:{port}"
    if file is not None:
        return _checked(read_health_file(file))
    if url is None:
        raise click.UsageError("give --file or --url: where the worker tells its health")
    return _checked(_fetch(url))


def _fetch(url: str) -> Any:
    host, port = _address(url)
    connection = http.client.HTTPConnection(host, port, timeout=LIMIT_SECONDS)
    try:
        connection.request("GET", "/status")
        body = connection.getresponse().read(MOST_BYTES)
    except OSError as error:
        raise OSError(f"nobody answers at {url}: {error}") from error
    finally:
        connection.close()
    try:
        return json.loads(body)
    except ValueError:
        raise ValueError(f"what answers at {url} is no worker's health port") from None


def _address(url: str) -> tuple[str, int]:
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        if parts.scheme == "http" and parts.hostname:
            return parts.hostname, parts.port or 80
    except ValueError:  # a port or a bracket that is none
        pass
    raise click.UsageError(f"{url!r} is not an address such as http://127.0.0.1:8421")


def _checked(said: Any) -> dict[str, Any]:
    if not isinstance(said, dict) or not isinstance(said.get("workers"), list):
        raise ValueError("that is not the health of a worker")
    return said


def _line(worker: dict[str, Any], state: str) -> str:
    words = {"healthy": "healthy", "live": "live", "ready": "ready"}[state]
    reasons = [worker["not_ready"]] if state == "ready" else worker["reasons"]
    well = "" if worker[state] else "not "
    why = "" if worker[state] else ": " + "; ".join(filter(None, reasons))
    return f"{worker['worker_id']} is {well}{words}{why}"
