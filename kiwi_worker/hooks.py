"""What runs once per process around all work: start hooks, stop hooks and shared resources."""

from __future__ import annotations

import contextlib
import inspect
import logging
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from kiwi_worker.callables import is_async
from kiwi_worker.context import Resources
from kiwi_worker.errors import DefinitionError, HookError

__all__ = ["Hooks"]

_logger = logging.getLogger("kiwi_worker.engine")

Function = TypeVar("Function", bound=Callable[..., Any])
RunAsync = Callable[[Callable[[], Any]], Any]


class Hooks:
    """The hooks of one worker, and the resources they made.

    Attributes:
        resources: what resource hooks gave, by name; handlers see it as `context.resources`.
    """

    def __init__(self) -> None:
        self.resources = Resources()
        self._starters: list[tuple[str, Callable[..., Any]]] = []
        self._stop_hooks: list[Callable[..., Any]] = []
        self._undo: list[tuple[str, Callable[[], Any]]] = []

    def on_start(self, function: Function) -> Function:
        """Run a function before the worker connects; it may take the resources, and may be async."""
        self._starters.append(("", function))
        return function

    def on_stop(self, function: Function) -> Function:
        """Run a function when the worker has stopped; it may take the resources, and may be async."""
        self._stop_hooks.append(function)
        return function

    def resource(self, function: Function) -> Function:
        """Make a resource of a generator function: what it yields is the resource of its name.

        What comes after the `yield` runs when the worker has stopped, in the opposite order of the starts.
        """
        if not (inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)):
            raise DefinitionError(f"resource `{function.__name__}`: it has to yield the resource, once")
        self._starters.append((function.__name__, function))
        return function

    def functions(self) -> list[Callable[..., Any]]:
        """Every hook."""
        return [hook for _, hook in self._starters] + self._stop_hooks

    def start(self, run_async: RunAsync) -> None:
        """Run the start hooks, in order; when one raises, those before it are undone.

        Raises:
            HookError: a hook raised.
        """
        self._undo = []
        for name, hook in self._starters:
            try:
                self._start_one(name, hook, run_async)
            except BaseException as error:
                self.stop()
                raise HookError(
                    f"start hook `{_name(hook)}` raised {type(error).__name__}: {error}"
                ) from error
        # What is added last runs first: stop hooks find the resources as the handlers did.
        self._undo += [(_name(hook), partial(self._call, hook, run_async)) for hook in self._stop_hooks]

    def _start_one(self, name: str, hook: Callable[..., Any], run_async: RunAsync) -> None:
        if not name:
            self._call(hook, run_async)
        elif inspect.isasyncgenfunction(hook):
            manager = contextlib.asynccontextmanager(hook)(*self._arguments(hook))
            self.resources[name] = run_async(manager.__aenter__)
            self._undo.append((name, lambda: run_async(lambda: manager.__aexit__(None, None, None))))
        else:
            plain = contextlib.contextmanager(hook)(*self._arguments(hook))
            self.resources[name] = plain.__enter__()
            self._undo.append((name, lambda: plain.__exit__(None, None, None)))

    def stop(self) -> None:
        """Run the stop hooks, then end the resources, the last first; what raises is logged."""
        while self._undo:
            name, undo = self._undo.pop()
            try:
                undo()
            except BaseException:  # a SystemExit must not cost the others their end
                _logger.exception("stop hook %s raised", name, extra={"action": "stop_hook_raised"})
        self.resources.clear()

    def _call(self, hook: Callable[..., Any], run_async: RunAsync) -> None:
        arguments = self._arguments(hook)
        if is_async(hook):
            run_async(lambda: hook(*arguments))
        else:
            hook(*arguments)

    def _arguments(self, hook: Callable[..., Any]) -> tuple[Any, ...]:
        return (self.resources,) if inspect.signature(hook).parameters else ()


def _name(hook: Callable[..., Any]) -> str:
    return getattr(hook, "__name__", repr(hook))
