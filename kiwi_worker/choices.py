"""Which values a caller may give at a place where only some are allowed (an Enum, a Literal)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

__all__ = ["allowed_values"]

_STEP = re.compile(r"\.(?P<name>[^.\[]+)|\[(?P<index>\d+|\.\.\.)\]")


def allowed_values(hint: Any, path: str) -> list[Any]:
    """The values allowed at a path in a value of that type, none when they are not known.

    Args:
        hint: a type that msgspec takes.
        path: from `$`, in the form of msgspec's errors.
    """
    import msgspec.inspect

    nodes: list[Any] = [msgspec.inspect.type_info(hint)]
    for step in _STEP.finditer(path):
        nodes = [inner for node in nodes for inner in _inside(node, step["name"], step["index"])]
    return [value for node in nodes for value in _values(node)]


def _inside(node: Any, name: str | None, index: str | None) -> Iterable[Any]:
    if hasattr(node, "types"):
        return [inner for member in node.types for inner in _inside(member, name, index)]
    if hasattr(node, "value_type"):
        return [node.value_type]
    if index is None:
        return [field.type for field in getattr(node, "fields", ()) if field.encode_name == name]
    if hasattr(node, "item_type"):
        return [node.item_type]
    fields = [field.type for field in getattr(node, "fields", ())]
    elements: list[Any] = fields or list(getattr(node, "item_types", ()))
    return elements[int(index) : int(index) + 1] if index.isdigit() else ()


def _values(node: Any) -> Iterator[Any]:
    for member in getattr(node, "types", ()):
        yield from _values(member)
    if hasattr(node, "values"):
        yield from node.values
    elif hasattr(node, "cls") and hasattr(node.cls, "__members__"):
        yield from (member.value for member in node.cls)
