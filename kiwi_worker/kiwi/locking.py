"""Locking a request before it is handled (protocol page, "The request loop", step 2)."""

from __future__ import annotations

import logging
import random
import threading
from urllib.parse import quote

from kiwi_worker.errors import Ambiguous, AuthenticationError, KiwiWorkerError, TokenUnavailable
from kiwi_worker.kiwi.session import Lane
from kiwi_worker.transport import retry_after_seconds

__all__ = ["Locking"]

_logger = logging.getLogger("kiwi_worker.kiwi")

RETRIED = frozenset({408, 425, 429, 500, 502, 503, 504})
"""Answers that claim nothing for anybody: a stated deviation from "anything else means another worker"."""
READ_LIMIT_SECONDS = 10.0
LONGEST_PAUSE_SECONDS = 5.0


class Locking:
    """Asks for locks.

    Args:
        attempts: how often each is asked for.
        run_ambiguous: whether a lock that may be ours, and cannot be proved to be, counts as ours.
    """

    def __init__(self, attempts: int, *, run_ambiguous: bool) -> None:
        self._attempts = attempts
        self._run_ambiguous = run_ambiguous
        self._stopped = threading.Event()
        self.ambiguous = 0
        self.given_up = 0

    def stop(self) -> None:
        """End every pause."""
        self._stopped.set()

    def lock(self, request_id: str, lane: Lane) -> bool:
        """Whether this worker owns the request now."""
        path = "/worker/lock_request/" + quote(request_id, safe="")
        ambiguous, attempt = False, 0
        while attempt < self._attempts:
            attempt += 1
            asked: float | None = None
            try:
                answer = lane.call("PUT", path, read_timeout=READ_LIMIT_SECONDS)
            except (AuthenticationError, TokenUnavailable) as error:
                # Without a token nothing was asked, and nothing else can be done: it waits for the next one.
                asked = error.retry_seconds or None
                attempt -= asked is not None
            except KiwiWorkerError as error:
                ambiguous = ambiguous or isinstance(error, Ambiguous)
                self._note(request_id, str(error))
            else:
                if 200 <= answer.status < 300:
                    return True
                if answer.status not in RETRIED:
                    return ambiguous and self._owns_anyway(request_id)
                asked = retry_after_seconds(answer)
            if attempt < self._attempts and self._stopped.wait(_pause(attempt, asked)):
                break
        self.given_up += 1
        _logger.warning(
            "the lock of %s could not be asked for; the request is left to others",
            request_id,
            extra={"action": "lock_given_up", "request_id": request_id},
        )
        return ambiguous and self._owns_anyway(request_id)

    def _owns_anyway(self, request_id: str) -> bool:
        self.ambiguous += 1
        _logger.warning(
            "the lock of %s may be ours, but that could not be told: %s (on_ambiguous_lock)",
            request_id,
            "it is run" if self._run_ambiguous else "it is skipped",
            extra={"action": "lock_ambiguous", "request_id": request_id},
        )
        return self._run_ambiguous

    @staticmethod
    def _note(request_id: str, problem: str) -> None:
        _logger.info(
            "asking for the lock of %s failed: %s",
            request_id,
            problem,
            extra={"action": "lock_failed", "request_id": request_id},
        )


def _pause(attempt: int, asked_seconds: float | None) -> float:
    if asked_seconds is not None:
        return min(asked_seconds, LONGEST_PAUSE_SECONDS)
    return random.uniform(0.0, 0.1 * 2**attempt)
