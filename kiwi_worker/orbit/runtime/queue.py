"""Which attempts wait to be polled, oldest scheduled first."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterable
from typing import NamedTuple

from kiwi_worker.orbit.runtime.model import StepDefinition


class TaskKey(NamedTuple):
    """What a poll must match: the exact contract, and the runtime asked for ("" when any will do)."""

    task_name: str
    contract_version: str
    using: str


def key_of(definition: StepDefinition) -> TaskKey:
    """The key under which attempts of this step wait."""
    return TaskKey(
        definition.contract.task_name, definition.contract.contract_version, definition.using or ""
    )


class TaskQueue:
    """Executions whose current attempt waits for a poll."""

    def __init__(self) -> None:
        self._heaps: dict[TaskKey, list[tuple[int, int, str]]] = {}
        self._places: dict[str, int] = {}
        self._counter = itertools.count()
        self._fresh: list[TaskKey] = []

    def __len__(self) -> int:
        return len(self._places)

    def push(self, key: TaskKey, scheduled_at_ms: int, execution_id: str) -> None:
        """Add an execution; one that is there already moves to its new place."""
        place = next(self._counter)
        self._places[execution_id] = place
        heapq.heappush(self._heaps.setdefault(key, []), (scheduled_at_ms, place, execution_id))
        self._fresh.append(key)

    def discard(self, execution_id: str) -> None:
        """Take an execution out, if it is there."""
        self._places.pop(execution_id, None)

    def take(self, keys: Iterable[TaskKey]) -> str | None:
        """Remove and return the oldest execution under any of the keys, or None."""
        heads = [(heap[0], key) for key in keys if (heap := self._live(key))]
        if not heads:
            return None
        (_, _, execution_id), key = min(heads)
        heapq.heappop(self._heaps[key])
        del self._places[execution_id]
        return execution_id

    def take_fresh(self) -> list[TaskKey]:
        """The keys pushed since the last call, one for each push."""
        fresh, self._fresh = self._fresh, []
        return fresh

    def _live(self, key: TaskKey) -> list[tuple[int, int, str]]:
        heap = self._heaps.get(key, [])
        # entries are not searched for when they are discarded: they are skipped here, at the top
        while heap and self._places.get(heap[0][2]) != heap[0][1]:
            heapq.heappop(heap)
        if not heap:
            self._heaps.pop(key, None)
        return heap
