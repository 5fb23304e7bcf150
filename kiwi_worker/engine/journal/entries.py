"""Entries: what is open in a journal, kept the same way by the worker that writes it and by the one that
reads it after a crash. Keys and bodies mean nothing here."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby, islice
from typing import Final

from .records import (
    CLAIMED,
    CLAIMED_AND_STARTED,
    FORGOTTEN,
    OUTCOME,
    RECEIVED,
    STARTED,
    Record,
    encode_received,
    encode_record,
    received_entries,
)

__all__ = ["Entries", "Entry"]

_BATCH_SIZE: Final = 1000


@dataclass(slots=True)
class Entry:
    """One thing received and not yet forgotten. `received_at` is in seconds since the epoch."""

    received_at: float
    body: bytes
    locked: bool = False
    runs: int = 0
    has_outcome: bool = False
    """Whether `body` is the outcome, which replaces what was received."""

    @property
    def state(self) -> str:
        """`outcome`, `started`, `claimed` or `waiting`."""
        if self.has_outcome:
            return "outcome"
        if self.runs:
            return "started"
        return "claimed" if self.locked else "waiting"


class Entries:
    """The open entries of one journal, in the order they were received.

    Changes need the caller's lock, but for `forgotten`, which may come at any time.

    Entries without a key (drained elements that carry no id) are kept apart; they are never claimed or
    started, and forgotten together.
    """

    def __init__(self) -> None:
        self.named: dict[str, Entry] = {}
        self.nameless: list[Entry] = []

    def __len__(self) -> int:
        return len(self.named) + len(self.nameless)

    def __iter__(self) -> Iterator[tuple[str | None, Entry]]:
        # A copy is made in one step, whatever other threads do; a list of items is not.
        yield from self.named.copy().items()
        for entry in list(self.nameless):
            yield None, entry

    def received(self, batch: Iterable[tuple[str, bytes]], time: float) -> None:
        """Open an entry for each key that is not open; a duplicate of an open one changes nothing."""
        named = self.named
        for key, body in batch:
            if not key:
                self.nameless.append(Entry(time, body))
            elif key not in named:
                named[key] = Entry(time, body)

    def claimed(self, key: str) -> None:
        """Note that the entry is locked for this worker."""
        entry = self.named.get(key)
        if entry is not None:
            entry.locked = True

    def next_run(self, key: str) -> int:
        """The number of the run that would start now, from 1; 0 when the entry is not open."""
        entry = self.named.get(key)
        return 0 if entry is None else entry.runs + 1

    def started(self, key: str, run: int, claimed: bool) -> None:
        """Note that run number `run` has begun, and, if so, that the entry was locked for it."""
        entry = self.named.get(key)
        if entry is not None:
            entry.runs = run
            if claimed:
                entry.locked = True

    def outcome(self, key: str, body: bytes, time: float) -> None:
        """Note the outcome, for an entry that was never received too; a later one replaces an earlier one.

        Locks and runs of an entry that has its outcome are nobody's business any more.
        """
        entry = self.named.get(key)
        if entry is None:
            self.named[key] = Entry(time, body, has_outcome=True)
        else:
            entry.body = body
            entry.has_outcome = True
            entry.locked = False
            entry.runs = 0

    def forgotten(self, key: str) -> None:
        """Close the entry; the empty key closes all that have none."""
        if key:
            self.named.pop(key, None)
        else:
            self.nameless.clear()

    def apply(self, record: Record) -> None:
        """Do what the record tells."""
        if record.kind == RECEIVED:
            self.received(received_entries(record), record.time)
        elif record.kind == CLAIMED:
            self.claimed(record.key)
        elif record.kind in (STARTED, CLAIMED_AND_STARTED):
            self.started(record.key, record.number, record.kind == CLAIMED_AND_STARTED)
        elif record.kind == OUTCOME:
            self.outcome(record.key, record.body, record.time)
        elif record.kind == FORGOTTEN:
            self.forgotten(record.key)

    def assume_started(self) -> None:
        """Take all that is not known to have an outcome for started."""
        for entry in self.named.values():
            if not entry.has_outcome:
                entry.runs = max(entry.runs, 1)

    def remove_older(self, than: float) -> list[tuple[str | None, Entry]]:
        """Take out and return what was received before `than` (seconds since the epoch)."""
        old = [(key, entry) for key, entry in self if entry.received_at < than]
        self.named = {key: entry for key, entry in self.named.items() if entry.received_at >= than}
        self.nameless = [entry for entry in self.nameless if entry.received_at >= than]
        return old

    def body_bytes(self) -> int:
        """How many bytes of bodies are open."""
        return sum(len(entry.body) for _, entry in self)

    def encode(self) -> Iterator[bytes]:
        """The fewest records that, applied to nothing, make these entries."""
        for (time, has_outcome), group in groupby(self, _group):
            if has_outcome:
                for key, entry in group:
                    yield encode_record(OUTCOME, key or "", entry.body, 0, time)
            else:
                while batch := list(islice(group, _BATCH_SIZE)):
                    yield from _encode_batch(batch, time)


def _group(item: tuple[str | None, Entry]) -> tuple[float, bool]:
    return item[1].received_at, item[1].has_outcome


def _encode_batch(batch: list[tuple[str | None, Entry]], time: float) -> Iterator[bytes]:
    yield encode_received([(key or "", entry.body) for key, entry in batch], time)
    for key, entry in batch:
        if entry.runs:
            kind = CLAIMED_AND_STARTED if entry.locked else STARTED
            yield encode_record(kind, key or "", b"", entry.runs)
        elif entry.locked:
            yield encode_record(CLAIMED, key or "")
