"""What became of one piece of work, in words that belong to no protocol.

`outcome_of` is the only place where an ending (a result, an exception, a cancellation, a passed time limit,
a lost process) turns into an outcome; a binding turns an outcome into the words of its protocol.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any

from kiwi_worker.errors import DeliberateError, UnencodableResult
from kiwi_worker.results import encode_result

__all__ = ["Ending", "Outcome", "outcome_of"]


class Ending(enum.Enum):
    """How the work ended."""

    RETURNED = "returned"
    RAISED = "raised"
    UNENCODABLE_RESULT = "unencodable result"
    INVALID_PARAMETERS = "invalid parameters"
    UNKNOWN_METHOD = "unknown method"
    MALFORMED = "malformed message"
    TIMED_OUT = "timed out"
    CANCELLED = "cancelled"
    CUT_OFF = "cut off at shutdown"
    NOT_STARTED = "not started before shutdown"
    PROCESS_DIED = "handler process died"
    WORKER_DIED = "worker died while it ran"


class Outcome:
    """One ending, ready to be encoded by a binding.

    Attributes:
        ending: how it ended.
        result: the JSON text of the result when it returned, else None.
        error_type: the name of the exception's type when it raised, else "".
        text: what to tell the caller, "" when it returned.
        answer: what a deliberate error asks the answer to say (a binding reads it), else None.
    """

    __slots__ = ("answer", "ending", "error_type", "result", "text")

    def __init__(
        self,
        ending: Ending,
        result: bytes | None = None,
        text: str = "",
        error_type: str = "",
        answer: Mapping[str, Any] | None = None,
    ) -> None:
        self.ending = ending
        self.result = result
        self.text = text
        self.error_type = error_type
        self.answer = answer

    def __repr__(self) -> str:
        return f"Outcome({self.ending.value})"


def outcome_of(ending: Ending, value: object = None, max_bytes: int | None = None) -> Outcome:
    """The outcome of an ending.

    Args:
        ending: how the work ended.
        value: the result when it returned, the exception when one is the cause, else a text or None.
        max_bytes: the longest a result may be; None for any length.
    """
    if ending is Ending.RETURNED:
        try:
            return Outcome(ending, encode_result(value, max_bytes))
        except UnencodableResult as error:
            return Outcome(Ending.UNENCODABLE_RESULT, text=str(error), error_type="UnencodableResult")
    if not isinstance(value, BaseException):
        return Outcome(ending, text=ending.value if value is None else str(value))
    answer = value.answer if isinstance(value, DeliberateError) else None
    return Outcome(ending, text=_text_of(value), error_type=type(value).__name__, answer=answer)


def _text_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - a broken __str__ of a user's exception must not cost the answer
        return "(the exception has no readable text)"
