"""The ORBIT worker protocol, as the engine uses it: each slot polls, handles and reports."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from kiwi_worker.context import Resources
from kiwi_worker.engine.binding import ANSWERED, Facts, Report, Verdict, VerdictKind
from kiwi_worker.engine.outcomes import Ending, Outcome, outcome_of
from kiwi_worker.engine.stamps import Streak
from kiwi_worker.engine.supervision import Crew
from kiwi_worker.engine.work import Served, Work
from kiwi_worker.errors import Ambiguous, KiwiWorkerError, ProtocolError, StartError
from kiwi_worker.orbit.account import PollCounters, account_of
from kiwi_worker.orbit.attempts import Attempts, Delivery
from kiwi_worker.orbit.context import TaskContext
from kiwi_worker.orbit.pauses import Pauses
from kiwi_worker.orbit.results import is_abandoned, report_of, smaller
from kiwi_worker.orbit.sessions import Session, Sessions
from kiwi_worker.orbit.wire import LONGEST_WAIT_MS, Assignment, Refused, Wire
from kiwi_worker.settings import OrbitSettings
from kiwi_worker.transport import Backoff, is_transient

__all__ = ["OrbitBinding"]

_logger = logging.getLogger("kiwi_worker.orbit")

POLL_MARGIN_SECONDS = 90.0
"""What a poll may take beyond its wait: to register anew, to connect, and to pause after a failure."""
ROUTES = {"complete": b"C", "fail": b"F"}
CLOSE_SECONDS = 1.0
"""How long after the grace period unregistering may still be under way."""
LEAST_CLOSE_SECONDS = 0.3
LONGEST_CLOSE_SECONDS = 5.0
AT_ONCE_SECONDS = 0.5
"""A poll that ends without a task so soon, and well before its wait, was not really waited for."""


class Lane:
    """What one slot or reporter calls through."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self.failures = Backoff(0.2, 5.0)
        self.empties = Backoff(0.05, 1.0)

    def close(self) -> None:
        """Close its connections."""
        self.wire.close()

    def interrupt(self) -> None:
        """End the call that runs on it."""
        self.wire.interrupt()


