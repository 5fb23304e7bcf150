"""When to drain, and what a drain brought (protocol page, "The request loop", step 1)."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence

import msgspec

from kiwi_worker.engine.stamps import Streak
from kiwi_worker.errors import Ambiguous, KiwiWorkerError, ProtocolError
from kiwi_worker.kiwi.messages import elements_of, salvage
from kiwi_worker.kiwi.session import Lane
from kiwi_worker.transport import Answer, Backoff, is_transient, retry_after_seconds

__all__ = ["DrainCounters", "Draining"]

_logger = logging.getLogger("kiwi_worker.kiwi")

PATH = "/worker/messages"
READ_MARGIN_SECONDS = 15.0
TOKEN_SECONDS = 60.0
"""What a drain may take beyond its own limit: to connect, and to get a new token."""
QUICK_SECONDS = 0.2
"""A wait that ends empty sooner than this did not hang."""


class DrainCounters:
    """What drains came to; plain numbers that only grow."""

    __slots__ = ("cut", "drains", "failed", "messages", "unwoken")

    def __init__(self) -> None:
        self.drains = 0
        self.messages = 0
        self.failed = 0
        self.cut = 0
        self.unwoken = 0


class Draining:
    """Brings batches of undecoded messages, in lazy or eager mode.

    A drain empties the queue, so it is never repeated blindly: what a broken-off answer may have lost is
    counted as a cut drain, and what came of it whole is handled.

    Args:
        wait_seconds: N of `?wait=N` in eager mode; None in lazy mode.
        interval_seconds: in lazy mode, the longest time between two drains when no probe comes.

    Attributes:
        counters: what drains came to.
        failing: drains that fail, since the last that did not.
        longest_seconds: how long the `receive` that is under way may take.
    """

    def __init__(self, wait_seconds: float | None, interval_seconds: float) -> None:
        self._wait = wait_seconds
        self._interval = interval_seconds
        self._path = PATH if wait_seconds is None else f"{PATH}?wait={wait_seconds:g}"
        self._read_timeout = (wait_seconds or 0.0) + READ_MARGIN_SECONDS
        self._changed = threading.Condition()
        # A lazy worker drains at start, since it cannot know what came before it.
        self._woken = True
        self._stopped = False
        self._failures = Backoff(0.2, 5.0)
        self._empties = Backoff(0.1, 1.0)
        self._probed = False
        self._unwoken = False
        self._warned = False
        self._pause = 0.0
        self._out_of_reach = False
        self.counters = DrainCounters()
        self.failing = Streak()
        self.longest_seconds = self._longest_seconds(0.0)

    def wake(self) -> None:
        """A probe arrived: drain, now or again after the drain that is under way."""
        with self._changed:
            self._woken = self._probed = True
            self._out_of_reach = False
            self._changed.notify_all()

    def reached(self) -> None:
        """The middleware answered some call: a pause after a drain that did not reach it is over."""
        if self._out_of_reach:
            with self._changed:
                self._out_of_reach = False
                self._changed.notify_all()

    def stop(self) -> None:
        """End every wait; nothing is drained from here on."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def receive(self, lane: Lane) -> Sequence[bytes | msgspec.Raw]:
        """Wait until it is time, and drain once; empty when nothing came of it."""
        self.longest_seconds = self._longest_seconds(self._pause)
        if not self._await_turn():
            return []
        since = time.monotonic()
        self._pause = 0.0
        batch = self._drain(lane)
        if batch or time.monotonic() - since >= QUICK_SECONDS:
            self._empties.reset()
        elif self._wait is not None and not self._pause:
            self._pause = self._empties.next()
        return batch

    def _longest_seconds(self, pause_seconds: float) -> float:
        interval = self._interval if self._wait is None else 0.0
        # With a new token the call is made once more.
        return pause_seconds + interval + 2 * self._read_timeout + TOKEN_SECONDS

    def _await_turn(self) -> bool:
        with self._changed:
            if self._pause:
                self._changed.wait_for(self._pause_is_over(), self._pause)
            if self._wait is None:
                self._changed.wait_for(lambda: self._woken or self._stopped, self._interval)
            self._unwoken = self._wait is None and not self._woken
            self._woken = False
        self.counters.unwoken += self._unwoken
        return not self._stopped

    def _pause_is_over(self) -> Callable[[], bool]:
        waits_for_contact = self._out_of_reach
        return lambda: self._stopped or (waits_for_contact and not self._out_of_reach)

    def _drain(self, lane: Lane) -> Sequence[bytes | msgspec.Raw]:
        try:
            answer = lane.call("GET", self._path, read_timeout=self._read_timeout)
            return self._read(answer)
        except Ambiguous as error:
            return self._read_cut(error)
        except KiwiWorkerError as error:
            self._fail(str(error), out_of_reach=True)
        return []

    def _read(self, answer: Answer) -> Sequence[bytes | msgspec.Raw]:
        if not 200 <= answer.status < 300:
            asked = retry_after_seconds(answer) if is_transient(answer.status) else None
            self._fail(f"answered with {answer.status}", asked)
            return []
        try:
            batch: Sequence[bytes | msgspec.Raw] = elements_of(answer.body)
        except ProtocolError as error:
            self._fail(str(error))
            return []
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            batch = self._salvaged(answer.body, "its JSON is broken")
        self._failures.reset()
        self.failing.succeed()
        self.counters.drains += 1
        self._note(batch)
        return batch

    def _read_cut(self, error: Ambiguous) -> Sequence[bytes | msgspec.Raw]:
        if self._stopped and not error.partial_body:
            return []
        self._fail(str(error), out_of_reach=True)
        if error.status is not None and error.status != 200:
            return []
        batch = self._salvaged(error.partial_body, str(error))
        self._note(batch)
        return batch

    def _salvaged(self, body: bytes, problem: str) -> Sequence[bytes | msgspec.Raw]:
        batch, lost = salvage(body)
        self.counters.cut += 1
        _logger.error(
            "cut drain: %d messages were read, %d bytes after them are lost, maybe more that never came: %s",
            len(batch),
            lost,
            problem,
            extra={"action": "cut_drain"},
        )
        return batch

    def _note(self, batch: Sequence[bytes | msgspec.Raw]) -> None:
        self.counters.messages += len(batch)
        if batch and self._unwoken and not self._probed and not self._warned:
            self._warned = True
            _logger.warning(
                "a drain found %d messages, but no probe ever came: is the registered ip and port reachable "
                "from the middleware, over UDP or TCP?",
                len(batch),
                extra={"action": "never_probed"},
            )

    def _fail(self, problem: str, asked_seconds: float | None = None, *, out_of_reach: bool = False) -> None:
        self.counters.failed += 1
        self.failing.fail(problem)
        self._pause = self._failures.next() if asked_seconds is None else asked_seconds
        with self._changed:
            # A wake stays pending until a drain succeeded.
            self._woken = True
            self._out_of_reach = out_of_reach
        if not self._stopped:
            _logger.warning(
                "drain failed, next try in %.1f s: %s", self._pause, problem, extra={"action": "drain_failed"}
            )
