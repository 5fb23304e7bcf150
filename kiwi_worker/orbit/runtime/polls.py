"""Polls that wait for a task."""

from __future__ import annotations

from dataclasses import dataclass

from kiwi_worker.orbit.runtime.messages import Assignment
from kiwi_worker.orbit.runtime.refusal import Refused

DEFAULT_WAIT_MS = 20_000
LONGEST_WAIT_MS = 60_000


def wait_of(wait_ms: int | None) -> int:
    """How long a poll with this `wait_ms` waits: the default, and at most 60 s."""
    return DEFAULT_WAIT_MS if wait_ms is None else max(0, min(wait_ms, LONGEST_WAIT_MS))


@dataclass(eq=False)
class Poll:
    """One poll. When `done`, it ended with an assignment, with a refusal, or with neither: no task came.

    Attributes:
        session_id: whose poll it is.
        ends_ms: when it ends without a task.
    """

    session_id: str
    ends_ms: int
    done: bool = False
    assignment: Assignment | None = None
    refused: Refused | None = None
