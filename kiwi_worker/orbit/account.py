"""What an ORBIT worker says of itself: its loops, its numbers, and what keeps it from its work."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from kiwi_worker.engine import stamps
from kiwi_worker.engine.binding import Facts

if TYPE_CHECKING:
    from kiwi_worker.orbit.binding import OrbitBinding

__all__ = ["PollCounters", "account_of"]


class PollCounters:
    """What polls and results came to; plain numbers that only grow."""

    __slots__ = ("duplicates", "failed_polls", "polls", "received", "rejected_results")

    def __init__(self) -> None:
        self.polls = 0
        self.failed_polls = 0
        self.received = 0
        self.duplicates = 0
        self.rejected_results = 0


def account_of(binding: OrbitBinding) -> Facts:
    """The facts of a binding."""
    sessions, counters = binding.sessions, binding.counters
    return Facts(
        registered=sessions is not None and sessions.is_open,
        receive_seconds=binding.longest_poll_seconds,
        loops={} if sessions is None else {"heartbeat": sessions.stamp},
        problems=list(_problems(binding)),
        counters={
            "received": counters.received,
            "polls": counters.polls,
            "failed_polls": counters.failed_polls,
            "duplicates": counters.duplicates,
            "rejected_results": counters.rejected_results,
            "registrations": 0 if sessions is None else sessions.registrations,
            "heartbeats": 0 if sessions is None else sessions.beats,
            "failed_heartbeats": 0 if sessions is None else sessions.failed_beats,
        },
    )


def _problems(binding: OrbitBinding) -> Iterator[str]:
    sessions = binding.sessions
    if binding.failing.is_long:
        yield f"no poll has succeeded for over {stamps.PATIENCE_SECONDS:g} s: {binding.failing.problem}"
    if sessions is not None and sessions.failing.is_long:
        problem = sessions.failing.problem
        yield f"no heartbeat was answered for over {stamps.PATIENCE_SECONDS:g} s: {problem}"
