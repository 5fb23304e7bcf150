"""What is reported of an attempt (sections "Complete a task" and "Fail a task")."""

from __future__ import annotations

from typing import Any

import msgspec

from kiwi_worker.engine.binding import Report
from kiwi_worker.engine.outcomes import Ending, Outcome

__all__ = ["report_of", "too_large"]

_encode = msgspec.json.Encoder().encode

_CODES = {
    Ending.RAISED: ("UNHANDLED_EXCEPTION", True),
    Ending.UNENCODABLE_RESULT: ("INVALID_RESULT", False),
    Ending.INVALID_PARAMETERS: ("INVALID_INPUT", False),
    Ending.UNKNOWN_METHOD: ("UNKNOWN_TASK", True),
    Ending.TIMED_OUT: ("TIME_LIMIT", True),
    Ending.CANCELLED: ("CANCELLED", False),
    Ending.PROCESS_DIED: ("HANDLER_PROCESS_DIED", True),
}
_ABANDONED = frozenset({Ending.CUT_OFF, Ending.NOT_STARTED, Ending.WORKER_DIED})


def report_of(token: str, outcome: Outcome, *, expose_errors: bool) -> Report | None:
    """The report of one outcome; None when the attempt is abandoned, so that no retry is used up."""
    if outcome.ending in _ABANDONED:
        return None
    if outcome.ending is Ending.RETURNED and outcome.result is not None:
        return _completed(token, outcome.result)
    if outcome.answer is not None and "error_code" in outcome.answer:
        return _failed(token, **outcome.answer)
    code, retryable = _CODES[outcome.ending]
    message = outcome.text
    if outcome.ending is Ending.RAISED and not expose_errors:
        message = "the handler raised an error; the worker's log has the details"
    return _failed(token, code, message, retryable)


def _completed(token: str, result: bytes) -> Report:
    if result == b"null":
        result = b"{}"
    if not result.startswith(b"{"):
        return _failed(token, "INVALID_RESULT", "the handler returned something else than an object", False)
    return Report(token, b'{"token":%b,"output":%b}' % (_encode(token), result), "complete")


def _failed(token: str, error_code: str, error_message: str, retryable: bool, details: Any = None) -> Report:
    body: dict[str, Any] = {
        "token": token,
        "error_code": error_code,
        "error_message": error_message.encode("utf-8", "replace").decode(),
        "retryable": retryable,
    }
    if details is not None:
        body["details"] = details
    try:
        return Report(token, _encode(body), "fail")
    except Exception as error:  # noqa: BLE001 - the user's details may hold anything
        body["details"] = f"(details that have no JSON form: {type(error).__name__})"
        return Report(token, _encode(body), "fail")


def too_large(report: Report) -> Report:
    """What is sent in place of a result that the runtime found too large (413): once, and not retryable."""
    message = f"the result of {len(report.body)} bytes is larger than the runtime takes"
    return _failed(report.key, "RESULT_TOO_LARGE", message, False)
