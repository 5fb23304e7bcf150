"""Reading request bodies (ORBIT page, "HTTP conventions" and "Errors").

Not valid JSON is 400, a missing field or one of another type 422, both in plain text. Unknown fields are
ignored; null stands for an optional field that is not there.
"""

from __future__ import annotations

from typing import Any

import msgspec

from kiwi_worker.orbit.runtime.messages import Registration
from kiwi_worker.orbit.runtime.model import Contract, Failure
from kiwi_worker.orbit.runtime.refusal import Malformed

_NAMES = {str: "a string", bool: "a boolean", int: "an integer", list: "an array", dict: "an object"}
_MISSING = object()


class Body:
    """One JSON object of a request.

    Args:
        fields: the decoded value.
        place: where it stands, for errors; "" for the body itself.

    Raises:
        Malformed: 422 when it is no object.
    """

    def __init__(self, fields: Any, place: str = "") -> None:
        if not isinstance(fields, dict):
            raise Malformed(422, f"{place or 'the body'} must be a JSON object")
        self._fields = fields
        self._prefix = f"{place}." if place else ""

    def required(self, name: str, kind: type) -> Any:
        """A field that must be there."""
        value = self._fields.get(name, _MISSING)
        if value is _MISSING:
            raise Malformed(422, f"missing field `{self._prefix}{name}`")
        return self._typed(name, value, kind)

    def optional(self, name: str, kind: type, default: Any = None) -> Any:
        """A field that may be left out, or be null."""
        value = self._fields.get(name)
        return default if value is None else self._typed(name, value, kind)

    def anything(self, name: str) -> Any:
        """Any JSON value; None when it is not there."""
        return self._fields.get(name)

    def _typed(self, name: str, value: Any, kind: type) -> Any:
        if not isinstance(value, kind) or isinstance(value, bool) != (kind is bool):
            raise Malformed(422, f"field `{self._prefix}{name}` must be {_NAMES[kind]}")
        return value


def parse_body(content: bytes) -> Body:
    """The JSON object of a request body.

    Raises:
        Malformed: 400 when it is no JSON, 422 when it is no object.
    """
    try:
        fields = msgspec.json.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Malformed(400, f"the body is not valid JSON: {error}") from None
    return Body(fields)


def registration_of(body: Body) -> Registration:
    """The registration in a body."""
    return Registration(
        worker_id=body.required("worker_id", str),
        runtime=body.required("runtime", str),
        contracts=tuple(
            _contract(Body(entry, f"contracts[{index}]"))
            for index, entry in enumerate(body.required("contracts", list))
        ),
        sdk=body.optional("sdk", str),
    )


def _contract(body: Body) -> Contract:
    return Contract(body.required("task_name", str), body.required("contract_version", str))


def failure_of(body: Body) -> Failure:
    """The failure in the body of a failed attempt."""
    return Failure(
        code=body.required("error_code", str),
        message=body.optional("error_message", str, ""),
        details=body.anything("details"),
    )
