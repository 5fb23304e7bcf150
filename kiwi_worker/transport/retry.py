"""When to try again, and after how long."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from kiwi_worker.transport.answer import Answer

MAX_RETRY_AFTER_SECONDS = 300.0

_TRANSIENT = frozenset({408, 425, 429})


def is_transient(status: int) -> bool:
    """Whether the same call may go better later: 408, 425, 429 and every 5xx."""
    return status >= 500 or status in _TRANSIENT


def retry_after_seconds(answer: Answer, now: float | None = None) -> float | None:
    """How long the server asks to wait, 0 to 300 seconds; None when it does not say or not readably.

    Args:
        answer: its `Retry-After` is a number of seconds or an HTTP date.
        now: the wall clock (seconds since 1970) a date is compared with. By default the answer's own
            `Date`, so that a wrong clock here does no harm, and the local clock without one.
    """
    value = answer.header("retry-after")
    if value is None:
        return None
    seconds = float(value) if value.isascii() and value.isdigit() else _until(value, answer, now)
    return None if seconds is None else min(max(seconds, 0.0), MAX_RETRY_AFTER_SECONDS)


def _until(value: str, answer: Answer, now: float | None) -> float | None:
    moment = _timestamp(value)
    if moment is None:
        return None
    if now is None:
        now = _timestamp(answer.header("date") or "")
    return moment - (time.time() if now is None else now)


def _timestamp(http_date: str) -> float | None:
    from email.utils import parsedate_to_datetime

    try:
        return parsedate_to_datetime(http_date).timestamp()
    except (ValueError, TypeError, OverflowError, IndexError):
        return None


class Backoff:
    """Waits that grow from failure to failure, each drawn from zero to a doubling ceiling.

    The draw comes after the cap, so that a fleet which lost its server together does not come back
    together, however long it waited.

    Args:
        base_seconds: the ceiling of the first wait.
        cap_seconds: the highest ceiling.
        uniform: draws a number between two others; for tests.
    """

    def __init__(
        self,
        base_seconds: float = 0.5,
        cap_seconds: float = 60.0,
        *,
        uniform: Callable[[float, float], float] = random.uniform,
    ) -> None:
        self._base_seconds = base_seconds
        self._cap_seconds = cap_seconds
        self._uniform = uniform
        self._ceiling_seconds = base_seconds

    def next(self) -> float:
        """The seconds to wait before the next try."""
        ceiling = min(self._ceiling_seconds, self._cap_seconds)
        self._ceiling_seconds = ceiling * 2
        return self._uniform(0.0, ceiling)

    def reset(self) -> None:
        """Begin again with short waits: call it after a success."""
        self._ceiling_seconds = self._base_seconds
