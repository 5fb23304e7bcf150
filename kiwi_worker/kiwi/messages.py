"""What a drain brings: an array of messages, read one by one so that a bad one takes no other down.

Protocol page, "The request loop", step 1.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from kiwi_worker.errors import ProtocolError

__all__ = ["Malformed", "Message", "elements_of", "identity_of", "read_message", "salvage"]

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_BLANK = b" \t\r\n"
# A whole string, the quote of one that does not end, or what tells elements apart.
_MARKS = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|["\[\]{},]', re.DOTALL)
_DEEPER = {b"{": 1, b"[": 1, b"}": -1, b"]": -1}
_NULL = msgspec.Raw(b"null")


class Message(msgspec.Struct, gc=False):
    """One element of the drained array."""

    request_id: str
    method: str
    lock_required: bool = False
    params: msgspec.Raw = _NULL


class Malformed(Exception):
    """An element that is no message.

    Attributes:
        request_id: its id, when it has a readable one, else None.
        asks_for_lock: whether it wants to be locked before anybody answers it.
    """

    def __init__(self, problem: str, request_id: str | None = None, asks_for_lock: bool = False) -> None:
        super().__init__(problem)
        self.request_id = request_id
        self.asks_for_lock = asks_for_lock


_read_array = msgspec.json.Decoder(list[msgspec.Raw]).decode
_read_message = msgspec.json.Decoder(Message).decode
_read_anything = msgspec.json.Decoder().decode


def elements_of(body: bytes) -> list[msgspec.Raw]:
    """The elements of a drained array, undecoded; an empty body and null are none.

    Raises:
        ProtocolError: the body is JSON but no array.
        msgspec.DecodeError: the body is not whole JSON; `salvage` may find elements in it.
    """
    if body == b"[]" or not body:
        return []
    body = body.removeprefix(_BYTE_ORDER_MARK)
    if not body.lstrip(_BLANK).startswith(b"["):
        if body.strip(_BLANK) in (b"", b"null"):
            return []
        raise ProtocolError("the drain was answered with something else than a JSON array")
    return _read_array(body)


def salvage(body: bytes) -> tuple[list[bytes], int]:
    """The whole elements of a broken array, and how many bytes behind the last of them are lost.

    Elements are told apart by their brackets and strings only, so that one that is broken in itself, or
    nested too deep, takes no other down.
    """
    body = body.removeprefix(_BYTE_ORDER_MARK)
    start = body.find(b"[") + 1
    if not start or body[: start - 1].strip(_BLANK):
        return [], len(body)
    found, depth = [], 1
    for mark in _MARKS.finditer(body, start):
        sign = mark[0]
        if depth == 1 and sign in b",]":
            found.append(body[start : mark.start()])
            start = mark.end()
        depth += _DEEPER.get(sign, 0)
        if not depth or sign == b'"':
            break
    else:
        # It breaks off between two elements, or within one: depth tells.
        if depth == 1 and body.rstrip(_BLANK).endswith(b"}"):
            found.append(body[start:])
            start = len(body)
    whole = [element for element in map(_stripped, found) if element]
    return whole, len(_stripped(body[start:]))


def _stripped(element: bytes) -> bytes:
    return element.strip(_BLANK)


def read_message(element: bytes | msgspec.Raw) -> Message:
    """Decode one element.

    Raises:
        Malformed: it is no message; says what of it can be used to answer.
    """
    try:
        message = _read_message(element)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise _malformed(element, error) from None
    if not message.request_id:
        raise Malformed("`request_id` is empty")
    return message


def identity_of(element: bytes | msgspec.Raw) -> str:
    """The request id of an element, "" when it has none that can be read."""
    try:
        return read_message(element).request_id
    except Malformed as malformed:
        return malformed.request_id or ""


def _malformed(element: bytes | msgspec.Raw, error: Exception) -> Malformed:
    value: Any
    try:
        value = _read_anything(element)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return Malformed(f"not JSON: {error}")
    if not isinstance(value, dict):
        return Malformed(f"a {type(value).__name__} is no message")
    identity = value.get("request_id")
    usable = identity if isinstance(identity, str) and identity else None
    asks = value.get("lock_required", False)
    return Malformed(str(error), usable, asks not in (False, None))
