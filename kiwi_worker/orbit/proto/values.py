"""`google.protobuf.Value` and JSON values (ORBIT page, "gRPC binding", "Numbers").

A Value carries every number as a double. Whole numbers within ±2^53 come back as integers; larger ones could
only arrive changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kiwi_worker.errors import UnencodableResult

LARGEST_EXACT = 2**53
"""The largest integer up to which a double holds every one."""


def fill_value(target: Any, value: Any, *, path: str = "$", exact: bool = True) -> None:
    """Write a JSON value into a Value message.

    Args:
        target: the message.
        value: None, a bool, a number, a string, a list or a dict.
        path: where the value stands, for the error.
        exact: refuse integers that a double cannot hold; otherwise they are rounded.

    Raises:
        UnencodableResult: with the path, for such an integer or for what is no JSON value.
    """
    if value is None:
        target.null_value = 0
    elif isinstance(value, bool):
        target.bool_value = value
    elif isinstance(value, (int, float)):
        target.number_value = _number(value, path, exact)
    elif isinstance(value, str):
        target.string_value = value
    elif isinstance(value, Mapping):
        _fill_struct(target.struct_value, value, path, exact)
    elif isinstance(value, (list, tuple)):
        _fill_list(target.list_value, value, path, exact)
    else:
        raise UnencodableResult(f"{path}: {type(value).__name__} has no JSON form")


def _number(value: int | float, path: str, exact: bool) -> float:
    if exact and isinstance(value, int) and abs(value) > LARGEST_EXACT:
        text = "gRPC carries numbers as doubles, which cannot hold integers beyond ±2^53 exactly"
        raise UnencodableResult(f"{path}: {text}; send it as a string")
    try:
        return float(value)
    except OverflowError:
        raise UnencodableResult(f"{path}: the integer is larger than any double") from None


def _fill_struct(target: Any, value: Mapping[str, Any], path: str, exact: bool) -> None:
    # an empty object must be set as one, or the Value would have no kind at all
    target.SetInParent()
    for name, part in value.items():
        fill_value(target.fields[name], part, path=f"{path}.{name}", exact=exact)


def _fill_list(target: Any, value: list[Any] | tuple[Any, ...], path: str, exact: bool) -> None:
    target.SetInParent()
    for index, part in enumerate(value):
        fill_value(target.values.add(), part, path=f"{path}[{index}]", exact=exact)


def read_value(source: Any) -> Any:
    """The JSON value of a Value message; one that was never set is None."""
    kind = source.WhichOneof("kind")
    if kind == "number_value":
        return _read_number(source.number_value)
    if kind == "struct_value":
        return {name: read_value(part) for name, part in source.struct_value.fields.items()}
    if kind == "list_value":
        return [read_value(part) for part in source.list_value.values]
    return None if kind in (None, "null_value") else getattr(source, kind)


def _read_number(number: float) -> int | float:
    return int(number) if number.is_integer() and abs(number) <= LARGEST_EXACT else number
