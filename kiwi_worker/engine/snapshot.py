"""How an engine is at one moment, in plain values: what health and metrics are made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from kiwi_worker.engine.binding import Facts
    from kiwi_worker.engine.engine import Engine
    from kiwi_worker.engine.work import Served

__all__ = ["MethodTotals", "Snapshot", "snapshot_of"]


class MethodTotals(NamedTuple):
    """The calls of one method that ended so far, and the seconds their handlers took together."""

    name: str
    calls: int
    seconds: float


class Snapshot(NamedTuple):
    """How an engine is.

    Attributes:
        registered: whether the server takes the worker for one of its own now.
        stopping: whether the shutdown has begun.
        stuck: loops that do not turn, a sentence each.
        problems: what else is wrong, a sentence each.
        counters: what happened so far, by name; they only grow.
        gauges: what is now, by name: `running`, `waiting`, `outbox`, `lost_slots`, and of a journal
            `journal_bytes`, `journal_entries` and `journal_degraded`.
        methods: totals for each method.
    """

    registered: bool
    stopping: bool
    stuck: Sequence[str]
    problems: Sequence[str]
    counters: Mapping[str, int]
    gauges: Mapping[str, int]
    methods: Sequence[MethodTotals]


def snapshot_of(engine: Engine) -> Snapshot:
    """Look at an engine; from any thread, whether it runs or not."""
    facts = engine.facts()
    return Snapshot(
        registered=facts.registered,
        stopping=engine.is_stopping,
        stuck=engine.lookout.stuck(facts),
        problems=engine.lookout.problems(facts),
        counters=_counters(engine, facts),
        gauges=_gauges(engine),
        methods=[_totals(served.definition.label, served) for served in engine.served.values()],
    )


def _totals(label: str, served: Served) -> MethodTotals:
    return MethodTotals(label.replace("`", ""), served.calls, served.seconds)


def _counters(engine: Engine, facts: Facts) -> dict[str, int]:
    counters = engine.runner.counters
    return {
        "started": counters.started,
        "answered": counters.answered,
        "late_ends": counters.late,
        "timed_out": counters.timed_out,
        "cut_off": counters.cut_off,
        "not_started": counters.not_started,
        "refused_claims": counters.refused_claims,
        "answer_retries": engine.outbox.retries,
        "thread_restarts": engine.crew.restarts,
        **facts.counters,
    }


def _gauges(engine: Engine) -> dict[str, int]:
    gauges = {
        "running": len(engine.runner.running),
        "waiting": engine.waiting,
        "outbox": len(engine.outbox),
        "lost_slots": engine.runner.counters.lost_slots,
    }
    if engine.journal is not None:
        stats = engine.journal.stats
        gauges["journal_bytes"] = stats.bytes
        gauges["journal_entries"] = stats.open_entries
        gauges["journal_degraded"] = int(stats.degraded)
    return gauges
