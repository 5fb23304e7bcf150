"""What a worker does with what a former process of it left in the journal."""

from __future__ import annotations

import logging

from kiwi_worker.engine.backlog import Backlog
from kiwi_worker.engine.binding import Binding
from kiwi_worker.engine.journal import Journal, Leftover
from kiwi_worker.engine.outcomes import Ending, outcome_of
from kiwi_worker.engine.runner import Runner

__all__ = ["recover"]

_logger = logging.getLogger("kiwi_worker.engine")

MOST_RUNS = 3
"""How often work whose method says `on_crash="run_again"` is started; then it is taken for what kills us."""


def recover(journal: Journal, binding: Binding, runner: Runner, backlog: Backlog) -> None:
    """Send known outcomes, run what was not started, and answer or run again what was.

    What is older than the journal's maximum age is only logged: its caller's time to live is over.
    """
    left = journal.recovered
    for leftover in left.outcomes:
        if leftover.key is not None:
            runner.restore(binding.restored(leftover.key, leftover.body))
    for leftover in left.waiting:
        _take_up(leftover, binding, runner, backlog)
    for leftover in left.started:
        _take_up(leftover, binding, runner, backlog)
    if len(left) or left.expired:
        _logger.warning(
            "a former process left in the journal: %d outcomes, %d waiting, %d started, %d too old",
            len(left.outcomes),
            len(left.waiting),
            len(left.started),
            len(left.expired),
            extra={"action": "journal_recovered"},
        )


def _take_up(leftover: Leftover, binding: Binding, runner: Runner, backlog: Backlog) -> None:
    work = binding.readmit(leftover.key, leftover.body, leftover.locked)
    if work is None:
        return
    if not leftover.runs or _runs_again(work.served, leftover.runs):
        backlog.extend([work])
    else:
        runner.refuse(work, outcome_of(Ending.WORKER_DIED, _died_text(leftover.runs)))


def _runs_again(served: object, runs: int) -> bool:
    options = getattr(getattr(served, "definition", None), "options", None)
    return options is not None and options.on_crash == "run_again" and runs < MOST_RUNS


def _died_text(runs: int) -> str:
    times = "once" if runs == 1 else f"{runs} times"
    return f"the worker died while it ran (started {times})"
