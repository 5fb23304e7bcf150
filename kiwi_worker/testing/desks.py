"""The two bindings, with nothing behind them: what a handler environment works with.

Messages are read, contexts made, and outcomes turned into answers by the bindings' own code.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from kiwi_worker.engine.binding import ANSWERED, Report, Verdict
from kiwi_worker.engine.outcomes import Outcome
from kiwi_worker.engine.work import Work
from kiwi_worker.kiwi.binding import KiwiBinding
from kiwi_worker.orbit.binding import OrbitBinding
from kiwi_worker.orbit.sessions import Session
from kiwi_worker.orbit.wire import Assignment, Registered

__all__ = ["Answers", "KiwiDesk", "OrbitDesk", "SentFeedback"]


@dataclass(frozen=True)
class SentFeedback:
    """One feedback a handler gave.

    Attributes:
        content: as the handler gave it.
        type: the feedback type, that of the settings when the handler gave none.
        persist: whether the middleware is to keep it.
    """

    content: Any
    type: int
    persist: bool


class Answers:
    """What was answered, and which feedback came, by request id or token."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._reports: dict[str, Report | None] = {}
        self._feedback: dict[str | None, list[SentFeedback]] = {}

    def put(self, key: str, report: Report | None) -> None:
        """This is the answer; None: there is none on purpose. The first counts."""
        with self._changed:
            self._reports.setdefault(key, report)
            self._changed.notify_all()

    def wait(self, key: str, seconds: float) -> Report | None:
        """The answer, once it is there.

        Raises:
            TimeoutError: it is not there in time.
        """
        until = time.monotonic() + seconds
        with self._changed:
            while key not in self._reports:
                left = until - time.monotonic()
                if left <= 0:
                    raise TimeoutError(f"the handler was not answered for within {seconds:g} s")
                self._changed.wait(left)
            return self._reports[key]

    def has(self, key: str) -> bool:
        """Whether it was answered."""
        return key in self._reports

    def add_feedback(self, key: str | None, feedback: SentFeedback) -> None:
        """A handler gave feedback; without a key it came from outside a request."""
        with self._changed:
            self._feedback.setdefault(key, []).append(feedback)
            self._changed.notify_all()

    def feedback(self, key: str | None) -> tuple[SentFeedback, ...]:
        """The feedback so far, in order."""
        with self._changed:
            return tuple(self._feedback.get(key, ()))


class _Lane:
    def close(self) -> None:
        """There is no connection."""

    def interrupt(self) -> None:
        """There is no call."""


class KiwiDesk(KiwiBinding):
    """A Kiwi binding that calls nobody."""

    answers: Answers

    def lane(self, purpose: str) -> Any:
        """No connection."""
        return _Lane()

    def work(self, request_id: str, method: str, params: Any, lock_required: bool) -> Work:
        """A message as a drain would bring it."""
        fields = {
            "request_id": request_id,
            "method": method,
            "lock_required": lock_required,
            "params": params,
        }
        work = self.admit(msgspec.Raw(msgspec.json.encode(fields)))
        if work is None:
            raise ValueError(f"request id {request_id!r} was used already")
        return work

    def claim(self, work: Work, lane: Any) -> bool:
        """Every lock is ours."""
        return True

    def report(self, report: Report, lane: Any, limit_seconds: float) -> Verdict:
        """Nobody refuses an answer."""
        self.answers.put(report.key, report)
        return ANSWERED

    def stop_now(self) -> None:
        """Handlers see that the worker stops."""
        self._stopping.set()

    def _put_feedback(
        self, rid: str | None, st: int, sn: str, content: Any, ft: int | None, pr: bool
    ) -> None:
        feedback_type = self._settings.feedback_type if ft is None else ft
        self.answers.add_feedback(rid, SentFeedback(content, feedback_type, pr))


class OrbitDesk(OrbitBinding):
    """An ORBIT binding that calls nobody."""

    answers: Answers
    session = Session(Registered("test-session"))

    def lane(self, purpose: str) -> Any:
        """No connection."""
        return _Lane()

    def attempt(self, assignment: Assignment) -> Work:
        """A task as a poll would bring it."""
        work = self._take_in(assignment, self.session)
        if work is None:
            raise ValueError(f"attempt {assignment.attempt} of {assignment.execution_id!r} runs already")
        return work

    def encode(self, work: Work, outcome: Outcome) -> Report | None:
        """The report; that an attempt is abandoned is noted, too."""
        report = super().encode(work, outcome)
        if report is None:
            self.answers.put(work.key, None)
        return report

    def report(self, report: Report, lane: Any, limit_seconds: float) -> Verdict:
        """Nobody refuses a result."""
        self.answers.put(report.key, report)
        return ANSWERED

    def stop_now(self) -> None:
        """Handlers see that the worker stops."""
        self._stopping.set()


Desk = KiwiDesk | OrbitDesk
MakeDesk = Callable[..., Desk]
