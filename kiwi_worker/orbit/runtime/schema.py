"""The part of JSON Schema that contracts of the dev runtime may use.

Known: `type` (object, array, string, integer, number, boolean, null), `properties`, `required`, `items`,
`enum`, `default`, `additionalProperties` (true or false), and the notes `title`, `description`, `examples`,
`$schema`, `$comment`. Any other keyword is refused when the file is read, because a rule that is silently not
checked is worse than one that cannot be written. An own validator, as the extra of the dev runtime brings no
schema library and the page fixes the words of a mismatch.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping
from typing import Any

from kiwi_worker.errors import KiwiWorkerError, SettingsError

TYPE_NAMES = {
    "array": "List",
    "boolean": "Bool",
    "integer": "Int",
    "null": "Null",
    "number": "Float",
    "object": "Object",
    "string": "String",
}
_CONTAINERS: dict[type, str] = {str: "string", list: "array", dict: "object"}
_NOTES = frozenset({"title", "description", "examples", "$schema", "$comment"})
_RULES = frozenset({"type", "properties", "required", "items", "enum", "default", "additionalProperties"})


class Mismatch(KiwiWorkerError):
    """A value does not fit its schema.

    Attributes:
        path: where, from `$`.
        problem: what is wrong there.
    """

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(f"{path}: {problem}")
        self.path = path
        self.problem = problem


def check_schema(schema: object, key: str) -> dict[str, Any]:
    """Return `schema` if every rule in it is one we check.

    Raises:
        SettingsError: with `key` and the path, if it is not.
    """
    if not isinstance(schema, dict):
        raise SettingsError(key, "a schema must be a table")
    unknown = sorted(set(schema) - _RULES - _NOTES)
    if unknown:
        known = ", ".join(sorted(_RULES))
        raise SettingsError(key, f"schema keyword `{unknown[0]}` is not supported; known: {known}")
    _check_rules(schema, key)
    return schema


def _check_rules(schema: dict[str, Any], key: str) -> None:
    if schema.get("type", "object") not in TYPE_NAMES:
        raise SettingsError(f"{key}.type", f"must be one of {', '.join(sorted(TYPE_NAMES))}")
    _expect(schema, key, "required", list, "a list of names")
    _expect(schema, key, "enum", list, "a list of values")
    _expect(schema, key, "additionalProperties", bool, "true or false")
    _expect(schema, key, "properties", dict, "a table of schemas")
    for name, part in schema.get("properties", {}).items():
        check_schema(part, f"{key}.properties.{name}")
    if "items" in schema:
        check_schema(schema["items"], f"{key}.items")


def _expect(schema: dict[str, Any], key: str, rule: str, kind: type, what: str) -> None:
    if rule in schema and not isinstance(schema[rule], kind):
        raise SettingsError(f"{key}.{rule}", f"must be {what}")


def conform(value: Any, schema: Mapping[str, Any]) -> Any:
    """A copy of `value` with the schema's defaults applied, checked against the schema.

    Raises:
        Mismatch: at the first place that does not fit.
    """
    completed = _with_defaults(copy.deepcopy(value), schema)
    _check(completed, schema, "$")
    return completed


def _with_defaults(value: Any, schema: Mapping[str, Any]) -> Any:
    if isinstance(value, dict):
        for name, part in schema.get("properties", {}).items():
            if name not in value and "default" in part:
                value[name] = copy.deepcopy(part["default"])
            if name in value:
                value[name] = _with_defaults(value[name], part)
    if isinstance(value, list) and "items" in schema:
        return [_with_defaults(element, schema["items"]) for element in value]
    return value


def _check(value: Any, schema: Mapping[str, Any], path: str) -> None:
    wanted = schema.get("type")
    if wanted is not None and not _is(value, wanted):
        raise Mismatch(path, f"expected {TYPE_NAMES[wanted]}, found {type_name(value)}")
    if "enum" in schema and not any(_same(value, allowed) for allowed in schema["enum"]):
        raise Mismatch(path, f"expected one of {json.dumps(schema['enum'], ensure_ascii=False)}")
    if isinstance(value, dict):
        _check_fields(value, schema, path)
    if isinstance(value, list) and "items" in schema:
        for index, element in enumerate(value):
            _check(element, schema["items"], f"{path}[{index}]")


def _check_fields(value: dict[str, Any], schema: Mapping[str, Any], path: str) -> None:
    properties = schema.get("properties", {})
    for name in schema.get("required", []):
        if name not in value:
            raise Mismatch(
                f"{path}.{name}", f"missing required field `{name}`{_of_type(properties.get(name))}"
            )
    for name, part in value.items():
        if name in properties:
            _check(part, properties[name], f"{path}.{name}")
        elif schema.get("additionalProperties") is False:
            raise Mismatch(f"{path}.{name}", f"unexpected field `{name}`")


def _of_type(schema: Mapping[str, Any] | None) -> str:
    wanted = None if schema is None else schema.get("type")
    return "" if wanted is None else f" of type {TYPE_NAMES[wanted]}"


def _kinds(value: Any) -> Iterator[str]:
    # bool before int: in Python True is an int, in JSON it is not
    if isinstance(value, bool):
        yield "boolean"
    elif isinstance(value, int):
        yield from ("integer", "number")
    elif isinstance(value, float):
        yield from ("number", "integer") if value.is_integer() else ("number",)
    else:
        yield _CONTAINERS.get(type(value), "null")


def _is(value: Any, wanted: str) -> bool:
    return wanted in _kinds(value)


def type_name(value: Any) -> str:
    """What a contract calls the type of this JSON value."""
    return TYPE_NAMES[next(_kinds(value))]


def _same(left: Any, right: Any) -> bool:
    return bool(left == right) and isinstance(left, bool) == isinstance(right, bool)
