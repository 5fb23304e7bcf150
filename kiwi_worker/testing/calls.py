"""What the server saw: every request, and what became of it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from kiwi_worker.testing.wire import Request

if TYPE_CHECKING:
    from kiwi_worker.testing.faults import Fault

__all__ = ["Call", "CallLog", "Outcome"]

Outcome = Literal["pending", "answered", "cut", "gone"]
"""`answered`: a whole answer left. `cut`: a fault ended the connection, or broke the answer, on purpose.
`gone`: the client left, or the server stopped, before the answer was out. `pending`: still at work."""


@dataclass(eq=False)
class Call:
    """One request, and what became of it.

    Attributes:
        number: counts the requests of this server, from 1, in the order they were read.
        name: the call's name (`drain`, `respond`, `poll`, …), or `other` for a path the protocol lacks.
        request: the request itself.
        connection: the number of the connection it came over; kept connections repeat it.
        received_at: when it had been read, in seconds of `time.monotonic()`.
        worker_id: who sent it, where its token, session or body tells.
        acted: whether the server did what was asked (handed out, locked, recorded, …).
        fault: the fault that struck this call, or None.
        status: the status of the answer, or None when no status line was sent.
        outcome: how it ended.
    """

    number: int
    name: str
    request: Request = field(repr=False)
    connection: int
    received_at: float = field(default_factory=time.monotonic)
    worker_id: str | None = None
    acted: bool = False
    fault: Fault | None = None
    status: int | None = None
    outcome: Outcome = "pending"

    @property
    def method(self) -> str:
        """The HTTP verb."""
        return self.request.method

    @property
    def path(self) -> str:
        """The path, still percent-encoded, without the query and the server's prefix."""
        return self.request.path

    @property
    def query(self) -> dict[str, str]:
        """The query's names and values."""
        return self.request.query

    @property
    def headers(self) -> tuple[tuple[str, str], ...]:
        """The headers as sent. `request.header(name)` finds one in any case."""
        return self.request.headers

    @property
    def body(self) -> bytes:
        """The request's body."""
        return self.request.body


class CallLog:
    """The calls of one server in order. Thread-safe; shares the server's condition.

    Args:
        changed: notified after every change.
    """

    def __init__(self, changed: threading.Condition) -> None:
        self._changed = changed
        self._calls: list[Call] = []

    def open(self, name: str, request: Request, connection: int) -> Call:
        """Record a request that was just read."""
        with self._changed:
            call = Call(len(self._calls) + 1, name, request, connection)
            self._calls.append(call)
            self._changed.notify_all()
            return call

    def close(self, call: Call, outcome: Outcome) -> None:
        """Record how a call ended; the first word counts."""
        with self._changed:
            if call.outcome == "pending":
                call.outcome = outcome
            self._changed.notify_all()

    def all(self, name: str | None = None, where: Callable[[Call], bool] | None = None) -> list[Call]:
        """The calls so far: of this name, and where `where` says so."""
        with self._changed:
            return [
                call
                for call in self._calls
                if (name is None or call.name == name) and (where is None or where(call))
            ]
