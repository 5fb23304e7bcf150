"""What is due when. Timers are never cancelled: whoever set one checks, when it rings, if it still holds."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable

Ring = Callable[[int], None]
"""Called with the time it was set for, in milliseconds."""


class Timers:
    """A heap of callbacks, driven by the time it is given."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Ring]] = []
        self._counter = itertools.count()

    def at(self, at_ms: int, ring: Ring) -> None:
        """Have `ring` called once the time is `at_ms` or later."""
        heapq.heappush(self._heap, (at_ms, next(self._counter), ring))

    def next_ms(self) -> int | None:
        """When the next one is due, or None."""
        return self._heap[0][0] if self._heap else None

    def pop_due(self, now_ms: int) -> tuple[int, Ring] | None:
        """The earliest one that is due, or None."""
        if not self._heap or self._heap[0][0] > now_ms:
            return None
        at_ms, _, ring = heapq.heappop(self._heap)
        return at_ms, ring
