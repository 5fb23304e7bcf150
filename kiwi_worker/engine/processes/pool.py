"""The handler processes of a worker: kept from call to call, replaced when they die or have served enough."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from kiwi_worker.context import Context
from kiwi_worker.engine.outcomes import Ending, Outcome, outcome_of
from kiwi_worker.engine.processes.child import Child, ChildFailed
from kiwi_worker.engine.processes.frames import Begun, Call, Ended, Feedback, Logged, Stopping, Told
from kiwi_worker.engine.processes.origin import Origin
from kiwi_worker.engine.processes.records import write_record
from kiwi_worker.engine.processes.starter import Starter
from kiwi_worker.engine.work import Served, Work

__all__ = ["PoolLimits", "ProcessPool"]

_logger = logging.getLogger("kiwi_worker.engine")

ATTEMPTS = 3
"""How many processes a call is offered, when they end before they have taken it."""
RETIRE_SECONDS = 10.0
"""How long a process that is replaced may take over its stop hooks."""
LOOK_SECONDS = 0.02


class PoolLimits(NamedTuple):
    """The numbers a pool is held to; what they mean is in the settings of these names.

    Attributes:
        size: how many idle processes are kept; how many there are at all is up to the caller.
        recycle_calls: after how many calls a process is replaced; None for never.
        recycle_mib: above how much resident memory a process is replaced; None for never.
        longest_result: the most bytes a result may have; None for no limit.
    """

    size: int
    recycle_calls: int | None = None
    recycle_mib: int | None = None
    longest_result: int | None = None


class ProcessPool:
    """Runs calls in processes; each is waited for on the caller's thread.

    Args:
        origin: where a process finds the worker.
        limits: the numbers.
    """

    def __init__(self, origin: Origin, limits: PoolLimits) -> None:
        self._starter = Starter(lambda: Child(origin))
        self._limits = limits
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._idle: list[Child] = []
        self._busy: set[Child] = set()
        self._retiring: list[tuple[float, Child]] = []
        self._stopping = False
        self._closed = False
        self.started = 0
        self.died = 0

    def run(self, work: Work, context: Context, begin: Callable[[], None]) -> Outcome:
        """Run one call and give its outcome; whatever ends the process is the outcome of this call alone.

        Args:
            work: the call; stopping it kills the process.
            context: feedback goes through it, and the process makes its own like it.
            begin: called when a process has taken the call: from then on its time counts.
        """
        for attempt in itertools.count(1):
            try:
                child = self._take(work)
            except (ChildFailed, OSError) as error:
                return self._not_started(work, error)
            talk = _Talk(child, self._call(work, context), work, context, begin)
            try:
                ended = talk.hold()
            finally:
                work.on_told = work.stop = None
                self._release(child)
            if ended is not None:
                child.calls += 1
                child.memory_mib = ended.memory_mib
                self._put_back(child)
                return ended.outcome
            lost = self._lost(child, work)
            if talk.begun or attempt == ATTEMPTS or work.cause is not None:
                return lost
        raise AssertionError

    def _call(self, work: Work, context: Context) -> Call:
        served = work.served
        assert served is not None
        return Call(
            next(self._numbers),
            served.definition.key,  # type: ignore[arg-type]
            work.key,
            work.name,
            work.run,
            _params(work.params),
            _seconds_left(work, served),
            context._facts() if served.wants_context else None,
            self._stopping,
            self._limits.longest_result,
        )

    def _take(self, work: Work) -> Child:
        for attempt in itertools.count(1):
            child = self._idle_child() or self._new_child()
            with self._lock:
                self._busy.add(child)
            work.stop = child.kill
            if work.cause is not None or self._closed:
                child.kill()
            try:
                child.get_ready()
            except ChildFailed as error:
                self._release(child)
                child.discard()
                if not error.again or attempt == ATTEMPTS or work.cause is not None:
                    work.stop = None
                    raise
            else:
                return child
        raise AssertionError

    def _idle_child(self) -> Child | None:
        while True:
            with self._lock:
                self._see_off()
                child = self._idle.pop() if self._idle else None
            if child is None or child.is_alive:
                return child
            self._note_death(child.death(), "an idle handler process")
            child.discard()

    def _new_child(self) -> Child:
        self.started += 1
        child = self._starter.start()
        _logger.debug("handler process %d started", child.pid, extra={"action": "handler_process_started"})
        return child

    def _release(self, child: Child) -> None:
        with self._lock:
            self._busy.discard(child)

    def _put_back(self, child: Child) -> None:
        with self._lock:
            if self._closed or self._is_worn(child) or len(self._idle) >= self._limits.size:
                child.retire()
                self._retiring.append((time.monotonic() + RETIRE_SECONDS, child))
            else:
                self._idle.append(child)

    def _is_worn(self, child: Child) -> bool:
        limits = self._limits
        if limits.recycle_calls is not None and child.calls >= limits.recycle_calls:
            return True
        return limits.recycle_mib is not None and child.memory_mib > limits.recycle_mib

    def _see_off(self) -> None:
        now = time.monotonic()
        for entry in list(self._retiring):
            end, child = entry
            if now > end or not child.is_alive:
                self._retiring.remove(entry)
                child.discard()

    # Endings

    def _lost(self, child: Child, work: Work) -> Outcome:
        text = child.death()
        child.discard()
        if work.cause is not None:
            return outcome_of(work.cause)
        self._note_death(text, f"the handler process of {work.name}", work)
        return outcome_of(Ending.PROCESS_DIED, f"the handler's process died: {text}")

    def _note_death(self, text: str, who: str, work: Work | None = None) -> None:
        self.died += 1
        extra = {"action": "handler_process_died"}
        if work is not None:
            extra.update(request_id=work.key, method=work.name)
        _logger.error("%s died: %s", who, text, extra=extra)

    def _not_started(self, work: Work, error: Exception) -> Outcome:
        if work.cause is not None:
            return outcome_of(work.cause)
        trace = getattr(error, "traceback", "")
        _logger.error(
            "a handler process did not start: %s%s",
            error,
            f"\n{trace}" if trace else "",
            extra={"action": "handler_process_failed", "request_id": work.key, "method": work.name},
        )
        return outcome_of(Ending.PROCESS_DIED, f"the handler's process did not start: {error}")

    # Shutdown

    def stop(self) -> None:
        """Let the handlers that run see that the worker shuts down."""
        with self._lock:
            self._stopping = True
            busy = list(self._busy)
        for child in busy:
            child.tell(Stopping())

    def close(self, seconds: float) -> None:
        """End all processes: idle ones may take so long for their stop hooks; those that run are killed."""
        with self._lock:
            self._closed = True
            for child in self._busy:
                child.kill()
            for child in self._idle:
                child.retire()
            leaving = [*self._idle, *(child for _, child in self._retiring)]
            self._idle.clear()
            self._retiring.clear()
        end = time.monotonic() + seconds
        while any(child.is_alive for child in leaving) and time.monotonic() < end:
            time.sleep(LOOK_SECONDS)
        for child in leaving:
            child.discard()
        self._starter.close()


class _Talk:
    """What is said about one call.

    Attributes:
        begun: whether the process took it.
    """

    def __init__(
        self, child: Child, call: Call, work: Work, context: Context, begin: Callable[[], None]
    ) -> None:
        self.begun = False
        self._child = child
        self._call = call
        self._work = work
        self._context = context
        self._begin = begin

    def hold(self) -> Ended | None:
        """Give the process its call and hear it out; None when it is gone without an end."""
        child, number = self._child, self._call.number
        try:
            child.send(self._call)
            while (message := child.receive()) is not None:
                if isinstance(message, Ended) and message.number == number:
                    return message
                self._hear(message, number)
        except OSError:
            pass  # it is gone
        return None

    def _hear(self, message: Any, number: int) -> None:
        if isinstance(message, Logged):
            write_record(message)
        elif message.number != number:
            pass  # left over from the call before
        elif isinstance(message, Begun):
            self.begun = True
            self._work.on_told = self._tell
            self._begin()
            if self._work.cause is not None:
                self._tell(self._work.cause)
        elif isinstance(message, Feedback):
            self._context.feedback(message.content, message.kind, message.persist)

    def _tell(self, cause: Ending) -> None:
        self._child.tell(Told(self._call.number, cause.value))


def _seconds_left(work: Work, served: Served) -> float | None:
    limits = [] if served.time_limit is None else [served.time_limit]
    if work.outer_deadline is not None:
        limits.append(max(0.0, work.outer_deadline - time.monotonic()))
    return min(limits, default=None)


def _params(params: Any) -> bytes | None:
    if params is None or isinstance(params, bytes):
        return params
    return bytes(params) if isinstance(params, msgspec.Raw) else msgspec.json.encode(params)
