"""What a former process left in a journal."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from .entries import Entries, Entry

__all__ = ["Leftover", "Recovered", "sort_leftovers"]


class Leftover(NamedTuple):
    """One entry that a former process left open.

    Attributes:
        key: its key; None for an entry that was received without one.
        body: its outcome when `state` is `outcome`, else what was received.
        state: `outcome`, `started`, `claimed` or `waiting`.
        locked: whether it was claimed for this worker; False with an outcome.
        runs: how often it was started, over all processes; 0 with an outcome.
        age_seconds: how long ago it was received.
    """

    key: str | None
    body: bytes
    state: str
    locked: bool
    runs: int
    age_seconds: float


@dataclass(frozen=True)
class Recovered:
    """What a former process left, each list in the order of receipt. All but `expired` is still open.

    Attributes:
        outcomes: known outcomes, to be sent.
        waiting: never started.
        started: started, with no known outcome.
        expired: older than the maximum age; already forgotten.
        degraded: whether that process could not write all its news. What it had not noted as started may have
            been, so it stands under `started` and not under `waiting`.
        torn_bytes: size of the half record at the end, dropped: news that nobody had acted on yet.
    """

    outcomes: list[Leftover] = field(default_factory=list)
    waiting: list[Leftover] = field(default_factory=list)
    started: list[Leftover] = field(default_factory=list)
    expired: list[Leftover] = field(default_factory=list)
    degraded: bool = False
    torn_bytes: int = 0

    def __len__(self) -> int:
        return len(self.outcomes) + len(self.waiting) + len(self.started)


def sort_leftovers(
    entries: Entries, expired: list[tuple[str | None, Entry]], *, now: float, degraded: bool, torn_bytes: int
) -> Recovered:
    """Tell open entries apart by what is to be done with them; `now` is in seconds since the epoch."""
    recovered = Recovered(degraded=degraded, torn_bytes=torn_bytes)
    recovered.expired.extend(_leftover(key, entry, now) for key, entry in expired)
    for key, entry in entries:
        if entry.has_outcome:
            recovered.outcomes.append(_leftover(key, entry, now))
        elif entry.runs:
            recovered.started.append(_leftover(key, entry, now))
        else:
            recovered.waiting.append(_leftover(key, entry, now))
    return recovered


def _leftover(key: str | None, entry: Entry, now: float) -> Leftover:
    age_seconds = max(0.0, now - entry.received_at)
    return Leftover(key, entry.body, entry.state, entry.locked, entry.runs, age_seconds)
