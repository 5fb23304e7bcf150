"""`kiwi-worker journal`: what a worker's journal holds."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from typing import Any

import click

from kiwi_worker.errors import JournalError

_COLUMNS = "{:<40} {:<8} {:>12} {:>5} {:<6} {:>12}"


@click.command("journal")
@click.argument("file", type=click.Path())
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--bodies", is_flag=True, help="Print params and results, too, secrets in them included.")
def journal(file: str, as_json: bool, bodies: bool) -> None:
    """Show what the journal FILE holds.

    FILE is only read, and may be in use by a running worker. With several processes each has its own:
    FILE.1, FILE.2 and so on.
    """
    try:
        report = _report(file, bodies=bodies)
    except JournalError as error:
        click.echo(f"kiwi-worker journal: {error}", err=True)
        sys.exit(error.exit_status)
    if as_json:
        click.echo(json.dumps(report))
    else:
        for line in _lines(report):
            click.echo(line)


def _report(file: str, *, bodies: bool) -> dict[str, Any]:
    # imported here: the other commands can do without the engine
    from kiwi_worker.engine.journal import read_journal

    image = read_journal(file)
    now = time.time()
    entries = []
    for key, entry in image.entries:
        row: dict[str, Any] = {
            "key": key,
            "state": entry.state,
            "age_seconds": round(max(0.0, now - entry.received_at), 3),
            "runs": entry.runs,
            "locked": entry.locked,
            "body_bytes": len(entry.body),
        }
        if bodies:
            row["body"] = entry.body.decode("utf-8", "backslashreplace")
        entries.append(row)
    return {
        "file": file,
        "worker_id": image.worker_id,
        "process_id": image.process_id,
        "bytes": image.bytes,
        "torn_bytes": image.torn_bytes,
        "degraded": image.degraded,
        "entries": entries,
    }


def _lines(report: dict[str, Any]) -> Iterator[str]:
    worker = "nobody yet" if report["worker_id"] is None else _printable(report["worker_id"])
    yield f"worker   {worker} (last written by process {report['process_id']})"
    yield f"file     {report['file']}, {report['bytes']:,} bytes"
    if report["torn_bytes"]:
        yield f"         the last {report['torn_bytes']} bytes are half a record"
    if report["degraded"]:
        yield "         DEGRADED: the worker cannot write to it, so news is missing"
    yield f"entries  {len(report['entries'])} open"
    if report["entries"]:
        yield ""
        yield _COLUMNS.format("key", "state", "age (s)", "runs", "locked", "bytes")
    for entry in report["entries"]:
        yield from _entry_lines(entry)


def _entry_lines(entry: dict[str, Any]) -> Iterator[str]:
    key = "(none)" if entry["key"] is None else _printable(entry["key"])
    locked = "yes" if entry["locked"] else "no"
    age, size = f"{entry['age_seconds']:,.1f}", f"{entry['body_bytes']:,}"
    yield _COLUMNS.format(key, entry["state"], age, entry["runs"], locked, size)
    if "body" in entry:
        yield f"    {_printable(entry['body'])}"


def _printable(text: str) -> str:
    # Ids and bodies come from others: what a terminal would obey is escaped.
    return json.dumps(text)[1:-1]
