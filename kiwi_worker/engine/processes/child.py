"""The main program of a child process: waits for calls of one handler, runs them, answers."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import signal
import sys
import time
import traceback
from multiprocessing.connection import Connection
from typing import Any

from kiwi_worker.context import ApplicationSettings, Context, Resources
from kiwi_worker.engine.outcomes import Ending, Outcome, outcome_of
from kiwi_worker.engine.processes.frames import Call, Done, Told, decode_call, encode
from kiwi_worker.engine.work import Work
from kiwi_worker.errors import DeliberateError, InvalidParameters
from kiwi_worker.methods import HandlerDefinition

__all__ = ["main"]

PR_SET_PDEATHSIG = 1


def main(connection: Connection, definition: HandlerDefinition, parent: int) -> None:
    """Serve calls until the parent closes its end, or is gone."""
    _settle_in(parent)
    while True:
        try:
            call = decode_call(connection.recv_bytes())
        except (EOFError, OSError):
            return
        done = _run(connection, definition, call)
        with contextlib.suppress(OSError):
            connection.send_bytes(encode(done))


def _settle_in(parent: int) -> None:
    # A terminal's Ctrl-C reaches every process of its group: what runs is the parent's to end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)


def _run(connection: Connection, definition: HandlerDefinition, call: Call) -> Done:
    work = Work(call.key, call.name, bytes(call.params), None)
    work.run = call.run
    if call.seconds_left is not None:
        work.deadline = time.monotonic() + call.seconds_left
    trace = ""
    try:
        args, kwargs = definition.plan.bind(work.params, _context(work, connection))
    except InvalidParameters as error:
        return Done.of(outcome_of(Ending.INVALID_PARAMETERS, error), trace)
    outcome: Outcome
    try:
        outcome = outcome_of(Ending.RETURNED, definition.function(*args, **kwargs))
    except BaseException as error:  # noqa: BLE001 - SystemExit and the like end the call, not the process
        outcome = outcome_of(Ending.RAISED, error)
        trace = "" if isinstance(error, DeliberateError) else traceback.format_exc()
    return Done.of(outcome, trace)


def _context(work: Work, connection: Connection) -> Context:
    def tell(context: Context, content: Any, kind: int | None, persist: bool) -> None:
        try:
            frame = encode(Told(content, kind, persist))
        except Exception:  # noqa: BLE001 - feedback must never fail the method that gives it
            logging.getLogger("kiwi_worker.handler").warning("feedback has no JSON form and is dropped")
            return
        with contextlib.suppress(OSError):
            connection.send_bytes(frame)

    return Context(
        work,
        request_id=work.key,
        settings=ApplicationSettings(),
        resources=Resources(),
        stopping=lambda: False,
        send_feedback=tell,
    )
