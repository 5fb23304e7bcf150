"""What a callable is: plain, async, a generator; where it is defined and how it is called.

Decided from the callable itself, once, when a handler is defined. A plain function that happens to return an
awaitable cannot be told from the outside; `is_awaitable` looks at what it returned.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from typing import Any

from kiwi_worker.errors import DefinitionError

__all__ = [
    "closure_of",
    "doc_of",
    "globals_of",
    "is_async",
    "is_awaitable",
    "name_of",
    "place_of",
    "require_handler",
]

_NEVER_AWAITABLE = frozenset({type(None), bool, bytes, dict, float, int, list, set, str, tuple})


def is_async(function: Callable[..., Any]) -> bool:
    """Whether calling it gives a coroutine: async functions, partials and bound methods of one, objects whose
    `__call__` is async, functions marked as coroutine functions."""
    return any(_gives_coroutine(layer) for layer in _layers(function))


def is_awaitable(value: object) -> bool:
    """Whether what a plain function returned has to be awaited; costs next to nothing for plain data."""
    return type(value) not in _NEVER_AWAITABLE and inspect.isawaitable(value)


def name_of(function: Callable[..., Any]) -> str:
    """The bare name of a function (of the inner one for a partial), "" when it has none of its own."""
    while isinstance(function, functools.partial):
        function = function.func
    name = getattr(function, "__name__", "")
    return name if isinstance(name, str) and name != "<lambda>" else ""


def doc_of(function: Callable[..., Any]) -> str:
    """The docstring of a function (of the inner one for a partial), "" when it has none."""
    while isinstance(function, functools.partial):
        function = function.func
    return inspect.getdoc(function) or ""


def place_of(function: Callable[..., Any]) -> str:
    """Where a callable is defined, for messages: `module.qualified_name (file:line)`."""
    innermost = _innermost(function)
    name = getattr(innermost, "__qualname__", type(innermost).__qualname__)
    place = f"{getattr(innermost, '__module__', None) or '?'}.{name}"
    code = getattr(innermost, "__code__", None)
    return f"{place} ({code.co_filename}:{code.co_firstlineno})" if code is not None else place


def require_handler(function: object) -> Callable[..., Any]:
    """The callable behind what was decorated; refuses what cannot be a handler.

    Raises:
        DefinitionError: it is not callable, a class, a classmethod object, an unbound method, or a generator
            function.
    """
    if isinstance(function, staticmethod):
        function = function.__func__
    if isinstance(function, classmethod):
        raise DefinitionError(
            f"{place_of(function.__func__)} is a class method that is not bound to its class yet: "
            "register the bound one after the class, `registry.method(TheClass.the_method)`"
        )
    if isinstance(function, type):
        raise DefinitionError(
            f"{function.__qualname__} is a class: register a function, or an instance of it"
        )
    if not callable(function):
        raise DefinitionError(f"a handler must be callable, got {type(function).__name__}")
    _refuse_unbound(function)
    _refuse_generators(function)
    return function


def globals_of(function: Callable[..., Any]) -> dict[str, Any]:
    """The names that the annotations of a callable were written with."""
    found: dict[str, Any] = getattr(_innermost(function), "__globals__", None) or vars(
        sys.modules.get(type(function).__module__, sys)
    )
    return found


def closure_of(function: Callable[..., Any]) -> dict[str, Any]:
    """The names of the surrounding functions that a callable kept hold of."""
    innermost = _innermost(function)
    code, cells = getattr(innermost, "__code__", None), getattr(innermost, "__closure__", None) or ()
    return dict(_filled(zip(code.co_freevars, cells, strict=True))) if code is not None else {}


def _filled(cells: Any) -> Any:
    for name, cell in cells:
        try:
            yield name, cell.cell_contents
        except ValueError:
            continue


def _layers(function: Any) -> list[Any]:
    """The callable and what it stands for, outermost first; decorated functions are left closed, since what
    a wrapper returns is the wrapper's own business."""
    layers = [function]
    while True:
        function = _opened(function)
        if function is None:
            return layers
        layers.append(function)


def _opened(function: Any) -> Any:
    if isinstance(function, functools.partial):
        return function.func
    if inspect.ismethod(function) or isinstance(function, (staticmethod, classmethod)):
        return function.__func__
    if inspect.isroutine(function) or isinstance(function, type):
        return None
    call = inspect.getattr_static(type(function), "__call__", None)
    call = call.__func__ if isinstance(call, (staticmethod, classmethod)) else call
    return call if inspect.isfunction(call) else None


def _innermost(function: Any) -> Any:
    while True:
        function = _layers(function)[-1]
        wrapped = getattr(function, "__wrapped__", None)
        if wrapped is None:
            return function
        function = wrapped


def _gives_coroutine(layer: Any) -> bool:
    if inspect.iscoroutinefunction(layer) or _is_generator_coroutine(layer):
        return True
    # asyncio's own mark, from before `inspect.markcoroutinefunction`; asyncio itself is not loaded for it
    mark = getattr(sys.modules.get("asyncio.coroutines"), "_is_coroutine", None)
    return mark is not None and getattr(layer, "_is_coroutine", None) is mark


def _is_generator_coroutine(layer: Any) -> bool:
    code = getattr(layer, "__code__", None)
    return code is not None and bool(code.co_flags & inspect.CO_ITERABLE_COROUTINE)


def _refuse_unbound(function: Callable[..., Any]) -> None:
    if not inspect.isfunction(function):
        return
    parts, code = function.__qualname__.rsplit(".", 2), function.__code__
    if len(parts) < 2 or parts[-2] == "<locals>":
        return
    if code.co_varnames[: min(1, code.co_argcount)] == ("self",):
        raise DefinitionError(
            f"{place_of(function)} is a method that is not bound to an object yet: "
            f"register the bound one, `registry.method({parts[-2]}().{parts[-1]})`"
        )


def _refuse_generators(function: Callable[..., Any]) -> None:
    for layer in _layers(function):
        if _is_generator_coroutine(layer):
            return
        if inspect.isgeneratorfunction(layer) or inspect.isasyncgenfunction(layer):
            raise DefinitionError(
                f"{place_of(function)} is a generator function: a call has one result, so return it "
                "(a list, say) instead of yielding; progress goes out as feedback"
            )
