"""A handler may fork. The copy is not the worker, although it has its memory and its connections.

The copy usually ends inside the handler. When it comes out of it, by a return or an exception, it must end
there: going on, it would answer the message a second time, over a connection it shares with the worker.
"""

from __future__ import annotations

import os
import sys
import traceback
import weakref
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kiwi_worker.engine.outcomes import Outcome
    from kiwi_worker.engine.runner import Runner
    from kiwi_worker.engine.work import Work

__all__ = ["leave_copy", "watch_forks"]

_runners: weakref.WeakSet[Runner] = weakref.WeakSet()
_state = {"registered": False}


def watch_forks(runner: Runner) -> None:
    """From now on a copy of this process ends where it comes out of a handler of this runner."""
    _runners.add(runner)
    if not _state["registered"] and hasattr(os, "register_at_fork"):
        _state["registered"] = True
        os.register_at_fork(after_in_child=_disown_all)


def _disown_all() -> None:
    for runner in list(_runners):
        # On the instance, so that the worker's own calls pay nothing for it.
        runner.outcome_of_error = _leave_by_error  # type: ignore[method-assign]
        runner.finish = _leave_by_return  # type: ignore[method-assign]


def _leave_by_return(work: Work, outcome: Outcome, lane: Any = None) -> None:
    leave_copy(None)


def _leave_by_error(work: Work, error: BaseException) -> Outcome:
    leave_copy(error)
    raise AssertionError


def leave_copy(error: BaseException | None) -> None:
    """End this copy the way a program ends that raises this, or nothing."""
    status = 0
    if isinstance(error, SystemExit):
        code = error.code
        status = code if isinstance(code, int) else int(code is not None)
    elif error is not None:
        status = 1
        traceback.print_exception(error)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):
            pass  # closed, or there is none
    os._exit(status & 0xFF)
