"""What is reported of an attempt (sections "Complete a task" and "Fail a task")."""

from __future__ import annotations

from typing import Any

import msgspec

from kiwi_worker.engine.binding import Report
from kiwi_worker.engine.outcomes import Ending, Outcome
from kiwi_worker.errors import UnencodableResult
from kiwi_worker.results import encode_result

__all__ = ["is_abandoned", "report_of", "smaller"]

_encode = msgspec.json.Encoder().encode
_decode_raw = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode

LONGEST_MESSAGE = 2000
"""How much of the text of an exception is sent, in characters."""

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
_HIDDEN = "the handler raised an error; the worker's log has the details"


def is_abandoned(outcome: Outcome) -> bool:
    """Whether nothing is reported, so that no retry is used up: the runtime delivers the attempt again."""
    return outcome.ending in _ABANDONED


def report_of(token: str, outcome: Outcome, *, expose_errors: bool) -> Report:
    """The report of one outcome that is not abandoned; never raises, since nothing would be reported then."""
    if outcome.ending is Ending.RETURNED and outcome.result is not None:
        return _completed(token, outcome.result)
    if outcome.answer is not None and "error_code" in outcome.answer:
        return _failed(token, **outcome.answer)
    code, retryable = _CODES.get(outcome.ending, ("UNHANDLED_EXCEPTION", True))
    message = outcome.text or outcome.error_type
    if outcome.ending is Ending.RAISED and not expose_errors:
        message = _HIDDEN
    return _failed(token, code, message[:LONGEST_MESSAGE], retryable)


def _completed(token: str, result: bytes) -> Report:
    if result == b"null":
        result = b"{}"
    if not result.startswith(b"{"):
        return _failed(token, "INVALID_RESULT", "the handler returned something else than an object", False)
    return Report(token, b'{"token":%b,"output":%b}' % (_encode(token), result), "complete")


def _failed(token: str, error_code: str, error_message: str, retryable: bool, details: Any = None) -> Report:
    body: dict[str, Any] = {
        "token": token,
        "error_code": _sendable(error_code),
        "error_message": _sendable(error_message),
        "retryable": bool(retryable),
    }
    if details is not None:
        body["details"] = _encoded_details(details)
    return Report(token, _encode(body), "fail")


def _encoded_details(details: Any) -> msgspec.Raw:
    try:
        return msgspec.Raw(encode_result(details))
    except UnencodableResult as error:
        return msgspec.Raw(_encode(_sendable(f"(details left out: {error})")))


def _sendable(text: Any) -> str:
    """As UTF-8 can carry it: text of exceptions may hold halves of characters."""
    return str(text).encode("utf-8", "replace").decode()


def smaller(report: Report) -> Report | None:
    """What is sent, once, in place of a report that the runtime found too large (413); None for no more.

    A result becomes a failure that is not retryable. A failure stays what it is and loses what made it large,
    since an attempt that nobody reports would stay with this worker for ever.
    """
    if report.route == "complete":
        message = f"the result of {len(report.body)} bytes is larger than the runtime takes"
        return _failed(report.key, "RESULT_TOO_LARGE", message, False)
    body = _decode_raw(report.body)
    code, message, retryable = (
        msgspec.json.decode(body[name]) for name in ("error_code", "error_message", "retryable")
    )
    left = _failed(report.key, code, message[:LONGEST_MESSAGE], retryable)
    return left if len(left.body) < len(report.body) else None
