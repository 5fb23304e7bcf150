"""One piece of work, from its claim to its answer: the hot path.

Everything here runs once for each message, so it is kept flat: few calls, few objects, no lock that two slots
share. `running` is the one place that says who may still answer: whoever takes the work out of it does, be it
the handler's end, its time limit or the shutdown, and all others find it gone.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from contextvars import copy_context
from functools import partial
from time import monotonic
from typing import Any

from kiwi_worker.callables import is_awaitable
from kiwi_worker.engine.binding import ANSWERED, Binding, Report, Verdict, VerdictKind
from kiwi_worker.engine.journal import Journal
from kiwi_worker.engine.outbox import Outbox
from kiwi_worker.engine.outcomes import Ending, Outcome, outcome_of
from kiwi_worker.engine.timekeeper import Timekeeper
from kiwi_worker.engine.work import Served, Work
from kiwi_worker.errors import DeliberateError, InvalidParameters

__all__ = ["Around", "Counters", "Runner", "call_within"]

_logger = logging.getLogger("kiwi_worker.engine")

UNTOLD = Verdict(VerdictKind.RETRY)

Around = Callable[[Any], AbstractContextManager[Any]]
"""A handler middleware: called with the context, gives a context manager that the call runs within."""


class Counters:
    """What happened so far; plain numbers that only grow."""

    __slots__ = (
        "answered",
        "cut_off",
        "late",
        "lost_slots",
        "not_started",
        "refused_claims",
        "started",
        "timed_out",
    )

    def __init__(self) -> None:
        self.started = 0
        self.answered = 0
        self.late = 0
        self.timed_out = 0
        self.cut_off = 0
        self.not_started = 0
        self.refused_claims = 0
        self.lost_slots = 0


class Runner:
    """Runs work for the slots of one engine.

    Args:
        binding: claims and answers it.
        outbox: takes answers that are not delivered at once.
        journal: remembers what must survive this process; None for nothing.
        around: handler middleware, the first outermost.
        timekeeper: wakes at time limits.
        report_limit_seconds: how long an answer is tried where it was made.
        start_async: hands work to the event loop: the work, and a function that makes the awaitable.
        run_in_process: runs a call in a process of its own and waits for its outcome; calls what it is given
            when the call's time begins.
        max_result_bytes: the longest a result may be; None for any length.
        resume: takes work that had to wait at a gate.
        on_forgotten: called when the journal has one entry less.
    """

    def __init__(
        self,
        *,
        binding: Binding,
        outbox: Outbox,
        journal: Journal | None,
        around: Sequence[Around],
        timekeeper: Timekeeper,
        report_limit_seconds: float,
        start_async: Callable[[Work, Callable[[], Any]], None],
        run_in_process: Callable[[Work, Callable[[], None]], Outcome],
        max_result_bytes: int | None = None,
        resume: Callable[[Work], None],
        on_forgotten: Callable[[], None],
    ) -> None:
        self._binding = binding
        self._outbox = outbox
        self._journal = journal
        self._around = around
        self._timekeeper = timekeeper
        self._report_limit = report_limit_seconds
        self._start_async = start_async
        self._run_in_process = run_in_process
        self._max_result_bytes = max_result_bytes
        self._resume = resume
        self._on_forgotten = on_forgotten
        self.running: dict[str, Work] = {}
        self.counters = Counters()
        self.stopping = False
        self.over = False
        self._ended = threading.Event()

    def run(self, work: Work, lane: Any) -> None:
        """Claim, handle and answer one piece of work on the caller's thread and connection."""
        served = work.served
        if served is not None and work.entered < len(served.gates) and not self._enter(work, served):
            return
        if work.needs_claim and not work.claimed and not self._claim(work, lane):
            self._leave(work)
            return
        if self.over:
            self.refuse(work)
            self._leave(work)
            return
        key = work.key
        work.started_at = monotonic()
        self.running[key] = work
        self.counters.started += 1
        if self._journal is not None:
            work.run = self._journal.started(key, claimed=work.claimed) or 1
        if served is None:
            outcome = work.refusal
        elif served.runs_in_process:
            # Its time does not run while a process for it has to be started.
            outcome = self._run_in_process(work, partial(self._begin_again, work, served))
        else:
            outcome = self._call(work, served)
        if outcome is not None:
            self.finish(work, outcome, lane)

    def _enter(self, work: Work, served: Served) -> bool:
        for gate in served.gates[work.entered :]:
            if not gate.enter(work):
                return False
            work.entered += 1
        return True

    def _leave(self, work: Work) -> None:
        if work.served is not None and work.entered:
            gates = work.served.gates[: work.entered]
            work.entered = 0
            for gate in reversed(gates):
                parked = gate.leave()
                if parked is not None:
                    parked.entered += 1
                    self._resume(parked)

    def _claim(self, work: Work, lane: Any) -> bool:
        if self._outbox.full:
            self._outbox.wait_for_room(lambda: self.stopping)
        work.claiming_at = monotonic()
        if self.stopping or not self._binding.claim(work, lane):
            self.counters.refused_claims += not self.stopping
            self.drop(work)
            return False
        work.claimed = True
        return True

    def drop(self, work: Work) -> None:
        """Let go of work that will not be answered by us."""
        self._binding.forget(work)
        if self._journal is not None:
            self._journal.forgotten(work.key)

    def _call(self, work: Work, served: Served) -> Outcome | None:
        if served.wants_context or self._around:
            work.context = self._binding.context(work)
        try:
            args, kwargs = served.bind(work.params, work.context)
        except InvalidParameters as error:
            return outcome_of(Ending.INVALID_PARAMETERS, error)
        self._watch_time(work, served)
        if served.is_async:
            self._start_async(work, partial(served.function, *args, **kwargs))
            return None
        try:
            if self._around:
                result = copy_context().run(
                    call_within, self._around, work.context, served.function, args, kwargs
                )
            else:
                result = copy_context().run(served.function, *args, **kwargs)
        except BaseException as error:  # noqa: BLE001 - SystemExit and the like end the call, not the worker
            return self.outcome_of_error(work, error)
        if is_awaitable(result):
            self._start_async(work, lambda: result)
            return None
        return outcome_of(Ending.RETURNED, result, self._max_result_bytes)

    def _begin_again(self, work: Work, served: Served) -> None:
        work.started_at = monotonic()
        if work.cause is None:
            self._watch_time(work, served)

    def _watch_time(self, work: Work, served: Served) -> None:
        since = work.started_at or monotonic()
        limit, outer = served.time_limit, work.outer_deadline
        if limit is not None:
            work.deadline = since + limit
            work.alarm = self._timekeeper.at(work.deadline, partial(self._time_over, work, limit))
        if outer is not None:
            work.deadline = outer if work.deadline is None else min(outer, work.deadline)
            over = self._time_over if self._binding.answers_time_limits else self._outer_time_over
            work.outer_alarm = self._timekeeper.at(outer, partial(over, work, outer - since))

    def _outer_time_over(self, work: Work, seconds: float) -> None:
        if self.running.get(work.key) is work:
            work.tell(Ending.TIMED_OUT)

    def _time_over(self, work: Work, seconds: float) -> None:
        text = f"TimeLimit: the call passed its time limit of {round(seconds, 3):g} s"
        if self.settle(work, outcome_of(Ending.TIMED_OUT, text)):
            self.counters.timed_out += 1
            work.cancel(Ending.TIMED_OUT)

    def outcome_of_error(self, work: Work, error: BaseException) -> Outcome:
        """The outcome of a handler that raised; a cancellation we asked for goes by its cause."""
        cause = work.cause
        if cause is not None and type(error).__name__ == "CancelledError":
            return outcome_of(cause)
        if not isinstance(error, DeliberateError):
            _logger.error(
                "the handler of %s raised",
                work.name,
                exc_info=error,
                extra={"action": "handler_raised", "request_id": work.key, "method": work.name},
            )
        return outcome_of(Ending.RAISED, error)

    def finish(self, work: Work, outcome: Outcome, lane: Any = None) -> None:
        """The handler ended: answer, unless that was done for it already, and make room for the next.

        Args:
            lane: the connection to answer on; None to leave it to the reporters.
        """
        work.ended_at = now = monotonic()
        if work.served is not None:
            work.served.learn(now - (work.started_at or now))
        if work.alarm is not None:
            work.alarm.cancel()
        if work.outer_alarm is not None:
            work.outer_alarm.cancel()
        if self.running.pop(work.key, None) is work:
            self._answer(work, outcome, lane)
        else:
            self._note_late(work, outcome)
        self._leave(work)
        if self.stopping:
            self._ended.set()

    def wait_for_end(self, seconds: float) -> None:
        """Wait until a handler ends; for the shutdown."""
        self._ended.wait(seconds)
        self._ended.clear()

    def restore(self, report: Report) -> None:
        """Deliver a report that a journal kept; the journal knows it already."""
        self._outbox.put(report)

    def settle(self, work: Work, outcome: Outcome) -> bool:
        """Answer work whose handler has not ended; False when it was answered already."""
        # A plain function cannot be stopped: from here on its slot is lost to it, for nobody knows how long.
        keeps_slot = work.stop is None and work.served is not None and not work.served.is_async
        work.slot_lost = keeps_slot
        self.counters.lost_slots += keeps_slot
        if self.running.pop(work.key, None) is not work:
            work.slot_lost = False
            self.counters.lost_slots -= keeps_slot
            return False
        self._answer(work, outcome, None)
        return True

    def refuse(self, work: Work, outcome: Outcome | None = None) -> None:
        """Answer work that was not run, when the answer is ours to give; without an outcome, at the end."""
        if work.may_be_answered:
            if outcome is None:
                self.counters.not_started += 1
                outcome = outcome_of(Ending.NOT_STARTED, "the worker stopped before it was run")
            self._answer(work, outcome, None)
        else:
            self.drop(work)

    def _note_late(self, work: Work, outcome: Outcome) -> None:
        self.counters.late += 1
        if work.slot_lost:
            work.slot_lost = False
            self.counters.lost_slots -= 1
        _logger.warning(
            "%s ended (%s) after it had been answered: %s",
            work.name,
            outcome.ending.value,
            "it passed its time limit" if work.cause is Ending.TIMED_OUT else "it was cut off",
            extra={"action": "late_end", "request_id": work.key, "method": work.name},
        )

    def _answer(self, work: Work, outcome: Outcome, lane: Any) -> None:
        report = self._binding.encode(work, outcome)
        if report is None:
            self.drop(work)
            return
        self.send(report, lane)

    def send(self, report: Report, lane: Any) -> None:
        """Deliver a report, and those that go with it: at once on this connection, or from the outbox."""
        for more in report.also:
            self.send(more, None)
        if self._journal is not None:
            self._journal.outcome(report.key, self._binding.stored(report))
        if lane is None or self._outbox.unreachable:
            self._outbox.put(report)
            return
        verdict = UNTOLD
        try:
            verdict = self._binding.report(report, lane, self._report_limit)
        finally:
            # Also when sending it raised: nothing computed is ever dropped.
            if verdict is not ANSWERED:
                self._outbox.put(report, verdict)
        if verdict is ANSWERED:
            self.answered(report.key)

    def answered(self, key: str) -> None:
        """The server gave its final answer to a report."""
        self.counters.answered += 1
        self._binding.answered(key)
        if self._journal is not None:
            self._journal.forgotten(key)
            self._on_forgotten()


def call_within(
    around: Sequence[Around], context: Any, function: Callable[..., Any], args: Any, kwargs: Any
) -> Any:
    """Call a plain function within the context managers that handler middleware gives."""
    with ExitStack() as stack:
        for middleware in around:
            stack.enter_context(middleware(context))
        return function(*args, **kwargs)
