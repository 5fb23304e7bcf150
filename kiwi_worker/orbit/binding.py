"""The ORBIT worker protocol, as the engine uses it: each slot polls, handles and reports."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import cachetools

from kiwi_worker.context import Resources
from kiwi_worker.engine.binding import ANSWERED, Report, Verdict, VerdictKind
from kiwi_worker.engine.outcomes import Ending, Outcome, outcome_of
from kiwi_worker.engine.supervision import Crew
from kiwi_worker.engine.work import Served, Work
from kiwi_worker.errors import Ambiguous, KiwiWorkerError
from kiwi_worker.orbit.context import TaskContext
from kiwi_worker.orbit.results import report_of, too_large
from kiwi_worker.orbit.sessions import Session, Sessions
from kiwi_worker.orbit.wire import Assignment, Refused, Wire
from kiwi_worker.settings import OrbitSettings
from kiwi_worker.transport import Backoff, is_transient

__all__ = ["OrbitBinding"]

_logger = logging.getLogger("kiwi_worker.orbit")

REMEMBER_CANCELS_SECONDS = 60.0
ROUTES = {"complete": b"C", "fail": b"F"}


class Lane:
    """What one thread calls through."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self.failures = Backoff(0.2, 5.0)
        self.failing = False

    def close(self) -> None:
        """Close its connections."""
        self.wire.close()

    def interrupt(self) -> None:
        """End the call that runs on it."""
        self.wire.interrupt()


class Delivery:
    """One attempt as it was handed to us, and the tokens of further deliveries of it."""

    __slots__ = ("also", "assignment", "session")

    def __init__(self, assignment: Assignment, session: Session) -> None:
        self.assignment = assignment
        self.session = session
        self.also: list[tuple[str, Session]] = []


