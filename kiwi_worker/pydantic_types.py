"""Pydantic models as types of parameters and results, without importing pydantic.

A user whose types are pydantic's has imported it; nothing here does. What msgspec cannot check for itself (a
model, a pydantic dataclass, a constraint such as `Annotated[int, Field(gt=0)]`, a union of models) is read by
pydantic, in strict mode where the handler is strict.
"""

from __future__ import annotations

import sys
import types
import typing
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

__all__ = [
    "adapter_of",
    "dump",
    "dump_python",
    "is_model",
    "is_model_class",
    "needs_pydantic",
    "read_model",
    "schema",
]

_KINDS = {
    "bool_type": "bool",
    "dict_type": "object",
    "float_type": "float",
    "int_type": "int",
    "list_type": "array",
    "model_type": "object",
    "string_type": "str",
}


def is_model_class(cls: object) -> bool:
    """Whether it is a pydantic model."""
    return isinstance(cls, type) and hasattr(cls, "__pydantic_validator__") and hasattr(cls, "model_dump")


def is_model(value: object) -> bool:
    """Whether a value is an instance of a pydantic model."""
    return is_model_class(type(value))


def dump(model: Any) -> Any:
    """A model as plain data, by its own serializers; NaN and infinities have become None."""
    return model.model_dump(mode="json")


def dump_python(model: Any) -> Any:
    """A model as Python data: not always plain, but with NaN and infinities as they are."""
    return model.model_dump(mode="python", warnings=False)


def read_model(cls: Any, value: object, *, strict: bool) -> Any:
    """A model from a decoded JSON value.

    Raises:
        ValueError: it does not fit; the text has the form of msgspec's own errors.
    """
    return _read(cls.model_validate_json, value, strict)


def schema(cls: Any) -> dict[str, Any]:
    """The JSON schema of a model."""
    found: dict[str, Any] = cls.model_json_schema()
    return found


def needs_pydantic(hint: Any) -> bool:
    """Whether only pydantic can read this type: msgspec would leave out its constraints, or refuse it."""
    if "pydantic" not in sys.modules:
        return False
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return any(_is_constraint(extra) for extra in arguments[1:]) or needs_pydantic(arguments[0])
    if origin in (typing.Union, types.UnionType):
        members = [member for member in arguments if member is not type(None)]
        return len(members) > 1 and any(is_model_class(member) for member in members)
    return isinstance(hint, type) and not is_model_class(hint) and _is_of_pydantic(hint)


def adapter_of(hint: Any, *, strict: bool) -> tuple[Callable[[object], Any], Callable[[], dict[str, Any]]]:
    """How to read a type by pydantic, and how to get its JSON schema."""
    adapter = sys.modules["pydantic"].TypeAdapter(hint)
    return lambda value: _read(adapter.validate_json, value, strict), adapter.json_schema


def _is_of_pydantic(cls: type) -> bool:
    return cls.__module__.partition(".")[0] == "pydantic" or "__pydantic_validator__" in vars(cls)


def _is_constraint(extra: object) -> bool:
    return type(extra).__module__.partition(".")[0] in ("annotated_types", "pydantic")


def _read(validate: Callable[..., Any], value: object, strict: bool) -> Any:
    try:
        return validate(msgspec.json.encode(value), strict=True if strict else None)
    except ValueError as error:
        raise ValueError(_text_of(error, value)) from None


def _text_of(error: Any, value: object) -> str:
    """A pydantic error in the form msgspec gives its own: `Expected …, got … - at $.path`."""
    if not hasattr(error, "errors"):
        return str(error)
    found = error.errors(include_url=False, include_context=False)
    first = found[0]
    more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    steps = first["loc"][:-1] if first["type"] in ("missing", "extra_forbidden") else first["loc"]
    return f"{_sentence(first)}{more} - at `${_path(steps, value)}`"


def _sentence(entry: dict[str, Any]) -> str:
    name = entry["loc"][-1] if entry["loc"] else ""
    if entry["type"] == "missing":
        return f"Object missing required field `{name}`"
    if entry["type"] == "extra_forbidden":
        return f"Object contains unknown field `{name}`"
    if entry["type"] in _KINDS:
        return f"Expected `{_KINDS[entry['type']]}`, got `{json_kind(entry['input'])}`"
    return str(entry["msg"])


def _path(steps: Iterable[Any], value: Any) -> str:
    """The path in the caller's value; pydantic names members of unions, too, which are not there."""
    path = ""
    for step in steps:
        if isinstance(value, dict) and step in value:
            path += f".{step}"
        elif isinstance(value, list) and isinstance(step, int):
            path += f"[{step}]"
        else:
            continue
        value = value[step]
    return path


def json_kind(value: object) -> str:
    """What JSON calls a decoded value, in msgspec's words."""
    if value is None:
        return "null"
    names = {bool: "bool", int: "int", float: "float", str: "str", list: "array", dict: "object"}
    return names.get(type(value), type(value).__name__)
