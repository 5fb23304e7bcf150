"""What the engine asks of a protocol; a binding is the only thing that knows one.

Work comes in one of two ways. A binding with `brings_batches` is asked by one receiver thread, which may
bring many pieces at once. Otherwise each free slot asks for itself, so that it can poll, handle and report
without handing the work over to another thread.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from kiwi_worker.engine.outcomes import Outcome
from kiwi_worker.engine.stamps import Stamp
from kiwi_worker.engine.work import Served, Work

__all__ = ["ANSWERED", "Binding", "Facts", "Lane", "Report", "Verdict", "VerdictKind"]


class Lane(Protocol):
    """One connection to the server, used by one thread at a time."""

    def close(self) -> None:
        """Close it."""

    def interrupt(self) -> None:
        """End a call another thread waits in."""


class Report(NamedTuple):
    """An answer, encoded once.

    Attributes:
        key: the work it answers.
        body: what is sent.
        route: where it goes, in the words of the binding.
        also: reports of the same outcome under other keys, sent after it.
    """

    key: str
    body: bytes
    route: str = ""
    also: tuple[Report, ...] = ()


class VerdictKind(enum.Enum):
    """What became of sending a report."""

    ANSWERED = "answered"
    RETRY = "retry"
    REPLACE = "replace"


class Verdict(NamedTuple):
    """What became of sending a report.

    Attributes:
        kind: ANSWERED is final; RETRY: send it again; REPLACE: send `replacement` in its place, at once.
        reached: whether the server was reached at all: if not, no other report would reach it now.
        after_seconds: how long the server asked to wait before a retry; None when it did not say.
        replacement: what to send instead.
    """

    kind: VerdictKind
    reached: bool = True
    after_seconds: float | None = None
    replacement: Report | None = None


ANSWERED = Verdict(VerdictKind.ANSWERED)


class Facts(NamedTuple):
    """What a binding says of itself, for health and metrics.

    Attributes:
        registered: whether the server takes us for one of its workers now.
        receive_seconds: how long the receives and polls that are under way may take.
        loops: the stamps of its own loops, by their names.
        problems: what keeps it from its work, a sentence each; empty when all is well.
        counters: what happened so far, by names that metrics are called after; numbers that only grow.
    """

    registered: bool
    receive_seconds: float
    loops: Mapping[str, Stamp]
    problems: Sequence[str]
    counters: Mapping[str, int]


class Binding(Protocol):
    """One protocol, as the engine uses it. Nothing here raises but where it says so."""

    brings_batches: bool
    """Whether `receive` is asked by one receiver, instead of `poll` by every slot."""

    answers_time_limits: bool
    """Whether work whose `outer_deadline` passes is answered; a method's own limit always is."""

    on_dropped: Callable[[str], None]
    """Called by `admit` with the journal's key of an item that nothing more will be done about."""

    def lane(self, purpose: str) -> Any:
        """A connection for one thread; connects when first used."""

    def serve(self, served: dict[Any, Served]) -> None:
        """Take the methods it can find by their registry keys."""

    def open(self) -> None:
        """Log in and register; everything that has to be there before the first work is received.

        Raises:
            StartError: it cannot be done, and trying longer would not help.
        """

    def receive(self, lane: Any) -> Sequence[Any]:
        """Wait for work and bring what there is, undecoded; empty when there was none."""

    def poll(self, lane: Any) -> Work | None:
        """Wait for one piece of work; None when there was none."""

    def keys_of(self, batch: Sequence[Any]) -> list[tuple[str, bytes]]:
        """What a journal is to remember of a batch: a key ("" when there is none) and the body of each."""

    def admit(self, item: Any) -> Work | None:
        """Decode one item of a batch; None when there is nothing to be done about it."""

    def readmit(self, key: str | None, body: bytes, claimed: bool) -> Work | None:
        """Decode what a journal remembered of an earlier process."""

    def claim(self, work: Work, lane: Any) -> bool:
        """Claim the work; False when it is somebody else's now."""

    def context(self, work: Work) -> Any:
        """What the handler gets to see."""

    def encode(self, work: Work, outcome: Outcome) -> Report | None:
        """The answer to an outcome; None when this protocol has none for it."""

    def restored(self, key: str, body: bytes) -> Report:
        """A report that a journal kept."""

    def stored(self, report: Report) -> bytes:
        """A report as a journal keeps it."""

    def report(self, report: Report, lane: Any, limit_seconds: float) -> Verdict:
        """Send an answer."""

    def answered(self, key: str) -> None:
        """A report on this key got its final answer."""

    def forget(self, work: Work) -> None:
        """The work is not ours after all, or will not be answered: what was kept about it can go."""

    def facts(self) -> Facts:
        """How it is; from any thread, at any time."""

    def stop_receiving(self) -> None:
        """Shutdown begins: say so to the server, and let a receive that waits end soon."""

    def interrupt(self) -> None:
        """End every wait and every call of the receiving side now."""

    def close(self, clean: bool) -> None:
        """The last answer is out: the last heartbeat, then everything is closed."""
