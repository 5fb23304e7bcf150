"""Who serves what: the workers of one service, and the calls that lie with each of them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

import msgspec

from .records import Call, Registration

__all__ = ["IDEMPOTENT_TAG", "JOURNAL_TAG", "ServiceRoster", "WorkerEntry"]

IDEMPOTENT_TAG = "kiwi.idempotent"
"""A registration tag: the comma-separated methods that may run again when their worker died."""

JOURNAL_TAG = "kiwi.journal"
"""A registration tag: `false` says that a restarted worker knows nothing of what it had drained before."""


class WorkerEntry(msgspec.Struct, kw_only=True, eq=False):
    """A registered worker.

    `inbox` is what its next drain takes, `holding` what it has taken and not answered, both by call number.
    `seen_at` counts on the monotonic clock.
    """

    registration: Registration
    registered_at: float
    seen_at: float
    leaving: bool = False
    waiting: int = 0
    given_at: int = 0
    inbox: dict[int, Call] = msgspec.field(default_factory=dict)
    holding: dict[int, Call] = msgspec.field(default_factory=dict)
    methods: frozenset[str] = frozenset()
    idempotent: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        tags = self.registration.tags or {}
        self.methods = frozenset(self.registration.methods)
        self.idempotent = frozenset(name.strip() for name in tags.get(IDEMPOTENT_TAG, "").split(","))

    @property
    def worker_id(self) -> str:
        return self.registration.worker_id

    @property
    def service_id(self) -> str:
        return self.registration.service_id

    @property
    def forgets(self) -> bool:
        """Whether a new process of this worker knows nothing of what an earlier one had drained."""
        return (self.registration.tags or {}).get(JOURNAL_TAG) == "false"

    def rank(self) -> tuple[int, bool, int]:
        """Smaller goes first: fewest unanswered, then one that waits, then the one served longest ago."""
        return (len(self.inbox) + len(self.holding), self.waiting == 0, self.given_at)


class ServiceRoster(msgspec.Struct, eq=False):
    """The workers of one service and the calls that lie with none of them.

    `unassigned` are calls without lock that no worker could take, `unclaimed` the locked ones nobody owns.
    """

    service_id: str
    workers: dict[str, WorkerEntry] = msgspec.field(default_factory=dict)
    known_methods: set[str] = msgspec.field(default_factory=set)
    unassigned: dict[int, Call] = msgspec.field(default_factory=dict)
    unclaimed: dict[int, Call] = msgspec.field(default_factory=dict)
    open_calls: int = 0
    joined_at: float = 0.0

    def strays(self) -> Iterator[Call]:
        """The calls to methods that no worker of this service ever had, and that nobody was given yet."""
        waiting = chain(self.unassigned.values(), self.unclaimed.values())
        return (c for c in waiting if not c.stray and c.method not in self.known_methods)

    def serving(self, method: str) -> Iterator[WorkerEntry]:
        """The live workers that have this method and take new work."""
        return (w for w in self.workers.values() if method in w.methods and not w.leaving)

    def best_for(self, method: str) -> WorkerEntry | None:
        """The live worker with the fewest unanswered calls among those that have this method."""
        return min(self.serving(method), key=WorkerEntry.rank, default=None)

    def best_of_all(self) -> WorkerEntry | None:
        """The live worker with the fewest unanswered calls, whatever it serves."""
        return min((w for w in self.workers.values() if not w.leaving), key=WorkerEntry.rank, default=None)
