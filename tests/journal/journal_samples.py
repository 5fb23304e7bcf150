"""What the journal tests share."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from kiwi_worker.engine.journal import Journal, Recovered

WORKER_ID = "orders-1"
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
"""For child processes: they import what this one does."""


def open_journal(path: Path, **bounds: Any) -> Journal:
    """The journal at `path`, of the usual worker."""
    return Journal.open(str(path), worker_id=WORKER_ID, **bounds)


def recover(path: Path, **bounds: Any) -> Recovered:
    """What was left at `path`."""
    with open_journal(path, **bounds) as journal:
        return journal.recovered


def crash(journal: Journal) -> None:
    """Let go of the journal as a death would: nothing more is written, and its lock is free."""
    journal._close_in_child()


def states(recovered: Recovered) -> dict[str | None, tuple[str, bytes, bool, int]]:
    """By key: state, body, whether locked, runs."""
    every = [*recovered.outcomes, *recovered.waiting, *recovered.started]
    return {one.key: (one.state, one.body, one.locked, one.runs) for one in every}
