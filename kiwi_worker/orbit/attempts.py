"""The attempts this worker holds: found by what they are, and by every token they were delivered under."""

from __future__ import annotations

import threading
from collections.abc import Callable

import cachetools

from kiwi_worker.engine.outcomes import Outcome
from kiwi_worker.engine.work import Work
from kiwi_worker.orbit.sessions import Session
from kiwi_worker.orbit.wire import Assignment

__all__ = ["Attempts", "Delivery"]

Key = tuple[str, str, int]

REMEMBER_CANCELS_SECONDS = 60.0
MOST_CANCELS = 10_000


class Delivery:
    """One attempt as it was handed to us.

    Attributes:
        assignment: as it came first.
        tokens: each token it came under, with the session it came to.
    """

    __slots__ = ("assignment", "tokens")

    def __init__(self, assignment: Assignment, session: Session) -> None:
        self.assignment = assignment
        self.tokens = [(assignment.token, session)]

    @property
    def key(self) -> Key:
        """What an attempt is the same by; a redelivery keeps it."""
        return self.assignment.execution_id, self.assignment.step_id, self.assignment.attempt


class Attempts:
    """From the poll that brings an attempt to the final answer to its report."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: dict[Key, Work] = {}
        self._by_token: dict[str, Work] = {}
        self._unanswered: dict[str, tuple[Key, Session]] = {}
        self._outcomes: dict[Key, Outcome] = {}
        self._cancelled: cachetools.TTLCache[str, bool] = cachetools.TTLCache(
            MOST_CANCELS, REMEMBER_CANCELS_SECONDS
        )
        self._any_cancelled = False

    def take_in(
        self, delivery: Delivery, make_work: Callable[[Delivery, Outcome | None], Work]
    ) -> tuple[Work | None, Work | None]:
        """Take in what a poll brought.

        Args:
            delivery: with its first token.
            make_work: makes the work; with an outcome that is known already, work which only reports it.

        Returns:
            What is to be run, None when it runs already; and what is to be cancelled at once, if anything.
        """
        (token, session), key = delivery.tokens[0], delivery.key
        session.tokens.add(token)
        with self._lock:
            held = self._held.get(key)
            if held is None:
                work = self._held[key] = make_work(delivery, self._outcomes.get(key))
            else:
                work = held
                work.delivery.tokens.append((token, session))
            self._by_token[token] = work
            cancelled = self._any_cancelled and self._cancelled.pop(token, False)
        return (work if held is None else None), (work if cancelled else None)

    def cancelled(self, token: str) -> Work | None:
        """The work of a token that is to be cancelled; one not seen yet is remembered for a minute."""
        with self._lock:
            work = self._by_token.get(token)
            if work is None and token not in self._unanswered:
                self._cancelled[token] = self._any_cancelled = True
            return work

    def ended(self, delivery: Delivery, outcome: Outcome) -> list[str]:
        """The attempt has its outcome, which is reported under every token it came under."""
        key = delivery.key
        with self._lock:
            self._held.pop(key, None)
            self._outcomes[key] = outcome
            for token, session in delivery.tokens:
                self._by_token.pop(token, None)
                self._unanswered[token] = key, session
            return [token for token, _ in delivery.tokens]

    def answered(self, token: str) -> Session | None:
        """A token is done with; gives the session it came to."""
        with self._lock:
            key, session = self._unanswered.pop(token, (None, None))
            if key is not None:
                self._outcomes.pop(key, None)
            return session