class OrbitBinding:
    """One worker's side of the protocol.

    Args:
        settings: of the worker.
        make_wire: opens a connection for one thread.
        crew: starts the heartbeat thread.
        resources: what start hooks made.
        on_success: called after each result that the runtime answered.
    """

    brings_batches = False
    answers_time_limits = False

    def __init__(
        self,
        settings: OrbitSettings,
        make_wire: Callable[[], Wire],
        crew: Crew,
        resources: Resources,
        on_success: Callable[[], None],
    ) -> None:
        self._settings = settings
        self._make_wire = make_wire
        self._crew = crew
        self._resources = resources
        self._on_success = on_success
        self._wait_ms = min(60_000, int(settings.poll_wait * 1000))
        self._served: dict[Any, Served] = {}
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._attempts: dict[tuple[str, str, int], Work] = {}
        self._tokens: dict[str, Work] = {}
        self._sent: dict[str, Session] = {}
        self._cancelled: cachetools.TTLCache[str, bool] = cachetools.TTLCache(
            10_000, REMEMBER_CANCELS_SECONDS
        )
        self._sessions: Sessions | None = None
        self._control: Wire | None = None
        self.on_dropped: Callable[[str], None] = lambda key: None
        self.registered = False
        self.rejected = 0

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
        """
        request = {
            "worker_id": self._settings.worker_id,
            "runtime": self._settings.runtime,
            "sdk": sdk_name(),
            "contracts": [{"task_name": name, "contract_version": version} for name, version in self._served],
        }
        self._control = self._make_wire()
        self._sessions = Sessions(
            self._control, request, self._stopping, self._settings.start_limit, self._cancel
        )
        self.registered = self._sessions.open_first()
        if self.registered:
            self._crew.start("heartbeat", self._sessions.serve)

    # Poll

    def poll(self, lane: Lane) -> Work | None:
        """Wait for one task, with the current session."""
        assert self._sessions is not None
        session: Session | None = None
        try:
            session = self._sessions.current()
            assignment = lane.wire.poll(session.id, self._wait_ms)
        except Refused as error:
            if error.lost_session and session is not None:
                self._sessions.lost(session)
                return None
            self._pause(lane, error, error.retry_seconds)
        except Ambiguous as error:
            if not self._stopping.is_set():
                if session is not None:
                    self._sessions.suspect(session)
                self._pause(lane, error)
        except KiwiWorkerError as error:
            self._pause(lane, error)
        else:
            lane.failures.reset()
            lane.failing = False
            return None if assignment is None else self._take(assignment, session)
        return None

    def _pause(self, lane: Lane, error: KiwiWorkerError, asked_seconds: float | None = None) -> None:
        if self._stopping.is_set():
            return
        seconds = lane.failures.next() if asked_seconds is None else asked_seconds
        # Every slot meets the same outage, again and again; the first of each says it.
        level = logging.DEBUG if lane.failing else logging.WARNING
        lane.failing = True
        _logger.log(
            level, "poll failed, next try in %.1f s: %s", seconds, error, extra={"action": "poll_failed"}
        )
        self._stopping.wait(seconds)

    def _take(self, assignment: Assignment, session: Session) -> Work | None:
        token = assignment.token
        attempt = (assignment.execution_id, assignment.step_id, assignment.attempt)
        session.tokens.add(token)
        with self._lock:
            running = self._attempts.get(attempt)
            if running is not None:
                # Redelivered to us while we run it: it is run once, and reported under both tokens.
                running.delivery.also.append((token, session))
                self._tokens[token] = running
                return None
            work = self._work(assignment, session)
            self._attempts[attempt] = work
            self._tokens[token] = work
            cancelled = self._cancelled.pop(token, False)
        if cancelled:
            work.cancel(Ending.CANCELLED)
        return work

    def _work(self, assignment: Assignment, session: Session) -> Work:
        key = (assignment.task_name, assignment.contract_version)
        served = self._served.get(key)
        refusal = None if served is not None else self._unknown(key)
        delivery = Delivery(assignment, session)
        work = Work(
            assignment.token,
            assignment.task_name,
            assignment.input,
            served,
            refusal=refusal,
            delivery=delivery,
        )
        work.outer_deadline = _deadline(assignment)
        return work

    def _unknown(self, key: tuple[str, str]) -> Outcome:
        known = ", ".join(f"{name} {version}" for name, version in self._served)
        return outcome_of(Ending.UNKNOWN_METHOD, f"this worker serves no {key[0]} {key[1]}, only {known}")

    def _cancel(self, tokens: Sequence[str]) -> None:
        for token in tokens:
            with self._lock:
                work = self._tokens.get(token)
                if work is None:
                    self._cancelled[token] = True
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
        delivery: Delivery = work.delivery
        assignment = delivery.assignment
        if outcome.ending is Ending.RAISED and work.cause in (Ending.CANCELLED, Ending.CUT_OFF):
            # Whatever a cancelled handler raised on its way out: it ended without a result.
            outcome = outcome_of(work.cause)
        with self._lock:
            self._attempts.pop((assignment.execution_id, assignment.step_id, assignment.attempt), None)
            deliveries = [(assignment.token, delivery.session), *delivery.also]
            for token, session in deliveries:
                self._tokens.pop(token, None)
                self._sent[token] = session
        expose = self._settings.expose_errors
        reports = [report_of(token, outcome, expose_errors=expose) for token, _ in deliveries]
        told = [report for report in reports if report is not None]
        if not told:
            for token, _ in deliveries:
                self.answered(token)
            return None
        return told[0]._replace(also=tuple(told[1:]))

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
        except Refused as error:
            return self._judge(report, error)
        except KiwiWorkerError as error:
            self._note_delayed(report, error)
            return Verdict(VerdictKind.RETRY, reached=False)
        self._on_success()
        if not ack.accepted:
            self._note_rejected(report, ack.reason or "")
        return ANSWERED

    def _judge(self, report: Report, error: Refused) -> Verdict:
        if error.status == 413 and report.route == "complete":
            return Verdict(VerdictKind.REPLACE, replacement=too_large(report))
        from_a_proxy = not error.ours and error.status not in (400, 422)
        if error.status == 401 or is_transient(error.status) or from_a_proxy:
            self._note_delayed(report, error)
            reached = error.ours and error.status != 401
            return Verdict(VerdictKind.RETRY, reached=reached, after_seconds=error.retry_seconds)
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
        self.rejected += 1
        _logger.warning(
            "a result (%s) was not accepted: %s; that is final",
            report.route,
            reason,
            extra={"action": "result_rejected", "request_id": report.key},
        )

    def answered(self, key: str) -> None:
        """A token is done with."""
        with self._lock:
            session = self._sent.pop(key, None)
        if session is not None and self._sessions is not None:
            self._sessions.reported(session, key)

    def forget(self, work: Work) -> None:
        """An attempt that is abandoned was settled when it was encoded."""

    # Shutdown

    def stop_receiving(self) -> None:
        """No poll begins from here on."""
        self._stopping.set()

    def interrupt(self) -> None:
        """The polls that wait are ended by the slots' own connections."""

    def close(self, clean: bool) -> None:
        """Unregister, after the last result; what is unfinished is redelivered at once."""
        if self._sessions is not None:
            self._sessions.stop()
        if self._control is not None:
            self._control.close()

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
