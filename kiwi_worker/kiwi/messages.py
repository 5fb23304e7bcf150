"""What a drain brings: an array of messages, read one by one so that a bad one takes no other down.

Protocol page, "The request loop", step 1.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec

from kiwi_worker.errors import ProtocolError

__all__ = ["Malformed", "Message", "elements_of", "identity_of", "read_message", "salvage"]

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
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
    if body.startswith(_BYTE_ORDER_MARK):
        body = body[len(_BYTE_ORDER_MARK) :]
    try:
        return _read_array(body)
    except msgspec.ValidationError:
        pass
    if body.strip() == b"null":
        return []
    raise ProtocolError("the drain was answered with JSON that is no array")


def salvage(body: bytes) -> tuple[list[bytes], int]:
    """The whole objects at the start of a broken array, and how many bytes after them are lost."""
    text = body.removeprefix(_BYTE_ORDER_MARK).decode("utf-8", "replace")
    decoder, found = json.JSONDecoder(), []
    position = _skip(text, 0, " \t\r\n[")
    if not text.lstrip().startswith("["):
        return [], len(body)
    while position < len(text) and text[position] == "{":
        try:
            _, end = decoder.raw_decode(text, position)
        except (ValueError, RecursionError):
            break
        found.append(text[position:end].encode())
        position = _skip(text, end, " \t\r\n,")
    return found, len(text[position:].strip(" \t\r\n]").encode())


def _skip(text: str, position: int, characters: str) -> int:
    while position < len(text) and text[position] in characters:
        position += 1
    return position


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
