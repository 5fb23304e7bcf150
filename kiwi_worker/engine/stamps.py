"""What loops leave behind when they turn, so that health can tell one that is stuck from one that waits.

Each is written by one thread and read by any: a plain assignment, no lock.
"""

from __future__ import annotations

import math
import time

__all__ = ["PATIENCE_SECONDS", "STUCK_SECONDS", "Stamp", "Streak", "long_ago"]

PATIENCE_SECONDS = 60.0
"""How long something may fail, or stand still, before the worker is called unhealthy for it."""
STUCK_SECONDS = 30.0
"""How much longer than its longest wait a loop may take to turn before it is called stuck."""


def long_ago(moment: float | None) -> bool:
    """Whether this moment of the monotonic clock is longer ago than patience lasts; None is no moment."""
    return moment is not None and time.monotonic() - moment > PATIENCE_SECONDS


class Stamp:
    """When a loop has to have turned at the latest, in the loop's own words.

    Attributes:
        due: on the monotonic clock; infinite while the loop waits for what may never come.
    """

    __slots__ = ("due",)

    def __init__(self) -> None:
        self.due = math.inf

    def expect(self, seconds: float) -> None:
        """The loop begins something that ends within this time."""
        self.due = time.monotonic() + seconds

    def rest(self) -> None:
        """The loop waits, and may do so for ever; or it has ended."""
        self.due = math.inf

    @property
    def is_late(self) -> bool:
        """Whether the loop is stuck."""
        return time.monotonic() > self.due + STUCK_SECONDS


class Streak:
    """Since when something has failed without a success in between, and how it failed last.

    Attributes:
        since: on the monotonic clock; None while it goes well.
        problem: the last failure in words; "" while it goes well.
    """

    __slots__ = ("problem", "since")

    def __init__(self) -> None:
        self.since: float | None = None
        self.problem = ""

    def fail(self, problem: str) -> None:
        """It failed, once more or for the first time."""
        self.problem = problem
        if self.since is None:
            self.since = time.monotonic()

    def succeed(self) -> None:
        """It went well."""
        self.since = None
        self.problem = ""

    @property
    def is_long(self) -> bool:
        """Whether it has failed for longer than patience lasts."""
        return long_ago(self.since)
