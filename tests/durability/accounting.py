"""What became of every call: one result, or one error that names the cause, within its time to live."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable

from kiwi_worker.client import Client, Outcome

__all__ = ["CAUSES", "Caller"]

CAUSES = ("died", "expired", "time to live", "before shutdown", "stopp", "not run")
SLACK_SECONDS = 10.0


class Caller:
    """Calls `work` with one number after another, on a thread of its own, and takes account of the endings.

    Args:
        client: of the middleware.
        seconds_between: between two calls.
        time_to_live: of each call, in seconds.
        locked: which of the numbers are called with a lock.
        most_open: how many calls may be under way; with so many, those that ended are taken account of first.
    """

    def __init__(
        self,
        client: Client,
        *,
        seconds_between: float,
        time_to_live: float,
        locked: Callable[[int], bool] = lambda number: number % 3 == 0,
        most_open: int = 50,
    ) -> None:
        self._client = client
        self._between = seconds_between
        self._time_to_live = time_to_live
        self._locked = locked
        self._most_open = most_open
        self._open: dict[str, tuple[int, float]] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._call, name="caller")
        self.numbers: dict[str, int] = {}
        self.called = 0
        self.endings: Counter[str] = Counter()
        self.wrong: list[str] = []

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Call nothing more."""
        self._stop.set()
        self._thread.join()

    def _call(self) -> None:
        while not self._stop.wait(self._between):
            if len(self._open) >= self._most_open:
                self.settle()
                continue
            number = self.called
            request_id = self._client.start(
                "work", [number], time_to_live=self._time_to_live, lock=self._locked(number)
            )
            self.called += 1
            self._open[request_id] = number, time.monotonic()

    def settle(self, *, all_of_them: bool = False) -> None:
        """Take account of calls that have ended; of all, if need be by waiting for them."""
        for request_id, (number, since) in list(self._open.items()):
            left = self._time_to_live + SLACK_SECONDS - (time.monotonic() - since)
            if all_of_them:
                outcome = self._client.wait(request_id, timeout=max(0.01, left))
            else:
                outcome = self._client.fetch(request_id)
            ended = outcome.ended
            # Two threads may look at the same call; one of them takes account of it.
            if not (ended or left <= 0 or all_of_them) or self._open.pop(request_id, None) is None:
                continue
            if ended:
                self._take(number, outcome)
            else:
                self.wrong.append(f"call {number} has not ended {-left:.1f} s after its time: {outcome}")

    def check(self, least_share: float = 0.8) -> None:
        """Every call ended, once, with a right result or with a cause, and this share with a result."""
        print(self.called, self.endings)
        assert self.wrong == []
        assert sum(self.endings.values()) == self.called
        assert self.endings["success"] > least_share * self.called, self.endings

    def _take(self, number: int, outcome: Outcome) -> None:
        if outcome.status == "success":
            self.endings["success"] += 1
            if outcome.result != number:
                self.wrong.append(f"call {number} has another one's result: {outcome}")
            return
        text = f"{outcome.reason or ''} {outcome.error_text or ''}"
        self.endings[next((cause for cause in CAUSES if cause in text), "unknown")] += 1
        if not any(cause in text for cause in CAUSES):
            self.wrong.append(f"call {number} ended without a cause: {outcome}")
