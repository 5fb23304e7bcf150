"""Sessions with the runtime: opened once for all, opened again when lost, kept alive until they are closed.

Sections "Register a worker", "Send a heartbeat", "Unregister", and rules 1, 5 and 9 for implementers.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from kiwi_worker.errors import (
    AuthenticationError,
    KiwiWorkerError,
    RegistrationError,
    UnreachableError,
)
from kiwi_worker.orbit.wire import Refused, Registered, Wire
from kiwi_worker.transport import Backoff

__all__ = ["Session", "Sessions"]

_logger = logging.getLogger("kiwi_worker.orbit")

REPLACE_PAUSE_SECONDS = 5.0
"""The least time between two sessions that are opened only because a poll ended ambiguously."""


class Session:
    """One session, and the attempts that were taken with it."""

    __slots__ = ("id", "interval", "retired", "timeout", "tokens")

    def __init__(self, registered: Registered) -> None:
        self.id = registered.worker_session_id
        self.interval = max(0.05, registered.heartbeat_interval_ms / 1000)
        self.timeout = max(0.1, registered.session_timeout_ms / 1000)
        self.tokens: set[str] = set()
        self.retired = False


class Sessions:
    """All sessions of one worker; one is current, others are only kept alive until they can be closed.

    Args:
        wire: the connection that registrations and heartbeats use.
        request: the body of a registration.
        stopping: set when no session is to be opened any more.
        start_limit_seconds: how long the first registration may take; None for ever.
        on_cancel: takes the tokens that heartbeats bring.
    """

    def __init__(
        self,
        wire: Wire,
        request: dict[str, Any],
        stopping: threading.Event,
        start_limit_seconds: float | None,
        on_cancel: Callable[[Sequence[str]], None],
    ) -> None:
        self._wire = wire
        self._request = request
        self._stopping = stopping
        self._start_limit = start_limit_seconds
        self._on_cancel = on_cancel
        self._lock = threading.Lock()
        self._opening = threading.Lock()
        self._calling = threading.Lock()
        self._current: Session | None = None
        self._retired: list[Session] = []
        self._replaced_at = float("-inf")
        self._stopped = threading.Event()
        self.registrations = 0
        self.last_error: KiwiWorkerError | None = None

    def open_first(self) -> bool:
        """Register, trying until it works; False when the start was given up.

        Raises:
            AuthenticationError: 401 or 403.
            RegistrationError: 400 or another refusal that would not change.
            UnreachableError: the start-up limit passed.
        """
        began, pauses = time.monotonic(), Backoff(0.2, 10.0)
        while not self._stopping.is_set():
            try:
                self.current()
                return True
            except Refused as error:
                _raise_when_final(error)
                problem: KiwiWorkerError = error
            except KiwiWorkerError as error:
                problem = error
            if self._start_limit is not None and time.monotonic() - began >= self._start_limit:
                raise UnreachableError(f"the runtime was of no use within {self._start_limit:g} s: {problem}")
            pause = pauses.next()
            _logger.warning(
                "cannot register yet, next try in %.1f s: %s",
                pause,
                problem,
                extra={"action": "register_failed"},
            )
            self._stopping.wait(pause)
        return False

    def current(self) -> Session:
        """The session to poll with; opened by the first who asks, and again after it was lost.

        Raises:
            Refused, NotSent, Ambiguous, ProtocolError: it cannot be opened now.
        """
        session = self._current
        if session is not None:
            return session
        with self._opening:
            if self._current is None:
                self._current = self._register()
            return self._current

    def _register(self) -> Session:
        with self._calling:
            registered = self._wire.register(self._request)
        if not registered.worker_session_id:
            raise RegistrationError(
                "the registration brought no session id; over gRPC check the setting proto"
            )
        self.registrations += 1
        for warning in registered.warnings:
            _logger.warning("registration: %s", warning, extra={"action": "registration_warning"})
        _logger.info(
            "registered as %s with %d tasks",
            self._request["worker_id"],
            len(self._request["contracts"]),
            extra={"action": "registered", "worker_id": self._request["worker_id"]},
        )
        return Session(registered)

    def lost(self, session: Session) -> None:
        """The runtime does not know this session; tokens taken with it stay valid."""
        with self._lock:
            if self._current is session:
                self._current = None
            elif session in self._retired:
                self._retired.remove(session)

    def suspect(self, session: Session) -> None:
        """A poll with it ended ambiguously, and may have taken a task that would stay with it for ever.

        Further polls use a new session. The old one is kept alive until what is known of it is reported.
        """
        now = time.monotonic()
        with self._lock:
            if self._current is not session or now - self._replaced_at < REPLACE_PAUSE_SECONDS:
                return
            self._replaced_at = now
            self._current = None
            session.retired = True
            self._retired.append(session)
        self._close_finished()

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
            self._unregister(session)

    def serve(self) -> None:
        """Beat for every session until stopped, from a thread that no handler and no poll can hold up."""
        due = time.monotonic()
        while not self._stopped.wait(max(0.0, due - time.monotonic())):
            with self._lock:
                sessions = [*self._retired, *([self._current] if self._current else [])]
            interval = min([session.interval for session in sessions], default=1.0)
            due = max(due + interval, time.monotonic())
            for session in sessions:
                self._beat(session)

    def _beat(self, session: Session) -> None:
        try:
            with self._calling:
                tokens = self._wire.heartbeat(session.id, session.timeout / 3)
            self.last_error = None
        except Refused as error:
            self._note(error)
            if error.lost_session:
                self.lost(session)
                self._beat_again(session)
            return
        except KiwiWorkerError as error:
            self._note(error)
            return
        if tokens:
            self._on_cancel(tokens)

    def _beat_again(self, lost: Session) -> None:
        if lost.retired or self._stopping.is_set():
            return
        try:
            self.current()
        except KiwiWorkerError as error:
            self._note(error)

    def _note(self, error: KiwiWorkerError) -> None:
        level = logging.DEBUG if self.last_error is not None else logging.WARNING
        self.last_error = error
        _logger.log(level, "heartbeat failed: %s", error, extra={"action": "heartbeat_failed"})

    def stop(self) -> None:
        """End the heartbeats and close every session: the last thing a worker does."""
        self._stopped.set()
        with self._lock:
            sessions = [*self._retired, *([self._current] if self._current else [])]
            self._current, self._retired = None, []
        for session in sessions:
            self._unregister(session)

    def _unregister(self, session: Session) -> None:
        try:
            with self._calling:
                self._wire.unregister(session.id)
        except KiwiWorkerError as error:
            level = logging.DEBUG if isinstance(error, Refused) and error.lost_session else logging.WARNING
            _logger.log(level, "unregistering failed: %s", error, extra={"action": "unregister_failed"})


def _raise_when_final(error: Refused) -> None:
    if not error.ours:
        return
    if error.status in (401, 403):
        raise AuthenticationError(f"the runtime refused the registration: {error}") from None
    if 400 <= error.status < 500 and error.status not in (404, 408, 425, 429):
        raise RegistrationError(f"the runtime refused the registration: {error}") from None
