"""Child processes for handlers, kept from call to call, replaced when they die or have served enough."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from time import monotonic
from typing import Any

import msgspec

from kiwi_worker.engine.outcomes import Ending, Outcome, outcome_of
from kiwi_worker.engine.processes.child import main
from kiwi_worker.engine.processes.frames import Call, Told, decode_reply, encode, outcome_in
from kiwi_worker.engine.work import Work
from kiwi_worker.methods import HandlerDefinition

__all__ = ["ProcessPool"]

_logger = logging.getLogger("kiwi_worker.engine")

MIB = 1024 * 1024


class _Child:
    """One process, which serves one handler."""

    def __init__(self, definition: HandlerDefinition) -> None:
        # Always fresh: a fork of a process with threads may inherit locks that nobody will ever release.
        context = get_context("spawn")
        self.connection, far = context.Pipe()
        self.process = context.Process(
            target=main, args=(far, definition, os.getpid()), name=f"handler-{definition.name}", daemon=True
        )
        self.process.start()
        far.close()
        self.calls = 0

    def resident_mib(self) -> float:
        """Its resident memory; 0 where it cannot be told."""
        try:
            pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        except (OSError, ValueError, IndexError):
            return 0.0
        return pages * os.sysconf("SC_PAGE_SIZE") / MIB

    def end(self) -> None:
        """Kill it, if it is still there, and forget it."""
        self.process.kill()
        self.process.join()
        self.connection.close()

    def death(self) -> str:
        """How it ended."""
        self.process.join(1)
        status = self.process.exitcode
        if status is None:
            return "its process closed the connection to the worker"
        if status < 0:
            return f"its process was killed by {signal.Signals(-status).name}"
        return f"its process ended with status {status}"


class ProcessPool:
    """Runs calls in children; the caller's thread waits, which is what limits how many there are.

    Args:
        idle_limit: how many idle children are kept.
        recycle_calls: after how many calls a child is replaced; None for never.
        recycle_mib: above how much resident memory a child is replaced; None for never.
    """

    def __init__(self, idle_limit: int, recycle_calls: int | None, recycle_mib: int | None) -> None:
        self._idle_limit = idle_limit
        self._recycle_calls = recycle_calls
        self._recycle_mib = recycle_mib
        self._lock = threading.Lock()
        self._idle: dict[str, list[_Child]] = {}
        self._closed = False

    def run(self, work: Work, context: Callable[[], Any]) -> Outcome:
        """Run one call and give its outcome; whatever ends the child is the outcome of this call alone.

        Args:
            work: the call; stopping it kills the child.
            context: makes the context that feedback goes through; asked when the first feedback comes.
        """
        assert work.served is not None
        try:
            child = self._take(work.served.definition)
        except Exception as error:  # noqa: BLE001 - whatever keeps a child from starting is this call's outcome
            return outcome_of(Ending.PROCESS_DIED, f"its process could not be started: {error}")
        work.stop = child.process.kill
        if work.cause is not None:
            child.process.kill()
        outcome = self._converse(child, work, context)
        work.stop = None
        if outcome is None:
            text = child.death()
            child.end()
            cause = work.cause
            return outcome_of(Ending.PROCESS_DIED, text) if cause is None else outcome_of(cause)
        self._put_back(work.served.definition, child)
        return outcome

    def _converse(self, child: _Child, work: Work, context: Callable[[], Any]) -> Outcome | None:
        """Send the call and read until its outcome; None when the child is gone."""
        handler_context = None
        try:
            child.connection.send_bytes(encode(_call(work)))
            while True:
                reply = decode_reply(child.connection.recv_bytes())
                if not isinstance(reply, Told):
                    break
                handler_context = handler_context or context()
                handler_context.feedback(reply.content, type=reply.kind, persist=reply.persist)
        except (EOFError, OSError, msgspec.MsgspecError):
            return None
        child.calls += 1
        if reply.traceback:
            _logger.error(
                "the handler of %s raised in its process\n%s",
                work.name,
                reply.traceback,
                extra={"action": "handler_raised", "request_id": work.key, "method": work.name},
            )
        return outcome_in(reply)

    def _take(self, definition: HandlerDefinition) -> _Child:
        with self._lock:
            idle = self._idle.get(definition.name)
            while idle:
                child = idle.pop()
                if child.process.is_alive():
                    return child
                child.end()
        return _Child(definition)

    def _put_back(self, definition: HandlerDefinition, child: _Child) -> None:
        with self._lock:
            kept = sum(map(len, self._idle.values()))
            if not self._closed and kept < self._idle_limit and not self._is_worn(child):
                self._idle.setdefault(definition.name, []).append(child)
                return
        child.end()

    def _is_worn(self, child: _Child) -> bool:
        if self._recycle_calls is not None and child.calls >= self._recycle_calls:
            return True
        return self._recycle_mib is not None and child.resident_mib() > self._recycle_mib

    def close(self) -> None:
        """End every idle child; those that still run a call end with it."""
        with self._lock:
            self._closed = True
            idle = [child for children in self._idle.values() for child in children]
            self._idle.clear()
        for child in idle:
            child.end()


def _call(work: Work) -> Call:
    left = None if work.deadline is None else max(0.0, work.deadline - monotonic())
    params = work.params if isinstance(work.params, msgspec.Raw) else msgspec.Raw(work.params or b"null")
    return Call(work.key, work.name, params, work.run, left)
