"""A handler process loads a program only to find the handlers: running a worker there ends the loading."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["Reached", "end_loading", "loading"]

_state = {"loading": False}


class Reached(BaseException):
    """The program came to the point where it runs a worker; all its handlers are defined by then."""


def end_loading() -> None:
    """Called where a worker is started: nothing happens, unless the program is only loaded.

    Raises:
        Reached: it is only loaded.
    """
    if _state["loading"]:
        raise Reached


@contextmanager
def loading() -> Iterator[None]:
    """Load a program in this block; one that runs a worker without a `__main__` guard is left there."""
    _state["loading"] = True
    try:
        yield
    except Reached:
        pass
    finally:
        _state["loading"] = False
