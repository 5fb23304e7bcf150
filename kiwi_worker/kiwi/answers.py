"""What is posted to `/worker/response` (protocol page, "The request loop", step 4)."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from kiwi_worker.engine.outcomes import Ending, Outcome

__all__ = ["LONGEST_ERROR_TEXT", "encode_answer", "too_large_answer"]

LONGEST_ERROR_TEXT = 2000
"""The most characters of an `error_text`; the rest is cut off."""

HIDDEN_ERROR = "the method raised an error; the worker's log has the details"
"""What clients see of an exception when `expose_errors` is off."""

_FAILED = frozenset({Ending.RAISED, Ending.TIMED_OUT, Ending.CANCELLED, Ending.CUT_OFF, Ending.PROCESS_DIED})
_json: Callable[[object], bytes] = msgspec.json.Encoder().encode


def encode_answer(request_id: str, outcome: Outcome, *, expose_errors: bool) -> bytes:
    """The body of the answer to one outcome.

    On success `error_text` is null. Otherwise `result` is null and `error_text` is what the client sees:
    `failed` when the handler raised, passed its time limit, or was cancelled; `error` for everything else.
    """
    if outcome.result is not None:
        # Put together by hand: the result is JSON already, and this runs once for each message.
        return b'{"request_id":%b,"status":"success","error_text":null,"result":%b}' % (
            _json(request_id),
            outcome.result,
        )
    status, text = _status_and_text(outcome, expose_errors)
    return _json({"request_id": request_id, "status": status, "error_text": _bounded(text), "result": None})


def too_large_answer(request_id: str, size: int) -> bytes:
    """The answer in place of one the middleware found too large (413)."""
    text = f"the answer of {size} bytes is larger than the middleware takes"
    return _json({"request_id": request_id, "status": "error", "error_text": text, "result": None})


def _status_and_text(outcome: Outcome, expose_errors: bool) -> tuple[str, str]:
    status = "failed" if outcome.ending in _FAILED else "error"
    if outcome.answer is not None and "status" in outcome.answer:
        return outcome.answer["status"], outcome.text
    if outcome.ending is Ending.RAISED:
        text = f"{outcome.error_type}: {outcome.text}" if outcome.text else outcome.error_type
        return status, text if expose_errors else HIDDEN_ERROR
    return status, outcome.text


def _bounded(text: str) -> str:
    # A lone surrogate has no UTF-8; the text of an exception may hold one.
    readable = text.encode("utf-8", "replace").decode()
    return readable if len(readable) <= LONGEST_ERROR_TEXT else readable[: LONGEST_ERROR_TEXT - 1] + "…"