class OrbitBinding:
    """One worker's side of the protocol.

    Args:
        settings: of the worker.
        make_wire: opens a connection for one thread; takes how long connecting may take, in seconds.
        crew: starts the heartbeat thread.
        resources: what start hooks made.
        on_success: called whenever the runtime answered something.

    Attributes:
        sessions: the sessions; None before the start.
        counters: what polls and results came to.
        failing: polls that fail, since the last that did not.
        longest_poll_seconds: how long a poll may take.
        registered: whether the worker ever was.
    """

    brings_batches = False
    answers_time_limits = False

    def __init__(
        self,
        settings: OrbitSettings,
        make_wire: Callable[..., Wire],
        crew: Crew,
        resources: Resources,
        on_success: Callable[[], None],
    ) -> None:
        self._settings = settings
        self._make_wire = make_wire
        self._crew = crew
        self._resources = resources
        self._on_success = on_success
        self._wait_ms = min(LONGEST_WAIT_MS, int(settings.poll_wait * 1000))
        self._served: dict[Any, Served] = {}
        self._stopping = threading.Event()
        self._close_by = 0.0
        self._pauses = Pauses(self._stopping)
        self._attempts = Attempts()
        self.sessions: Sessions | None = None
        self.on_dropped: Callable[[str], None] = lambda key: None
        self.registered = False
        self.counters = PollCounters()
        self.failing = Streak()
        self.longest_poll_seconds = self._wait_ms / 1000 + POLL_MARGIN_SECONDS

    def lane(self, purpose: str) -> Lane:
        """A connection of its own."""
        return Lane(self._make_wire())

    def serve(self, served: dict[Any, Served]) -> None:
        """Tasks are found by name and contract version."""
        self._served = served

    def open(self) -> None:
        """Register, and begin to beat.

        Raises:
            StartError: it was refused, or took too long.
            SettingsError: a file of the settings cannot be used.
        """
        request = {
            "worker_id": self._settings.worker_id,
            "runtime": self._settings.runtime,
            "sdk": sdk_name(),
            "contracts": [{"task_name": name, "contract_version": version} for name, version in self._served],
        }
        self.sessions = Sessions(
            self._make_wire,
            request,
            stopping=self._stopping,
            start=self._crew.start,
            start_limit_seconds=self._settings.start_limit,
            on_cancel=self._cancel,
            on_contact=self._reached,
        )
        self.registered = self.sessions.open_first()
        if self.registered:
            self._crew.start("heartbeat", self.sessions.serve)

    def _reached(self) -> None:
        """The runtime answered something: whatever waits only because it did not goes on at once."""
        self._pauses.end()
        self._on_success()

    # Poll

    def poll(self, lane: Lane) -> Work | None:
        """Wait for one task, with the current session."""
        # Asked when this lane is where `interrupt` finds it.
        if self._stopping.is_set():
            return None
        sessions = self.sessions
        assert sessions is not None
        session, began = None, time.monotonic()
        try:
            session = sessions.current()
            assignment = lane.wire.poll(session.id, self._wait_ms)
        except StartError:
            raise
        except KiwiWorkerError as error:
            self._poll_failed(lane, session, error)
            return None
        self._poll_worked(lane, session)
        if assignment is not None:
            return self._take_in(assignment, session)
        self._rest(lane, time.monotonic() - began)
        return None

    def _poll_worked(self, lane: Lane, session: Session) -> None:
        assert self.sessions is not None
        self.sessions.prove(session)
        self._reached()
        lane.failures.reset()
        self.counters.polls += 1
        if self.failing.since is not None:
            self.failing.succeed()
            _logger.info("polls work again", extra={"action": "poll_worked"})

    def _poll_failed(self, lane: Lane, session: Session | None, error: KiwiWorkerError) -> None:
        assert self.sessions is not None
        if self._stopping.is_set():
            return
        if isinstance(error, Refused):
            if error.ours:
                self._reached()
            if error.lost_session and session is not None:
                self.sessions.lost(session)
                return
        elif session is not None and isinstance(error, (Ambiguous, ProtocolError)):
            self.sessions.suspect(session)
        self._pause(lane, error)

    def _pause(self, lane: Lane, error: KiwiWorkerError) -> None:
        seconds = lane.failures.next()
        refused = isinstance(error, Refused)
        if isinstance(error, Refused) and error.retry_seconds is not None:
            seconds = max(seconds, error.retry_seconds)
        # Every slot meets the same outage, again and again; the first says it.
        level = logging.WARNING if self.failing.since is None else logging.DEBUG
        self.failing.fail(str(error))
        self.counters.failed_polls += 1
        self.longest_poll_seconds = max(self.longest_poll_seconds, seconds + POLL_MARGIN_SECONDS)
        _logger.log(
            level, "poll failed, next try in %.1f s: %s", seconds, error, extra={"action": "poll_failed"}
        )
        self._pauses.wait(seconds, ends_early=not refused)

    def _rest(self, lane: Lane, seconds: float) -> None:
        """A runtime, or a proxy, that answers at once without a task is not asked in a circle."""
        if seconds < min(AT_ONCE_SECONDS, self._wait_ms / 2000):
            self._pauses.wait(lane.empties.next(), ends_early=False)
        else:
            lane.empties.reset()

    def _take_in(self, assignment: Assignment, session: Session) -> Work | None:
        work, to_cancel = self._attempts.take_in(Delivery(assignment, session), self._make_work)
        self.counters.received += 1
        if work is None:
            self.counters.duplicates += 1
        if to_cancel is not None:
            to_cancel.cancel(Ending.CANCELLED)
        return work

    def _make_work(self, delivery: Delivery, outcome: Outcome | None) -> Work:
        assignment = delivery.assignment
        key = (assignment.task_name, assignment.contract_version)
        served = self._served.get(key) if outcome is None else None
        if served is None and outcome is None:
            outcome = self._unknown(key)
        name = assignment.task_name
        work = Work(assignment.token, name, assignment.input, served, refusal=outcome, delivery=delivery)
        work.outer_deadline = _deadline(assignment)
        return work

    def _unknown(self, key: tuple[str, str]) -> Outcome:
        known = ", ".join(f"{name} {version}" for name, version in self._served)
        return outcome_of(Ending.UNKNOWN_METHOD, f"this worker serves no {key[0]} {key[1]}, only {known}")

    def _cancel(self, tokens: Sequence[str]) -> None:
        for token in tokens:
            work = self._attempts.cancelled(token)
            if work is not None:
                _logger.info("cancelled by the runtime", extra={"action": "cancelled", "request_id": token})
                work.cancel(Ending.CANCELLED)

    # Handle and report

    def claim(self, work: Work, lane: Lane) -> bool:
        """What was polled is ours already."""
        return True

    def context(self, work: Work) -> TaskContext:
        """What the handler sees."""
        return TaskContext(
            work,
            work.delivery.assignment,
            resources=self._resources,
            stopping=self._stopping.is_set,
        )

    def encode(self, work: Work, outcome: Outcome) -> Report | None:
        """The report of the attempt, with one for each further token it was delivered under."""
        outcome = _as_reported(work, outcome)
        tokens = self._attempts.ended(work.delivery, outcome)
        if is_abandoned(outcome):
            for token in tokens:
                self.answered(token)
            return None
        expose = self._settings.expose_errors
        first, *others = (report_of(token, outcome, expose_errors=expose) for token in tokens)
        return first._replace(also=tuple(others)) if others else first

    def restored(self, key: str, body: bytes) -> Report:
        """A report that a journal kept."""
        route = next(route for route, mark in ROUTES.items() if body.startswith(mark))
        return Report(key, body[1:], route)

    def stored(self, report: Report) -> bytes:
        """The route in one byte, and the body."""
        return ROUTES[report.route] + report.body

    def report(self, report: Report, lane: Lane, limit_seconds: float) -> Verdict:
        """Send a result, and say what the runtime's answer to that means."""
        try:
            ack = lane.wire.result(report.route, report.body, limit_seconds)
        except StartError:
            raise
        except Refused as error:
            return self._judge(report, error)
        except KiwiWorkerError as error:
            self._note_delayed(report, error)
            return Verdict(VerdictKind.RETRY, reached=False)
        self._reached()
        if not ack.accepted:
            self._note_rejected(report, ack.reason or "the runtime gave no reason")
        return ANSWERED

    def _judge(self, report: Report, error: Refused) -> Verdict:
        if error.ours and error.status != 401:
            self._reached()
        if error.status == 413:
            replacement = smaller(report)
            if replacement is not None:
                return Verdict(VerdictKind.REPLACE, replacement=replacement)
        elif error.status == 401 or is_transient(error.status) or not error.ours:
            self._note_delayed(report, error)
            asked = error.retry_seconds
            reached = asked is not None or (error.ours and error.status != 401)
            return Verdict(VerdictKind.RETRY, reached=reached, after_seconds=asked)
        self._note_rejected(report, str(error))
        return ANSWERED

    @staticmethod
    def _note_delayed(report: Report, error: KiwiWorkerError) -> None:
        _logger.info(
            "a result is not delivered yet: %s",
            error,
            extra={"action": "result_delayed", "request_id": report.key},
        )

    def _note_rejected(self, report: Report, reason: str) -> None:
        self.counters.rejected_results += 1
        _logger.warning(
            "a result (%s) was not accepted: %s; that is final",
            report.route,
            reason,
            extra={"action": "result_rejected", "request_id": report.key},
        )

    def answered(self, key: str) -> None:
        """A token is done with."""
        session = self._attempts.answered(key)
        if session is not None and self.sessions is not None:
            self.sessions.reported(session, key)

    def forget(self, work: Work) -> None:
        """An attempt that is abandoned was settled when it was encoded."""

    def facts(self) -> Facts:
        """How sessions, polls and results are."""
        return account_of(self)

    # Shutdown

    def stop_receiving(self) -> None:
        """No poll begins from here on."""
        self._close_by = time.monotonic() + self._settings.grace_period + CLOSE_SECONDS
        self._stopping.set()
        self._pauses.end()
        if not self.registered:
            self.interrupt()

    def interrupt(self) -> None:
        """End a registration; the polls that wait are ended by the slots' own connections."""
        if self.sessions is not None:
            self.sessions.interrupt()

    def close(self, clean: bool) -> None:
        """Unregister, after the last result; what is unfinished is redelivered at once."""
        if self.sessions is not None:
            left = max(LEAST_CLOSE_SECONDS, self._close_by - time.monotonic())
            self.sessions.stop(min(LONGEST_CLOSE_SECONDS, left))

    # What only batches need

    def receive(self, lane: Lane) -> Sequence[Any]:
        """Not used: slots poll."""
        raise NotImplementedError

    def keys_of(self, batch: Sequence[Any]) -> list[tuple[str, bytes]]:
        """Not used: the runtime redelivers what was received."""
        return []

    def admit(self, item: Any) -> Work | None:
        """Not used: a poll brings work."""
        raise NotImplementedError

    def readmit(self, key: str | None, body: bytes, claimed: bool) -> Work | None:
        """Nothing but results is in a journal: the runtime redelivers the rest."""
        return None


def _as_reported(work: Work, outcome: Outcome) -> Outcome:
    """What a cancelled handler raised on its way out counts only when it chose it; cut off, not even then."""
    chosen = outcome.answer is not None
    if outcome.ending is not Ending.RAISED:
        return outcome
    if work.cause is Ending.CUT_OFF or (work.cause is Ending.CANCELLED and not chosen):
        return outcome_of(work.cause)
    return outcome


def _deadline(assignment: Assignment) -> float | None:
    """When the attempt times out, on our monotonic clock: counted from its receipt where it can be."""
    if assignment.timeout_ms is not None:
        return time.monotonic() + assignment.timeout_ms / 1000
    if assignment.deadline_ms is not None:
        return time.monotonic() + max(0.0, assignment.deadline_ms / 1000 - time.time())
    return None


def sdk_name() -> str:
    """What the runtime shows as this SDK."""
    from kiwi_worker._version import __version__

    return f"kiwi-worker/{__version__}"
