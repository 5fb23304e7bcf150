"""Feedback: fire and forget (protocol page, "Feedback"). A failed post never fails the method."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec

from kiwi_worker.errors import KiwiWorkerError
from kiwi_worker.kiwi.session import Lane
from kiwi_worker.transport import is_transient

__all__ = ["BACKGROUND", "METHOD_REQUEST", "Feedback", "Feedbacks"]

_logger = logging.getLogger("kiwi_worker.kiwi")

METHOD_REQUEST = 1
BACKGROUND = 2
SEND_LIMIT_SECONDS = 10.0
ATTEMPTS = 2


class Feedback(msgspec.Struct):
    """One feedback, with the page's short keys."""

    rid: str | None
    st: int
    sn: str
    ft: int
    pr: bool
    fc: str


_encode = msgspec.json.Encoder().encode


class Feedbacks:
    """Sends feedback from a thread of its own, which starts with the first one.

    Args:
        make_lane: opens the connection it is sent on.
        limit: how many may wait; more are dropped and counted.
        start: starts the thread, with a task name and what it runs.
    """

    def __init__(
        self,
        make_lane: Callable[[], Lane],
        *,
        limit: int,
        start: Callable[[str, Callable[[], None]], object],
    ) -> None:
        self._make_lane = make_lane
        self._limit = limit
        self._start = start
        self._changed = threading.Condition()
        self._waiting: deque[tuple[str | None, bytes]] = deque()
        self._unsent: dict[str | None, int] = {}
        self._running = False
        self._sending = False
        self._closed = False
        self._lane: Lane | None = None
        self.sent = 0
        self.dropped = 0

    def put(self, *, rid: str | None, st: int, sn: str, ft: int, pr: bool, content: Any) -> None:
        """Send one; what cannot be encoded, and what does not fit, is dropped and counted."""
        try:
            fc = content if isinstance(content, str) else _encode(content).decode()
            body = _encode(Feedback(rid, st, sn, ft, pr, fc))
        except Exception as error:  # noqa: BLE001 - feedback must never fail the method that gives it
            self._drop(f"it has no JSON form: {type(error).__name__}")
            return
        with self._changed:
            if self._closed or len(self._waiting) >= self._limit:
                full = True
            else:
                full = False
                self._waiting.append((rid, body))
                self._unsent[rid] = self._unsent.get(rid, 0) + 1
                self._wake()
        if full:
            self._drop("too much waits to be sent")

    def await_sent(self, rid: str, seconds: float) -> None:
        """Wait, no longer than that, until the feedback of a request was sent or dropped.

        A caller that follows a call would not see what comes after its answer.
        """
        # One look without the lock: hardly any request gives feedback.
        if rid not in self._unsent:
            return
        until = time.monotonic() + seconds
        with self._changed:
            while rid in self._unsent and (left := until - time.monotonic()) > 0:
                self._changed.wait(left)

    def flush(self, seconds: float) -> bool:
        """Wait until all is sent; False when the time was over first."""
        until = time.monotonic() + seconds
        with self._changed:
            while self._waiting or self._sending:
                left = until - time.monotonic()
                if left <= 0:
                    return False
                self._changed.wait(left)
        return True

    def close(self) -> None:
        """Drop what waits and end the thread."""
        with self._changed:
            self._closed = True
            self.dropped += len(self._waiting)
            self._waiting.clear()
            self._unsent.clear()
            self._changed.notify_all()
            lane = self._lane
        if lane is not None:
            lane.interrupt()

    def _wake(self) -> None:
        if self._running:
            self._changed.notify_all()
        else:
            self._running = True
            self._start("feedback", self._serve)

    def _serve(self) -> None:
        lane = self._lane = self._make_lane()
        try:
            while (taken := self._take()) is not None:
                rid, body = taken
                try:
                    self._send(lane, body)
                finally:
                    self._sent(rid)
        finally:
            lane.close()

    def _sent(self, rid: str | None) -> None:
        with self._changed:
            left = self._unsent.pop(rid, 1) - 1
            if left:
                self._unsent[rid] = left
            else:
                self._changed.notify_all()

    def _take(self) -> tuple[str | None, bytes] | None:
        with self._changed:
            self._sending = False
            self._changed.notify_all()
            while not self._waiting:
                if self._closed:
                    return None
                self._changed.wait()
            self._sending = True
            return self._waiting.popleft()

    def _send(self, lane: Lane, body: bytes) -> None:
        problem = ""
        for attempt in range(ATTEMPTS):
            if attempt and self._closed:
                break
            try:
                answer = lane.call("POST", "/worker/feedback", body, read_timeout=SEND_LIMIT_SECONDS)
            except KiwiWorkerError as error:
                problem = str(error)
                continue
            if answer.status < 300:
                self.sent += 1
                return
            problem = f"it was answered with {answer.status}"
            if not is_transient(answer.status):
                break
        self._drop(problem)

    def _drop(self, problem: str) -> None:
        self.dropped += 1
        level = logging.WARNING if self.dropped & (self.dropped - 1) == 0 else logging.DEBUG
        _logger.log(
            level,
            "feedback dropped (%d so far): %s",
            self.dropped,
            problem,
            extra={"action": "feedback_dropped"},
        )
