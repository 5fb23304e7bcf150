"""What one SQLite transaction will carry out: many steps, folded into as few rows as they come down to."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any

__all__ = ["ADDED", "CHANGED", "DRAINED", "ENDED", "OTHER", "Batch"]

ADDED, CHANGED, DRAINED, ENDED, OTHER = 1, 2, 3, 4, 5
"""The kinds of step: a call's row; its new state and number; a worker and the numbers it drained; an ending's
row, with its call's number before it; any other statement and its values."""

ROWS_AT_ONCE = 64
"""Rows in one statement. Each statement gives up the interpreter lock and has to win it back from the event
loop, so few long ones cost less than many short ones; SQLite takes at least 999 values."""

CALL_COLUMNS = 13
RESULT_COLUMNS = 11
ADD_CALLS = "INSERT OR REPLACE INTO calls VALUES "
ADD_RESULTS = (
    "INSERT OR IGNORE INTO results (request_id, service_id, method, status, error_text, result, reason,"
    " worker_id, finished_at, idempotency_key, fingerprint) VALUES "
)
CHANGE_CALL = "UPDATE calls SET worker_id=?, drained=?, earlier=coalesce(?, earlier) WHERE seq=?"
REMOVE_CALL = "DELETE FROM calls WHERE seq=?"
SET_SPOOLED = "INSERT OR REPLACE INTO meta VALUES ('spooled', ?)"

Values = Sequence[Any]


class Batch:
    """Steps to be carried out together.

    Attributes:
        size: how many steps it was given.
    """

    __slots__ = ("_added", "_changed", "_other", "_removed", "_results", "size")

    def __init__(self) -> None:
        self.size = 0
        self._added: dict[int, Values] = {}
        self._changed: dict[int, Values] = {}
        self._removed: list[tuple[int]] = []
        self._results: list[Values] = []
        self._other: list[Values] = []

    def step(self, kind: int, values: Values) -> None:
        """One more step, after all the others."""
        self.size += 1
        if kind == ADDED:
            self._added[values[0]] = values
        elif kind == CHANGED:
            self._changed[values[3]] = values
        elif kind == ENDED:
            self._end(values[0], values[1:])
        elif kind == DRAINED:
            self._drain(*values)
        else:
            self._other.append(values)

    def ended_requests(self) -> list[str]:
        """The request ids of the calls that ended in it."""
        return [values[0] for values in self._results]

    def write(self, connection: sqlite3.Connection, spooled: int) -> None:
        """Carry everything out in one transaction, which also notes that the spool up to there is in."""
        connection.execute("BEGIN IMMEDIATE")
        for statement, values in self._other:
            connection.execute(statement, values)
        _insert(connection, ADD_CALLS, CALL_COLUMNS, list(self._added.values()))
        connection.executemany(CHANGE_CALL, self._changed.values())
        connection.executemany(REMOVE_CALL, self._removed)
        _insert(connection, ADD_RESULTS, RESULT_COLUMNS, self._results)
        connection.execute(SET_SPOOLED, (str(spooled),))
        connection.execute("COMMIT")

    def _drain(self, worker_id: str, numbers: list[int]) -> None:
        self.size += len(numbers)
        for seq in numbers:
            before = self._changed.get(seq)
            self._changed[seq] = (worker_id, True, None if before is None else before[2], seq)

    def _end(self, seq: int, result: Values) -> None:
        # A call that came and ended within one batch, as most do, never was a row of its own.
        if self._added.pop(seq, None) is None:
            self._removed.append((seq,))
        self._changed.pop(seq, None)
        self._results.append(result)


def _insert(connection: sqlite3.Connection, statement: str, columns: int, rows: list[Values]) -> None:
    row = f"({','.join('?' * columns)})"
    start, count = 0, ROWS_AT_ONCE
    while start < len(rows):
        while count > len(rows) - start:
            count //= 2
        values = [value for values in rows[start : start + count] for value in values]
        connection.execute(statement + ",".join([row] * count), values)
        start += count
