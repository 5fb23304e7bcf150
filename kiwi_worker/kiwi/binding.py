"""The Kiwi worker protocol, as the engine uses it: drain, lock, handle, respond.

Each step is in the module of its name; this one puts them together.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from kiwi_worker.context import ApplicationSettings, Context, Resources
from kiwi_worker.engine.binding import ANSWERED, Facts, Report, Verdict, VerdictKind
from kiwi_worker.engine.outcomes import Ending, Outcome, outcome_of
from kiwi_worker.engine.supervision import Crew
from kiwi_worker.engine.work import Served, Work
from kiwi_worker.errors import ForgottenError, KiwiWorkerError
from kiwi_worker.kiwi.account import account_of
from kiwi_worker.kiwi.answers import encode_answer, too_large_answer
from kiwi_worker.kiwi.feedback import BACKGROUND, METHOD_REQUEST, Feedbacks
from kiwi_worker.kiwi.heartbeat import Heartbeat
from kiwi_worker.kiwi.locking import Locking
from kiwi_worker.kiwi.messages import Malformed, identity_of, read_message
from kiwi_worker.kiwi.opening import Opening
from kiwi_worker.kiwi.probe import ProbeListener
from kiwi_worker.kiwi.receiving import Draining
from kiwi_worker.kiwi.session import Lane, Session
from kiwi_worker.kiwi.window import Window
from kiwi_worker.mismatch import unknown_text
from kiwi_worker.settings import KiwiSettings
from kiwi_worker.transport import is_transient, retry_after_seconds

__all__ = ["KiwiBinding"]

_logger = logging.getLogger("kiwi_worker.kiwi")

NOTIFY_LIMIT_SECONDS = 3.0
NOTIFY_HEAD_START_SECONDS = 0.5
FEEDBACK_FIRST_SECONDS = 0.5
"""How long an answer waits at most for the feedback that was given before it."""
FEEDBACK_FLUSH_SECONDS = 1.0
LATE_FEEDBACK_FLUSH_SECONDS = 0.1
"""The same, when answers could not be delivered either, and time is short."""
REPLACED = "replaced"


class KiwiBinding:
    """One worker's side of the protocol.

    Args:
        settings: of the worker.
        session: how to call the middleware.
        crew: starts the background threads.
        resources: what start hooks made.
        on_fatal: called with the error that ends the worker.
    """

    brings_batches = True
    answers_time_limits = True

    def __init__(
        self,
        settings: KiwiSettings,
        session: Session,
        crew: Crew,
        resources: Resources,
        on_fatal: Callable[[BaseException], None],
    ) -> None:
        self._settings = settings
        self._session = session
        self._crew = crew
        self._resources = resources
        self._on_fatal = on_fatal
        self._worker_path = quote(settings.worker_id, safe="")
        self._lazy = settings.run_mode == "lazy"
        self._served: dict[Any, Served] = {}
        self._window = Window()
        self._stopping = threading.Event()
        self._notifying = threading.Lock()
        self._heartbeat: Heartbeat | None = None
        self._probe: ProbeListener | None = None
        self._probe_port: int | None = None
        self.draining = Draining(None if self._lazy else settings.wait, settings.drain_interval)
        self.locking = Locking(settings.lock_attempts, run_ambiguous=settings.on_ambiguous_lock == "run")
        self.feedbacks = Feedbacks(session.lane, limit=settings.feedback_limit, start=crew.start)
        self.application_settings: Mapping[str, str] = ApplicationSettings()
        self.registered = False
        self.on_dropped: Callable[[str], None] = lambda key: None
        self.malformed = 0
        self.duplicates = 0

    def lane(self, purpose: str) -> Lane:
        """A kept connection."""
        return self._session.lane()

    def serve(self, served: dict[Any, Served]) -> None:
        """Methods are found by their bare names."""
        self._served = served

    # Opening: probe port, token, registration, heartbeat

    def open(self) -> None:
        """Bind the probe port, log in, register, and begin to beat.

        Raises:
            StartError: it cannot be done.
        """
        opening = Opening(self._settings, self._session, self._stopping)
        if self._lazy:
            self._probe = opening.bind_probe(self.draining.wake)
            self._probe_port = opening.port
        registered = opening.register(list(self._served), self._idempotent())
        if registered is None:
            return
        self.application_settings = registered
        self.registered = True
        if self._stopping.is_set():
            self._tell_shutdown()
            return
        if self._probe is not None:
            self._crew.start("probe", self._probe.serve)
        path = f"/worker/heartbeat/{self._worker_path}"
        delay = opening.heartbeat_delay(registered)
        self._heartbeat = Heartbeat(self._session, path, delay, self._forgotten)
        self._crew.start("heartbeat", self._heartbeat.serve)

    def _idempotent(self) -> list[str]:
        return [name for name, served in self._served.items() if served.definition.options.idempotent]

    @property
    def probe_port(self) -> int | None:
        """The bound probe port; None when there is none."""
        return self._probe_port

    def _forgotten(self) -> None:
        if self._settings.when_forgotten == "exit":
            self._on_fatal(
                ForgottenError(
                    f"the middleware no longer knows worker {self._settings.worker_id}: what is held is "
                    "finished; start a new process to register again"
                )
            )
        else:
            _logger.error(
                "the middleware no longer knows this worker; it stays (when_forgotten)",
                extra={"action": "forgotten", "worker_id": self._settings.worker_id},
            )

    # Drain

    def receive(self, lane: Lane) -> Sequence[Any]:
        """Wait for the next drain and do it."""
        return self.draining.receive(lane)

    def poll(self, lane: Lane) -> Work | None:
        """Not used: drains bring batches."""
        raise NotImplementedError

    def keys_of(self, batch: Sequence[Any]) -> list[tuple[str, bytes]]:
        """Request ids and elements."""
        return [(identity_of(element), bytes(element)) for element in batch]

    def admit(self, item: Any) -> Work | None:
        """Decode one element; a malformed one becomes an error, when there is an id to answer."""
        try:
            message = read_message(item)
        except Malformed as malformed:
            return self._admit_malformed(malformed)
        if not self._window.enter(message.request_id):
            self._note_duplicate(message.request_id)
            return None
        served = self._served.get(message.method)
        return Work(
            message.request_id,
            message.method,
            message.params,
            served,
            refusal=None if served is not None else self._unknown(message.method),
            needs_claim=message.lock_required,
        )

    def _unknown(self, method: str) -> Outcome:
        return outcome_of(Ending.UNKNOWN_METHOD, unknown_text([method], list(self._served), noun="method"))

    def _admit_malformed(self, malformed: Malformed) -> Work | None:
        self.malformed += 1
        request_id = malformed.request_id
        _logger.error(
            "malformed message: %s%s",
            malformed,
            "" if request_id is not None else " (it has no request_id to answer: it is skipped)",
            extra={"action": "malformed_message", "request_id": request_id},
        )
        if request_id is None:
            self.on_dropped("")
            return None
        if not self._window.enter(request_id):
            self._note_duplicate(request_id)
            return None
        refusal = outcome_of(Ending.MALFORMED, f"malformed message: {malformed}")
        return Work(request_id, "", None, None, refusal=refusal, needs_claim=malformed.asks_for_lock)

    def _note_duplicate(self, request_id: str) -> None:
        # It runs, its answer is on its way, or it was answered: in no case is there anything to do.
        self.duplicates += 1
        if self._window.is_settled(request_id):
            self.on_dropped(request_id)
        _logger.info(
            "request %s came again and is not run again",
            request_id,
            extra={"action": "duplicate_message", "request_id": request_id},
        )

    def readmit(self, key: str | None, body: bytes, claimed: bool) -> Work | None:
        """Decode an element that a former process drained."""
        work = self.admit(body)
        if work is not None and claimed:
            work.claimed = True
        return work

    # Lock

    def claim(self, work: Work, lane: Lane) -> bool:
        """Ask for the lock."""
        return self.locking.lock(work.key, lane)

    # Handle

    def context(self, work: Work) -> Context:
        """What the handler sees."""
        return Context(
            work,
            request_id=work.key,
            settings=self.application_settings,
            resources=self._resources,
            stopping=self._stopping.is_set,
            send_feedback=self._feedback_of_request,
        )

    def _feedback_of_request(
        self, context: Context, content: Any, feedback_type: int | None, persist: bool
    ) -> None:
        self._put_feedback(
            context.request_id, METHOD_REQUEST, context.method, content, feedback_type, persist
        )

    def feedback(self, source: str, content: Any, feedback_type: int | None, persist: bool) -> None:
        """Feedback from code outside a request (source type 2)."""
        self._put_feedback(None, BACKGROUND, source, content, feedback_type, persist)

    def _put_feedback(
        self, rid: str | None, st: int, sn: str, content: Any, ft: int | None, pr: bool
    ) -> None:
        if ft is None:
            ft = self._settings.feedback_type
        self.feedbacks.put(rid=rid, st=st, sn=sn, ft=ft, pr=pr, content=content)

    # Respond

    def encode(self, work: Work, outcome: Outcome) -> Report:
        """The answer, as posted."""
        return Report(work.key, encode_answer(work.key, outcome, expose_errors=self._settings.expose_errors))

    def restored(self, key: str, body: bytes) -> Report:
        """A report that a journal kept."""
        self._window.enter(key)
        return Report(key, body)

    def stored(self, report: Report) -> bytes:
        """The body is all there is to keep."""
        return report.body

    def report(self, report: Report, lane: Lane, limit_seconds: float) -> Verdict:
        """Post an answer, after the feedback of its request, and say what the middleware says to it."""
        self.feedbacks.await_sent(report.key, FEEDBACK_FIRST_SECONDS)
        try:
            answer = lane.call("POST", "/worker/response", report.body, read_timeout=limit_seconds)
        except KiwiWorkerError as error:
            return self._unsent(report, error)
        if answer.status < 300:
            return ANSWERED
        if is_transient(answer.status):
            return Verdict(VerdictKind.RETRY, after_seconds=retry_after_seconds(answer))
        if answer.status == 413 and report.route != REPLACED:
            body = too_large_answer(report.key, len(report.body))
            return Verdict(VerdictKind.REPLACE, replacement=Report(report.key, body, REPLACED))
        _logger.warning(
            "the answer to %s was not accepted (%d); that is final",
            report.key,
            answer.status,
            extra={"action": "answer_refused", "request_id": report.key, "status": answer.status},
        )
        return ANSWERED

    def _unsent(self, report: Report, error: KiwiWorkerError) -> Verdict:
        _logger.info(
            "the answer to %s is not delivered yet: %s",
            report.key,
            error,
            extra={"action": "answer_delayed", "request_id": report.key},
        )
        return Verdict(VerdictKind.RETRY, reached=False)

    def answered(self, key: str) -> None:
        """The id stays in the window: it must not be run again."""
        self._window.settle(key)

    def forget(self, work: Work) -> None:
        """Its lock was refused: it may be offered again."""
        self._window.leave(work.key)

    def facts(self) -> Facts:
        """How registration, drains, heartbeat, probe and feedback are."""
        return account_of(self, self._session.tokens, self._heartbeat, self._probe)

    # Shutdown

    def stop_receiving(self) -> None:
        """Tell the middleware, so that it offers nothing more and ends an open wait; end own waits."""
        self._stopping.set()
        self.draining.stop()
        self.locking.stop()
        if self._probe is not None:
            self._probe.stop()
        self._tell_shutdown()

    def _tell_shutdown(self) -> None:
        # The start that is under way and the shutdown may both come here: told is once.
        if self.registered and self._notifying.acquire(blocking=False):
            told = threading.Event()
            self._crew.start("notify", lambda: self._notify(told))
            told.wait(NOTIFY_HEAD_START_SECONDS)

    def _notify(self, told: threading.Event) -> None:
        path = f"/worker/notify_worker_shutdown/{self._worker_path}"
        try:
            answer = self._session.call("PUT", path, read_timeout=NOTIFY_LIMIT_SECONDS)
            problem = "" if answer.status < 300 else f"answered with {answer.status}"
        except KiwiWorkerError as error:
            problem = str(error)
        finally:
            told.set()
        if problem:
            _logger.warning(
                "the shutdown notice was not accepted: %s", problem, extra={"action": "notify_failed"}
            )

    def interrupt(self) -> None:
        """Nothing beyond the receiver's own connection waits."""

    def close(self, clean: bool) -> None:
        """Send the last feedback and the last heartbeat, and close everything."""
        self.feedbacks.flush(FEEDBACK_FLUSH_SECONDS if clean else LATE_FEEDBACK_FLUSH_SECONDS)
        self.feedbacks.close()
        if self._heartbeat is not None:
            self._heartbeat.stop()
        if self._probe is not None:
            self._probe.stop()
