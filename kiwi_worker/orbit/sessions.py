"""Sessions with the runtime: opened once for all threads, opened again when lost, kept alive until closed.

Sections "Register a worker", "Send a heartbeat", "Unregister", and rules 1, 5 and 9 for implementers.

One session is current: polls use it. Others are retired: a poll with them ended so that a task may have been
taken that never arrived. It would stay with a session that lives, so the session is left, kept alive only
until what is known of it is reported, and then closed, upon which the runtime delivers the lost one again.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from functools import partial
from time import monotonic
from typing import Any

from kiwi_worker.engine.stamps import Stamp, Streak
from kiwi_worker.errors import (
    AuthenticationError,
    KiwiWorkerError,
    RegistrationError,
    SettingsError,
    StartError,
    UnreachableError,
)
from kiwi_worker.orbit.http import CONNECT_SECONDS
from kiwi_worker.orbit.wire import REGISTER_SECONDS, Refused, Registered, Wire
from kiwi_worker.transport import Backoff

__all__ = ["NoSession", "Session", "Sessions"]

_logger = logging.getLogger("kiwi_worker.orbit")

REPLACE_PAUSE_SECONDS = 5.0
"""The least time between two sessions that are opened only because a poll ended ambiguously."""
UNREGISTER_SECONDS = 5.0
NO_SESSION_LOOK_SECONDS = 0.5
LONGEST_BEAT = 0.3
"""The share of the session time-out that one heartbeat may take."""
SHORTEST_INTERVAL_SECONDS = 0.05
SHORTEST_TIMEOUT_SECONDS = 0.1


class NoSession(KiwiWorkerError):
    """There is no session now, and opening one failed only a moment ago."""


class Session:
    """One session, and the attempts that were taken with it.

    Attributes:
        interval, timeout: in seconds.
        tokens: deliveries that are not reported yet.
        beat_at: when its next heartbeat is due.
        proven: whether the runtime ever answered a call that named it.
        suspected: whether a poll with it ended ambiguously.
        retired: whether it is only kept alive.
    """

    __slots__ = ("beat_at", "id", "interval", "proven", "retired", "suspected", "timeout", "tokens")

    def __init__(self, registered: Registered) -> None:
        self.id = registered.worker_session_id
        self.interval = max(SHORTEST_INTERVAL_SECONDS, registered.heartbeat_interval_ms / 1000)
        self.timeout = max(SHORTEST_TIMEOUT_SECONDS, registered.session_timeout_ms / 1000)
        self.tokens: set[str] = set()
        self.beat_at = monotonic()
        self.proven = False
        self.suspected = False
        self.retired = False


class Sessions:
    """All sessions of one worker.

    Args:
        make_wire: opens a connection; takes how long connecting may take, in seconds.
        request: the body of a registration.
        stopping: set when no work is taken any more.
        start: starts a thread, with a task name and what it runs.
        start_limit_seconds: how long the first registration may take; None for ever.
        on_cancel: takes the tokens that heartbeats bring.
        on_contact: called when the runtime answered a heartbeat or a registration.

    Attributes:
        registrations: how many were answered.
        beats: how many heartbeats were sent.
        failed_beats: how many of them were not answered, or refused.
        failing: heartbeats and registrations that fail, since the last that did not.
        stamp: tells whether the heartbeats go on.
    """

    def __init__(
        self,
        make_wire: Callable[..., Wire],
        request: dict[str, Any],
        *,
        stopping: threading.Event,
        start: Callable[[str, Callable[[], None]], object],
        start_limit_seconds: float | None,
        on_cancel: Callable[[Sequence[str]], None],
        on_contact: Callable[[], None],
    ) -> None:
        self._make_wire = make_wire
        self._request = request
        self._stopping = stopping
        self._start = start
        self._start_limit = start_limit_seconds
        self._on_cancel = on_cancel
        self._on_contact = on_contact
        self._registrar = make_wire()
        self._beats: Wire | None = None
        self._lock = threading.Lock()
        self._opening = threading.Lock()
        self._current: Session | None = None
        self._retired: list[Session] = []
        self._pauses = Backoff(0.2, 5.0)
        self._next_try = self._replaced_at = float("-inf")
        self._reopening = False
        self._changed = threading.Event()
        self._stopped = threading.Event()
        self.registrations = 0
        self.beats = 0
        self.failed_beats = 0
        self.failing = Streak()
        self.stamp = Stamp()

    # Opening

    def open_first(self) -> bool:
        """Register, trying until it works; False when the start was given up.

        Raises:
            AuthenticationError: 401 or 403.
            RegistrationError: 400 or another refusal that would not change.
            SettingsError: a file of the settings cannot be used.
            UnreachableError: the start-up limit passed.
        """
        began = monotonic()
        while not self._stopping.is_set():
            try:
                self.current()
                return True
            except (SettingsError, StartError):
                raise
            except Refused as error:
                _raise_when_final(error)
                problem: KiwiWorkerError = error
            except KiwiWorkerError as error:
                problem = error
            self._wait_for_next_try(problem, began)
        return False

    def _wait_for_next_try(self, problem: KiwiWorkerError, began: float) -> None:
        now = monotonic()
        pause = max(0.0, self._next_try - now)
        if self._start_limit is not None:
            if now - began >= self._start_limit:
                raise UnreachableError(f"the runtime was of no use within {self._start_limit:g} s: {problem}")
            pause = min(pause, began + self._start_limit - now)
        if not self._stopping.is_set():
            text, extra = "cannot register yet, next try in %.1f s: %s", {"action": "register_failed"}
            _logger.warning(text, pause, problem, extra=extra)
        self._stopping.wait(pause)

    def current(self) -> Session:
        """The session to poll with. The first who asks opens it, again when it was lost; the others wait.

        Raises:
            NoSession: a moment ago it could not be opened.
            TransportError, ProtocolError, Refused, StartError: it cannot be opened now.
        """
        session = self._current
        if session is None or session.suspected:
            return self._renew()
        return session

    def _renew(self) -> Session:
        with self._opening:
            old = self._current
            if old is not None and not (old.suspected and self._may_replace()):
                return old
            new = self._register()
            with self._lock:
                retires = old is not None and self._current is old
                self._current = new
                if retires and old is not None:
                    old.retired = True
                    self._retired.append(old)
                    self._replaced_at = monotonic()
        self._changed.set()
        self._close_finished()
        return new

    def _may_replace(self) -> bool:
        return monotonic() - self._replaced_at >= REPLACE_PAUSE_SECONDS

    def _register(self) -> Session:
        left = self._next_try - monotonic()
        if left > 0:
            raise NoSession(
                f"no session yet, next try in {left:.1f} s: {self.failing.problem or 'it was lost at once'}"
            )
        try:
            registered = self._registrar.register(self._request, REGISTER_SECONDS)
        except KiwiWorkerError as error:
            self.failing.fail(str(error))
            raise
        finally:
            # Also after success: a session that is lost before it was of any use is not opened in a circle.
            self._next_try = monotonic() + self._pauses.next()
            self._registrar.close()
        self.failing.succeed()
        self.registrations += 1
        self._note_registration(registered)
        self._on_contact()
        return Session(registered)

    def _note_registration(self, registered: Registered) -> None:
        for warning in registered.warnings or ():
            _logger.warning("registration: %s", warning, extra={"action": "registration_warning"})
        worker_id, tasks = self._request["worker_id"], len(self._request["contracts"])
        extra = {"action": "registered", "worker_id": worker_id}
        _logger.info("registered as %s with %d tasks", worker_id, tasks, extra=extra)

    # What happens to sessions

    def prove(self, session: Session) -> None:
        """The runtime answered a call that named it."""
        if not session.proven:
            session.proven = True
            self._pauses.reset()
            self._next_try = float("-inf")

    def lost(self, session: Session) -> None:
        """The runtime does not know this session; tokens taken with it stay valid."""
        with self._lock:
            if self._current is session:
                self._current = None
            elif session in self._retired:
                self._retired.remove(session)

    def suspect(self, session: Session) -> None:
        """A poll with it ended ambiguously: the next one opens a new session, soon."""
        session.suspected = True

    def reported(self, session: Session, token: str) -> None:
        """An attempt of this session got its final answer, or was given up."""
        session.tokens.discard(token)
        if session.retired:
            self._close_finished()

    def _close_finished(self) -> None:
        with self._lock:
            finished = [session for session in self._retired if not session.tokens]
            self._retired = [session for session in self._retired if session.tokens]
        for session in finished:
            # Not here, where a slot would wait for it.
            self._start("unregister", partial(self._unregister, session, UNREGISTER_SECONDS))

    # Heartbeats

    def serve(self) -> None:
        """Beat for every session until stopped, on a thread and a connection that nothing else uses."""
        try:
            while not self._stopped.is_set():
                self._changed.clear()
                self._beat_those_due()
                if self._current is None:
                    self._reopen_soon()
        finally:
            self.stamp.rest()
            if self._beats is not None:
                self._beats.close()

    def _beat_those_due(self) -> None:
        sessions, now = self._living(), monotonic()
        due = [session for session in sessions if session.beat_at <= now]
        pause = min((session.beat_at - now for session in sessions), default=NO_SESSION_LOOK_SECONDS)
        self.stamp.expect(max(0.0, pause) + sum(session.timeout for session in due))
        for session in due:
            self._beat(session)
        if not due:
            self._changed.wait(pause)

    def _living(self) -> list[Session]:
        with self._lock:
            return [*([self._current] if self._current else []), *self._retired]

    def _beat(self, session: Session) -> None:
        session.beat_at = max(session.beat_at + session.interval, monotonic())
        self.beats += 1
        try:
            tokens = self._wire_for(session).heartbeat(session.id, LONGEST_BEAT * session.timeout)
        except Refused as error:
            self.failed_beats += 1
            self._note(error)
            if error.ours:
                self._on_contact()
            if error.lost_session:
                self.lost(session)
        except StartError:
            raise
        except KiwiWorkerError as error:
            self.failed_beats += 1
            self._note(error)
        else:
            self.failing.succeed()
            self.prove(session)
            self._on_contact()
            if tokens:
                self._on_cancel(tokens)

    def _wire_for(self, session: Session) -> Wire:
        if self._beats is None:
            self._beats = self._make_wire(min(CONNECT_SECONDS, session.timeout / 12))
        return self._beats

    def _reopen_soon(self) -> None:
        """Register again, though nobody polls; not here, where heartbeats of other sessions would wait."""
        if self._reopening or self._stopped.is_set() or monotonic() < self._next_try:
            return
        self._reopening = True
        self._start("register", self._reopen)

    def _reopen(self) -> None:
        try:
            self.current()
        except StartError:
            raise
        except KiwiWorkerError as error:
            self._note(error)
        finally:
            self._reopening = False

    def _note(self, error: KiwiWorkerError) -> None:
        level = logging.WARNING if self.failing.since is None else logging.DEBUG
        self.failing.fail(str(error))
        if not self._stopped.is_set():
            _logger.log(level, "heartbeat failed: %s", error, extra={"action": "heartbeat_failed"})

    @property
    def is_open(self) -> bool:
        """Whether there is a session to poll with."""
        return self._current is not None

    # The end

    def interrupt(self) -> None:
        """End a registration that is under way."""
        self._registrar.interrupt()

    def stop(self, limit_seconds: float) -> None:
        """End the heartbeats and close every session: the last thing a worker does."""
        until = monotonic() + limit_seconds
        self._stopped.set()
        self._changed.set()
        self._registrar.interrupt()
        if self._beats is not None:
            self._beats.interrupt()
        sessions = self._living()
        with self._lock:
            self._current, self._retired = None, []
        for session in sessions:
            left = max(SHORTEST_TIMEOUT_SECONDS, until - monotonic())
            self._unregister(session, left, again=not session.retired)

    def _unregister(self, session: Session, limit_seconds: float, again: bool = False) -> None:
        wire = self._make_wire(min(CONNECT_SECONDS, limit_seconds))
        try:
            try:
                wire.unregister(session.id, limit_seconds)
            except Refused as error:
                if not (error.lost_session and again):
                    raise
                # As the first rule for implementers has it, for this call, too.
                wire.unregister(wire.register(self._request, limit_seconds).worker_session_id, limit_seconds)
        except KiwiWorkerError as error:
            lost = isinstance(error, Refused) and error.lost_session
            level = logging.DEBUG if lost else logging.WARNING
            _logger.log(level, "unregistering failed: %s", error, extra={"action": "unregister_failed"})
        finally:
            wire.close()


def _raise_when_final(error: Refused) -> None:
    if not error.ours:
        return
    if error.status in (401, 403):
        raise AuthenticationError(f"the runtime refused the registration: {error}", status=error.status)
    if 400 <= error.status < 500 and error.status not in (404, 408, 425, 429):
        raise RegistrationError(f"the runtime refused the registration: {error}")
