"""Whether the loops of an engine turn, and what else is wrong: the judgement that health rests on.

A loop that waits for what may never come is well, and so is one whose handler takes its time. A loop is stuck
when it is in the middle of something that ought to have ended long ago, or when there is something to do and
nobody does it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from kiwi_worker.engine import stamps

if TYPE_CHECKING:
    from kiwi_worker.engine.binding import Facts
    from kiwi_worker.engine.engine import Engine
    from kiwi_worker.engine.slots import SlotState

__all__ = ["Lookout"]

CLAIM_SECONDS = 300.0
"""How long asking for one claim may take, retries and their pauses included."""
ANSWER_SECONDS = 60.0
"""How much longer than its limit a slot's own answer may take: a new token may be needed in between."""


class _Standstill:
    """Notes that something which ought to move was seen to stand still, from one look to the next."""

    def __init__(self) -> None:
        self._mark: int | None = None
        self._since = 0.0

    def lasts(self, stands: bool, mark: int) -> bool:
        """Whether it stood at this mark at every look for longer than a loop may be stuck."""
        if not stands or mark != self._mark:
            self._mark, self._since = (mark if stands else None), time.monotonic()
        return stands and time.monotonic() - self._since > stamps.STUCK_SECONDS


class Lookout:
    """Looks at one engine.

    Args:
        engine: the one.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._taking = _Standstill()
        self._receiving = _Standstill()

    def stuck(self, facts: Facts) -> list[str]:
        """The loops that do not turn, a sentence each."""
        return [*self._stuck_receiver(facts), *self._stuck_slots(facts), *self._stuck_others(facts)]

    def problems(self, facts: Facts) -> list[str]:
        """What else is wrong, a sentence each; the loops turn all the same."""
        return [*facts.problems, *self._problems()]

    # Loops

    def _stuck_receiver(self, facts: Facts) -> Iterator[str]:
        engine = self._engine
        if engine.is_stopping:
            return
        if _over(engine.receiving_at, facts.receive_seconds):
            yield "the receiver is stuck in a receive"
        waits = engine.waits_for_room and engine.has_room()
        if self._receiving.lasts(waits, engine.receives):
            yield "the receiver is stuck: there is room, and it receives nothing"

    def _stuck_slots(self, facts: Facts) -> Iterator[str]:
        engine = self._engine
        states = list(engine.slots.states)
        stuck = sum(self._is_stuck(state, facts) for state in states)
        if stuck:
            yield f"{stuck} of {engine.slots.limit} slots are stuck outside a handler"
        idle = engine.slots.limit - sum(state.work is not None for state in states)
        backlog = engine.slots.backlog
        stands = len(backlog) > 0 and idle > 0 and not backlog.closed
        if self._taking.lasts(stands, backlog.taken) and not stuck:
            yield "slots are stuck: work waits, some are free, and none takes it"

    def _is_stuck(self, state: SlotState, facts: Facts) -> bool:
        work, polling_at = state.work, state.polling_at
        if work is None:
            return not self._engine.is_stopping and _over(polling_at, facts.receive_seconds)
        if work.started_at is None:
            # Without a token nothing can be claimed; that has a reason of its own.
            return not facts.problems and _over(work.claiming_at, CLAIM_SECONDS)
        return _over(work.ended_at, self._answer_seconds)

    @property
    def _answer_seconds(self) -> float:
        return 2 * self._engine.limits.report_limit + ANSWER_SECONDS

    def _stuck_others(self, facts: Facts) -> Iterator[str]:
        if any(stamp.is_late for stamp in list(self._engine.outbox.stamps)):
            yield "the outbox is stuck in sending an answer"
        for name, stamp in facts.loops.items():
            if stamp.is_late:
                yield f"the {name} is stuck"

    # What else is wrong

    def _problems(self) -> Iterator[str]:
        engine = self._engine
        outbox = engine.outbox
        if outbox.full:
            yield "the outbox is full: no more work is taken"
        if len(outbox) and stamps.long_ago(outbox.progress_at):
            yield f"the outbox only grows: no answer was accepted for over {stamps.PATIENCE_SECONDS:g} s"
        if _over(engine.loop.asked_at, 0.0):
            yield "the event loop does not turn: an async handler blocks it"
        lost = engine.runner.counters.lost_slots
        if lost >= engine.slots.limit:
            yield f"all {lost} slots are lost to handlers that passed their time limit and go on"
        journal = engine.journal
        if journal is not None and journal.stats.degraded:
            yield "the journal cannot be written: what is received or computed now may be lost"


def _over(since: float | None, seconds: float) -> bool:
    return since is not None and time.monotonic() - since > seconds + stamps.STUCK_SECONDS
