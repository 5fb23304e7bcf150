"""The heartbeat: from right after the registration until the last answer is out.

Protocol page, "Heartbeat and shutdown": `GET /worker/heartbeat/{worker_id}`, answered with a bare true or
false.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from kiwi_worker.engine.stamps import Stamp, Streak
from kiwi_worker.errors import KiwiWorkerError
from kiwi_worker.kiwi.session import Session
from kiwi_worker.transport import Answer

__all__ = ["Heartbeat"]

_logger = logging.getLogger("kiwi_worker.kiwi")

FALSES_UNTIL_FORGOTTEN = 3
BEAT_SECONDS = 90.0
"""How long one beat may take: connecting, a new token, and the same once more included."""


class Heartbeat:
    """Beats from a thread of its own, that no handler and no other call can hold up.

    Args:
        session: how to call.
        path: the whole path, worker id included.
        delay_seconds: the time between two beats.
        on_forgotten: called once, when the middleware said three times in a row that it does not know us.

    Attributes:
        beats: how many were sent.
        failures: how many of them brought no usable answer.
        failing: those since the last that did.
        answered_at: when the last usable answer came, on the monotonic clock; None before.
        stamp: tells whether it goes on.
    """

    def __init__(
        self, session: Session, path: str, delay_seconds: float, on_forgotten: Callable[[], None]
    ) -> None:
        self._session = session
        self._path = path
        self._delay = delay_seconds
        self._on_forgotten = on_forgotten
        self._stopped = threading.Event()
        self._falses = 0
        self.beats = 0
        self.failures = 0
        self.failing = Streak()
        self.stamp = Stamp()
        self.answered_at: float | None = None

    def serve(self) -> None:
        """Beat until stopped."""
        due = time.monotonic()
        while not self._stopped.wait(max(0.0, due - time.monotonic())):
            due = max(due + self._delay, time.monotonic())
            self.stamp.expect(self._delay + BEAT_SECONDS)
            self.beat()
        self.stamp.rest()

    def stop(self) -> None:
        """End `serve`."""
        self._stopped.set()

    def beat(self) -> None:
        """One heartbeat; never raises for what the network or the middleware does."""
        self.beats += 1
        limit = min(15.0, max(1.0, self._delay))
        try:
            self._hear(self._session.call("GET", self._path, read_timeout=limit))
        except KiwiWorkerError as error:
            self._fail(str(error))

    def _hear(self, answer: Answer) -> None:
        known = self._is_known(answer)
        if known is None:
            self._fail(f"answered with {answer.status} and {answer.body[:40]!r}")
            return
        self.answered_at = time.monotonic()
        self.failing.succeed()
        self._falses = 0 if known else self._falses + 1
        if not known:
            _logger.warning(
                "the middleware does not know this worker (%d times in a row)",
                self._falses,
                extra={"action": "heartbeat_false"},
            )
        if self._falses == FALSES_UNTIL_FORGOTTEN:
            self._on_forgotten()

    @property
    def forgotten(self) -> bool:
        """Whether the middleware has said often enough that it does not know this worker."""
        return self._falses >= FALSES_UNTIL_FORGOTTEN

    @staticmethod
    def _is_known(answer: Answer) -> bool | None:
        if answer.status == 404:
            return False
        text = answer.body.strip().lower()
        if 200 <= answer.status < 300 and text in (b"true", b"false"):
            return text == b"true"
        return None

    def _fail(self, problem: str) -> None:
        self.failures += 1
        level = logging.WARNING if self.failing.since is None else logging.DEBUG
        self.failing.fail(problem)
        _logger.log(level, "heartbeat failed: %s", problem, extra={"action": "heartbeat_failed"})
