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
from kiwi_worker.engine.processes.frames import Call, Ended, Feedback, Logged, Stopping, Told
from kiwi_worker.engine.processes.origin import Origin
from kiwi_worker.engine.processes.records import write_record
from kiwi_worker.engine.work import Work

__all__ = ["PoolLimits", "ProcessPool"]

_logger = logging.getLogger("kiwi_worker.engine")

START_ATTEMPTS = 2
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
        self._origin = origin
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
            begin: called when a process is there to take the call: from then on its time counts.
        """
        try:
            child = self._take(work)
        except (ChildFailed, OSError) as error:
            return self._not_started(work, error)
        number = next(self._numbers)
        begin()
        try:
            ended = self._converse(child, self._call(number, work, context), work, context)
        finally:
            work.on_told = work.stop = None
            self._release(child)
        if ended is None:
            return self._lost(child, work)
        child.calls += 1
        child.memory_mib = ended.memory_mib
        self._put_back(child)
        return ended.outcome

    def _call(self, number: int, work: Work, context: Context) -> Call:
        served = work.served
        assert served is not None
        left = None if work.deadline is None else max(0.0, work.deadline - time.monotonic())
        return Call(
            number,
            served.definition.key,  # type: ignore[arg-type]
            work.key,
            work.name,
            work.run,
            _params(work.params),
            left,
            context._facts() if served.wants_context else None,
            self._stopping,
            self._limits.longest_result,
        )

    def _converse(self, child: Child, call: Call, work: Work, context: Context) -> Ended | None:
        try:
            child.send(call)
            work.on_told = lambda cause: child.tell(Told(call.number, cause.value))
            if work.cause is not None:
                work.on_told(work.cause)
            while (message := child.receive()) is not None:
                if isinstance(message, Logged):
                    write_record(message)
                elif isinstance(message, Feedback):
                    if message.number == call.number:
                        context.feedback(message.content, message.kind, message.persist)
                elif isinstance(message, Ended) and message.number == call.number:
                    return message
        except OSError:
            pass
        return None

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
                if not error.again or attempt == START_ATTEMPTS or work.cause is not None:
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
        child = Child(self._origin)
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


def _params(params: Any) -> bytes | None:
    if params is None or isinstance(params, bytes):
        return params
    return bytes(params) if isinstance(params, msgspec.Raw) else msgspec.json.encode(params)
