"""Types of parameters that msgspec reads only with help: pydantic models, paths, and unions it refuses.

`readable` turns a hint into one that msgspec takes; `read_hook` is the `dec_hook` that belongs to it. A union
that msgspec cannot tell apart (`Cat | Dog`, `datetime | str`) is read from left to right: the first member
that fits is taken.
"""

from __future__ import annotations

import collections.abc
import functools
import pathlib
import types
import typing
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from kiwi_worker import pydantic_types

__all__ = ["UnreadableType", "read_hook", "readable", "schema_hook"]

_CONTAINERS = frozenset(
    {
        *(dict, frozenset, list, set, tuple),
        collections.abc.Collection,
        collections.abc.Mapping,
        collections.abc.MutableMapping,
        collections.abc.MutableSequence,
        collections.abc.MutableSet,
        collections.abc.Sequence,
        collections.abc.Set,
    }
)


class UnreadableType(Exception):
    """A type hint that no JSON value can be read into; the text says which part of it and why."""


class _AlwaysInstance(type):
    """msgspec checks what a `dec_hook` gave against the type it asked for; ours stand for other types."""

    def __instancecheck__(cls, instance: object) -> bool:
        return True


class Reader(metaclass=_AlwaysInstance):
    """Stands for a type in a hint given to msgspec, and reads it."""

    read: Callable[[object], Any]
    schema: Callable[[], dict[str, Any]]


def readable(hint: Any, *, strict: bool) -> Any:
    """A hint that msgspec decodes with `read_hook`, for a hint of a handler.

    Raises:
        UnreadableType: no JSON value can be read into it.
        NameError: a type inside it has hints of its own that cannot be resolved.
    """
    hint = _rewritten(hint, strict)
    _require_readable(hint)
    return hint


def _require_readable(hint: Any) -> None:
    problem = _refusal(hint)
    if problem:
        raise UnreadableType(problem)
    for cls in _custom_classes(hint):
        if not _is_served(cls):
            raise UnreadableType(
                f"`{_name(cls)}` cannot be read from JSON; use a dataclass, a TypedDict, a msgspec.Struct, "
                "a pydantic model, or Any to receive the plain value"
            )


@functools.lru_cache(maxsize=2)
def read_hook(strict: bool) -> Callable[[Any, Any], Any]:
    """The `dec_hook` for hints that `readable` gave, for the same `strict`."""

    def hook(cls: Any, value: Any) -> Any:
        if issubclass(cls, Reader):
            return cls.read(value)
        if pydantic_types.is_model_class(cls):
            return pydantic_types.read_model(cls, value, strict=strict)
        if issubclass(cls, pathlib.PurePath):
            return _read_path(cls, value)
        return value

    return hook


def schema_hook(cls: Any) -> dict[str, Any]:
    """The JSON schema of a type that msgspec asks for."""
    if issubclass(cls, Reader):
        schema: dict[str, Any] = cls.schema()
        return schema
    if pydantic_types.is_model_class(cls):
        return pydantic_types.schema(cls)
    return {"type": "string"} if issubclass(cls, pathlib.PurePath) else {}


def _is_served(cls: Any) -> bool:
    if not isinstance(cls, type):
        return False
    return cls is object or issubclass(cls, (Reader, pathlib.PurePath)) or pydantic_types.is_model_class(cls)


def _read_path(cls: type[pathlib.PurePath], value: object) -> pathlib.PurePath:
    if isinstance(value, str):
        return cls(value)
    raise ValueError(f"Expected `str`, got `{pydantic_types.json_kind(value)}`")


def _rewritten(hint: Any, strict: bool) -> Any:
    if pydantic_types.needs_pydantic(hint):
        return _reader(hint, *pydantic_types.adapter_of(hint, strict=strict))
    if hint is object or isinstance(hint, (typing.ParamSpecArgs, typing.ParamSpecKwargs)):
        return Any
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if (origin or hint) is collections.abc.Iterable:
        return _rewritten(list[arguments or (Any,)], strict)  # type: ignore[misc]
    if origin is typing.Annotated:
        annotated = (_rewritten(arguments[0], strict), *hint.__metadata__)
        return typing.Annotated[annotated]
    if origin in (typing.Union, types.UnionType):
        return _union(tuple(_rewritten(member, strict) for member in arguments), strict)
    if origin in _CONTAINERS and arguments:
        return _container(hint, origin, tuple(_rewritten(member, strict) for member in arguments))
    return hint


def _container(hint: Any, origin: Any, arguments: tuple[Any, ...]) -> Any:
    return hint if arguments == typing.get_args(hint) else origin[arguments]


def _union(members: tuple[Any, ...], strict: bool) -> Any:
    union: Any = typing.Union.__getitem__(members)
    if not _refusal(union):
        return union
    for member in members:
        _require_readable(member)
    return _reader(union, _first_that_fits(members, strict), lambda: _any_of(members))


def _first_that_fits(members: tuple[Any, ...], strict: bool) -> Callable[[object], Any]:
    hook = read_hook(strict)

    def read(value: object) -> Any:
        problems = []
        for member in members:
            try:
                return msgspec.convert(value, member, strict=strict, dec_hook=hook)
            except msgspec.ValidationError as error:
                problems.append(f"`{_name(member)}`: {error}".replace(" - at ", " at "))
        expected = " | ".join(_name(member) for member in members)
        kind = pydantic_types.json_kind(value)
        raise ValueError(f"Expected `{expected}`, got `{kind}` that fits none ({'; '.join(problems)})")

    return read


def _any_of(members: Iterable[Any]) -> dict[str, Any]:
    return {"anyOf": [msgspec.json.schema(member, schema_hook=schema_hook) for member in members]}


def _reader(hint: Any, read: Callable[[object], Any], schema: Callable[[], dict[str, Any]]) -> Any:
    return _AlwaysInstance(
        _name(hint), (Reader,), {"read": staticmethod(read), "schema": staticmethod(schema)}
    )


def _name(hint: Any) -> str:
    if hint is type(None):
        return "null"
    if isinstance(hint, type) and not typing.get_args(hint):
        return hint.__name__
    return str(hint).replace("typing.", "")


def _refusal(hint: Any) -> str:
    """Why msgspec does not take a hint, "" when it does."""
    try:
        msgspec.json.Decoder(hint)
    except (TypeError, ValueError) as error:
        return str(error)
    return ""


def _custom_classes(hint: Any) -> list[Any]:
    """The classes inside a hint that msgspec leaves to the `dec_hook`."""
    import msgspec.inspect

    found: list[Any] = []
    seen: set[int] = set()
    waiting: list[Any] = [msgspec.inspect.type_info(hint)]
    while waiting:
        node = waiting.pop()
        if isinstance(node, tuple):
            waiting.extend(node)
        elif isinstance(node, msgspec.inspect.CustomType):
            found.append(node.cls)
        elif isinstance(node, (msgspec.inspect.Type, msgspec.inspect.Field)) and id(node) not in seen:
            seen.add(id(node))
            waiting.extend(msgspec.structs.astuple(node))
    return found
