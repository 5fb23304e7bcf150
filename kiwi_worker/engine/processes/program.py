"""The main program of a handler process: loads the worker's handlers, then runs one call after another.

The calls come over one socket, on the main thread; what concerns a call that runs (a cancellation, the end of
the worker) comes over another, on a thread of its own, which ends the process when the worker is gone.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextvars import copy_context
from typing import Any

import msgspec

from kiwi_worker.callables import is_awaitable
from kiwi_worker.context import Context
from kiwi_worker.engine.forks import leave_copy
from kiwi_worker.engine.loop import AsyncExecutor
from kiwi_worker.engine.outcomes import Ending, Outcome, outcome_of
from kiwi_worker.engine.processes.frames import (
    Begun,
    Call,
    Ended,
    Failed,
    Feedback,
    FromWorker,
    Hello,
    Link,
    Logged,
    Ready,
    Stopping,
    Told,
    readable,
)
from kiwi_worker.engine.processes.memory import resident_mib
from kiwi_worker.engine.processes.origin import Loaded, load
from kiwi_worker.engine.processes.records import LinkHandler
from kiwi_worker.engine.runner import call_within
from kiwi_worker.engine.work import Work
from kiwi_worker.errors import DeliberateError, InvalidParameters
from kiwi_worker.orphans import end_with_parent
from kiwi_worker.signals import STOP_SIGNALS, restore_in_copies

__all__ = ["main"]

_logger = logging.getLogger("kiwi_worker.engine")


def main(calls: int, control: int, worker: int) -> None:
    """Serve calls until the worker says no more, or is gone.

    Args:
        calls, control: descriptors of the sockets.
        worker: the process id of the worker.
    """
    _settle_in(worker)
    process = _HandlerProcess(
        Link(socket.socket(fileno=calls), FromWorker), Link(socket.socket(fileno=control), FromWorker)
    )
    process.serve()


def _settle_in(worker: int) -> None:
    # Whether it goes on is the worker's decision, also when a service manager signals all processes at once.
    # A handler, unlike SIG_IGN, is not inherited by what a handler starts.
    for number in STOP_SIGNALS:
        signal.signal(number, _stay)
    restore_in_copies(_do_not_stay)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
    end_with_parent(worker, signal.SIGKILL)


def _stay(number: int, frame: object) -> None:
    """The answer to a stop signal."""


def _do_not_stay() -> None:
    for number in STOP_SIGNALS:
        if signal.getsignal(number) is _stay:
            signal.signal(number, signal.SIG_DFL)


class _HandlerProcess:
    def __init__(self, calls: Link, control: Link) -> None:
        self._calls = calls
        self._control = control
        self._work: Work | None = None
        self._number = 0
        self._listening = True
        self._is_stopping = False
        self._is_copy = False
        self._loaded: Loaded | None = None
        self._loop = AsyncExecutor(
            around=(),
            outcome_of_error=lambda work, error: outcome_of(Ending.RAISED, error),
            finish=lambda work, outcome: None,
            start=_start_thread,
        )
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._copied)

    def serve(self) -> None:
        _start_thread("control", self._watch)
        hello = self._calls.receive()
        if not self._prepare(hello):
            return
        self._calls.send(Ready())
        self._listening = False
        while isinstance(call := self._calls.receive(), Call):
            self._answer(call)
        self._end()

    def _prepare(self, hello: Hello) -> bool:
        sys.argv[:] = hello.arguments
        try:
            self._loaded = loaded = load(hello.origin)
            if not logging.root.handlers:
                logging.root.addHandler(LinkHandler(self._log))
                logging.root.setLevel(hello.log_level)
            loaded.hooks.start(self._loop.call)
        except BaseException as error:  # noqa: BLE001 - whatever it is, the worker is told
            text = f"{type(error).__name__}: {error}"
            self._calls.send(Failed(readable(text), readable(traceback.format_exc())))
            return False
        return True

    def _end(self) -> None:
        assert self._loaded is not None
        self._loaded.hooks.stop()
        self._loop.close()

    # What the worker says meanwhile

    def _watch(self) -> None:
        while (message := self._control.receive()) is not None:
            if isinstance(message, Stopping):
                self._is_stopping = True
            elif isinstance(message, Told):
                self._tell(message)
        # The worker is gone, and with it whoever could use a result.
        os._exit(1)

    def _tell(self, told: Told) -> None:
        work = self._work
        if work is not None and told.number == self._number:
            work.tell(Ending(told.cause))

    # Calls

    def _answer(self, call: Call) -> None:
        work = Work(call.key, call.name, call.params, None)
        work.run = call.run
        if call.seconds_left is not None:
            work.deadline = time.monotonic() + call.seconds_left
        self._is_stopping |= call.is_stopping
        self._number, self._work, self._listening = call.number, work, True
        self._send(Begun(call.number))
        outcome = self._outcome(call, work)
        if self._is_copy:
            leave_copy(None)
        self._work, self._listening = None, False
        self._send(Ended.of(call.number, outcome, resident_mib()))

    def _outcome(self, call: Call, work: Work) -> Outcome:
        assert self._loaded is not None
        definition = self._loaded.definitions.get(call.definition)
        if definition is None:
            text = f"{call.name} is not there in a fresh process: define it when its module is imported"
            return outcome_of(Ending.PROCESS_DIED, text)
        context = None if call.facts is None else self._context(call, work)
        try:
            args, kwargs = definition.plan.bind(call.params, context)
        except InvalidParameters as error:
            return outcome_of(Ending.INVALID_PARAMETERS, error)
        try:
            result = self._call(definition.function, context, args, kwargs)
        except BaseException as error:  # noqa: BLE001 - SystemExit and the like end the call, not the process
            return self._raised(work, error)
        return outcome_of(Ending.RETURNED, result, call.longest_result)

    def _call(self, function: Callable[..., Any], context: Any, args: Any, kwargs: Any) -> Any:
        assert self._loaded is not None
        result = copy_context().run(call_within, self._loaded.around, context, function, args, kwargs)
        return self._loop.call(lambda: _awaited(result)) if is_awaitable(result) else result

    def _raised(self, work: Work, error: BaseException) -> Outcome:
        if self._is_copy:
            leave_copy(error)
        if not isinstance(error, DeliberateError):
            extra = {"action": "handler_raised", "request_id": work.key, "method": work.name}
            _logger.error("the handler of %s raised", work.name, exc_info=error, extra=extra)
        return outcome_of(Ending.RAISED, error)

    def _context(self, call: Call, work: Work) -> Context:
        assert self._loaded is not None
        return self._loaded.context_type._made_of(
            work,
            call.facts or {},
            resources=self._loaded.hooks.resources,
            stopping=lambda: self._is_stopping,
            send_feedback=lambda context, *feedback: self._feedback(call.number, *feedback),
        )

    # What the worker is told meanwhile

    def _feedback(self, number: int, content: Any, kind: int | None, persist: bool) -> None:
        try:
            text = content if isinstance(content, str) else msgspec.json.encode(content).decode()
        except Exception as error:  # noqa: BLE001 - feedback must never fail the method that gives it
            _logger.warning(
                "feedback dropped: it has no JSON form: %s", error, extra={"action": "feedback_dropped"}
            )
            return
        if number == self._number and self._work is not None:
            self._send(Feedback(number, readable(text), kind, persist))

    def _log(self, record: Logged) -> bool:
        if not self._listening or self._is_copy:
            return False
        self._send(record)
        return True

    def _send(self, message: Any) -> None:
        try:
            self._calls.send(message)
        except OSError:
            # Closed by the handler, or by the end of the worker: nobody could use this process any more.
            os._exit(1)

    def _copied(self) -> None:
        """In a copy that a handler made by forking: it is not this process, and must not speak for it."""
        self._is_copy = True
        self._calls.close()
        self._control.close()


def _start_thread(task: str, run: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=run, name=f"handler-process-{task}", daemon=True)
    thread.start()
    return thread


async def _awaited(value: Any) -> Any:
    return await value
