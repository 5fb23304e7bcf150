"""What counts as async, what is refused, and how results that must be awaited are told."""

from __future__ import annotations

import asyncio
import functools
import inspect
import sys
import types
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest

from kiwi_worker.callables import is_async, is_awaitable, name_of, place_of
from kiwi_worker.errors import DefinitionError
from kiwi_worker.methods import Registry


async def greet(name: str = "world", mark: str = "!") -> str:
    return f"hello {name}{mark}"


def plain(name: str = "world") -> str:
    return name


def kept_async(function: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    @functools.wraps(function)
    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        return await function(*args, **kwargs)

    return wrapper


def passed_on(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


def made_sync(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return asyncio.run(function(*args, **kwargs))

    return wrapper


@types.coroutine
def old_style(name: str = "world") -> Iterator[None]:
    yield


class Service:
    async def bound(self, name: str = "world") -> str:
        return name

    @classmethod
    async def of_class(cls, name: str = "world") -> str:
        return name

    @staticmethod
    async def static(name: str = "world") -> str:
        return name

    def plain_bound(self, name: str = "world") -> str:
        return name

    async def __call__(self, name: str = "world") -> str:
        return name


class PlainService:
    def __call__(self, name: str = "world") -> str:
        return name


class StaticCall:
    @staticmethod
    async def __call__(name: str = "world") -> str:
        return name


ASYNC_FORMS = {
    "async def": greet,
    "partial": functools.partial(greet, mark="?"),
    "partial of partial": functools.partial(functools.partial(greet), mark="?"),
    "partial of a bound method": functools.partial(Service().bound),
    "bound method": Service().bound,
    "class method": Service.of_class,
    "static method": Service.static,
    "static method object": staticmethod(greet),
    "object with async __call__": Service(),
    "object with a static async __call__": StaticCall(),
    "async wrapper": kept_async(greet),
    "generator-based coroutine": old_style,
}
PLAIN_FORMS = {
    "def": plain,
    "partial": functools.partial(plain),
    "bound method": Service().plain_bound,
    "object with __call__": PlainService(),
    "cached": functools.lru_cache(plain),
    "wrapper that runs its own loop": made_sync(greet),
    "builtin": len,
}


@pytest.mark.parametrize("form", ASYNC_FORMS)
def test_async_forms_are_known_at_definition(form: str) -> None:
    registry = Registry()
    registry.method("greet")(ASYNC_FORMS[form])
    assert registry["greet"].is_async


@pytest.mark.parametrize("form", PLAIN_FORMS)
def test_plain_forms_are_known_at_definition(form: str) -> None:
    registry = Registry()
    registry.method("greet")(PLAIN_FORMS[form])
    assert not registry["greet"].is_async


@pytest.mark.skipif(sys.version_info < (3, 12), reason="inspect.markcoroutinefunction is new in 3.12")
def test_a_function_marked_as_coroutine_function_is_async() -> None:
    def marked() -> Any:
        return greet()

    assert is_async(inspect.markcoroutinefunction(marked))  # type: ignore[attr-defined,unused-ignore]


@pytest.mark.filterwarnings("ignore:'asyncio.iscoroutinefunction' is deprecated:DeprecationWarning")
def test_a_function_with_the_mark_of_asyncio_is_async() -> None:
    def marked() -> Any:
        return greet()

    marker = getattr(asyncio.coroutines, "_is_coroutine", None)
    if marker is None:
        pytest.skip("this asyncio has no mark of its own")
    marked._is_coroutine = marker  # type: ignore[attr-defined]
    assert is_async(marked)


def test_a_plain_function_that_returns_an_awaitable_is_told_by_its_result() -> None:
    function = passed_on(greet)
    assert not is_async(function)
    result = function("you")
    assert is_awaitable(result)
    assert asyncio.run(result) == "hello you!"


@pytest.mark.parametrize("value", [None, 1, 1.5, "x", b"x", True, [1], (1,), {"a": 1}, {1}, object()])
def test_plain_data_is_not_awaited(value: object) -> None:
    assert not is_awaitable(value)


def generator() -> Iterator[int]:
    yield 1


async def async_generator() -> AsyncIterator[int]:
    yield 1


class GeneratorService:
    def __call__(self) -> Iterator[int]:
        yield 1

    def method(self) -> Iterator[int]:
        yield 1


@pytest.mark.parametrize(
    "function",
    [
        generator,
        async_generator,
        functools.partial(generator),
        functools.partial(async_generator),
        GeneratorService(),
        GeneratorService().method,
        staticmethod(generator),
    ],
)
def test_generator_functions_are_refused_at_definition(function: Any) -> None:
    with pytest.raises(DefinitionError, match=r"generator function.*return it"):
        Registry().method("numbers")(function)


def test_unbound_forms_are_refused_with_the_way_out() -> None:
    with pytest.raises(DefinitionError, match=r"not bound to an object yet.*Service\(\)\.plain_bound"):
        Registry().method(Service.plain_bound)
    with pytest.raises(DefinitionError, match="class method that is not bound"):
        Registry().method("x")(vars(Service)["of_class"])


def test_a_method_decorated_in_its_class_body_is_refused() -> None:
    with pytest.raises(DefinitionError, match="not bound to an object yet"):

        class Desk:
            @Registry().method
            def ring(self) -> None: ...


@pytest.mark.parametrize(("thing", "text"), [(5, "must be callable, got int"), (Service, "is a class")])
def test_what_is_no_function_is_refused(thing: Any, text: str) -> None:
    with pytest.raises(DefinitionError, match=text):
        Registry().method("x")(thing)


def test_a_decorated_static_method_stays_a_static_method() -> None:
    registry = Registry()

    class Desk:
        @registry.method
        @staticmethod
        def ring(times: int) -> int:
            return times

    assert isinstance(vars(Desk)["ring"], staticmethod)
    assert Desk.ring(2) == 2
    args, kwargs = registry["ring"].plan.bind(b'{"times":3}', None)
    assert registry["ring"].function(*args, **kwargs) == 3


def test_names_come_from_the_innermost_function_of_a_partial() -> None:
    assert name_of(functools.partial(plain, "x")) == "plain"
    assert name_of(lambda: None) == ""
    assert name_of(PlainService()) == ""


@pytest.mark.parametrize("nameless", [lambda: None, PlainService()])
def test_what_has_no_name_of_its_own_needs_one(nameless: Any) -> None:
    with pytest.raises(DefinitionError, match="has no name of its own"):
        Registry().method(nameless)


def test_the_place_of_a_function_names_module_file_and_line() -> None:
    assert place_of(plain).startswith(f"{__name__}.plain ({__file__}:")
    assert place_of(functools.partial(plain)) == place_of(plain)
    assert "PlainService" in place_of(PlainService())
