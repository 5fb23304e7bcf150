"""A strict reader of HTTP/1.1 answers.

It reads what RFC 9112 allows a server to send and refuses the rest: an answer that two readers could
cut in two places is how one caller gets another's answer. A refusal costs one connection.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_HEAD_BYTES = 65536
"""The most that all heads of one answer (1xx included), or its trailers, may take."""

CHUNKED = -1
UNTIL_CLOSE = -2

_CHUNK_LINE_BYTES = 4096
_RECEIVE_BYTES = 65536
_BULK_BYTES = 262144

_TOKEN = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_TEXT = rb"[\t -~\x80-\xff]*"
_STATUS_LINE = re.compile(rb"HTTP/1\.([01]) ([1-5][0-9][0-9])(?: " + _TEXT + rb")?\r\n")
_FIELDS = re.compile(rb"(?:" + _TOKEN + rb":" + _TEXT + rb"\r\n)*")
_FRAMING = re.compile(rb"^(content-length|transfer-encoding|connection):([^\r\n]*)", re.I | re.M)
_CHUNK_SIZE = re.compile(rb"([0-9A-Fa-f]{1,15})(?:[ \t]*;" + _TEXT + rb")?")
_LENGTH = re.compile(rb"[0-9]{1,18}")


class Malformed(Exception):
    """The bytes that came are no answer, or no whole one; the text says why and is fit for an error."""


class Head:
    """A parsed head: what is needed to find the end of the body, and whether the connection stays."""

    __slots__ = ("keeps", "length", "raw", "status")

    def __init__(self, status: int, length: int, keeps: bool, raw: bytes) -> None:
        self.status = status
        self.length = length
        self.keeps = keeps
        self.raw = raw


def parse_head(raw: bytes) -> Head:
    """Parse a head that ends with an empty line.

    Raises:
        Malformed: it is not one, or does not say in exactly one way where the body ends.
    """
    line = _STATUS_LINE.match(raw)
    if line is None:
        raise Malformed("the status line is not HTTP/1.1")
    if not _FIELDS.fullmatch(raw, line.end(), len(raw) - 2):
        raise Malformed("a header field is malformed")
    status, is_1_1 = int(line[2]), line[1] == b"1"
    framing = _framing_fields(raw, line.end())
    length = _body_length(status, is_1_1, framing)
    keeps = is_1_1 and length != UNTIL_CLOSE and status != 304 and not _says_close(framing)
    return Head(status, length, keeps, raw)


_Framing = dict[bytes, list[bytes]]


def _framing_fields(raw: bytes, start: int) -> _Framing:
    fields: _Framing = {}
    for match in _FRAMING.finditer(raw, start):
        fields.setdefault(match[1].lower(), []).append(match[2].strip(b" \t"))
    return fields


def _body_length(status: int, is_1_1: bool, framing: _Framing) -> int:
    lengths = framing.get(b"content-length", [])
    codings = framing.get(b"transfer-encoding", [])
    length = _one_length(lengths) if lengths else UNTIL_CLOSE
    if codings:
        length = _chunked(codings, is_1_1, bool(lengths))
    if status < 200 or status in (204, 304):
        return _no_body(status, length)
    return length


def _one_length(lengths: list[bytes]) -> int:
    if len(set(lengths)) != 1:
        raise Malformed("it has several Content-Lengths")
    if not _LENGTH.fullmatch(lengths[0]):
        raise Malformed("its Content-Length is no number")
    return int(lengths[0])


def _chunked(codings: list[bytes], is_1_1: bool, has_length: bool) -> int:
    if has_length:
        raise Malformed("it has both a Content-Length and a Transfer-Encoding")
    if not is_1_1 or [coding.lower() for coding in codings] != [b"chunked"]:
        raise Malformed("its Transfer-Encoding is not just chunked")
    return CHUNKED


def _no_body(status: int, length: int) -> int:
    if status != 304 and (length == CHUNKED or length > 0):
        raise Malformed(f"a {status} announces a body")
    return 0


def _says_close(framing: _Framing) -> bool:
    options = b",".join(framing.get(b"connection", [])).lower().split(b",")
    return any(option.strip(b" \t") == b"close" for option in options)


class Reader:
    """Reads one answer from bytes that come in any pieces.

    Attributes:
        status: the status, as soon as its head was read; None before.
        body: what came of the body so far, without transfer coding. It is good even when `read` raises.
    """

    def __init__(self, receive: Callable[[int], bytes], max_body_bytes: int) -> None:
        self.status: int | None = None
        self.body = bytearray()
        self._receive = receive
        self._max_body_bytes = max_body_bytes
        self._buffer = bytearray()

    def read(self, received: bytes) -> Head:
        """Read on to the end of the answer.

        Args:
            received: the bytes that were received already; empty when the connection has ended.

        Raises:
            Malformed: the answer breaks off or breaks a rule.
            OSError: whatever `receive` raises.
        """
        self._add(received)
        head = self._read_head()
        self.status = head.status
        if head.length == CHUNKED:
            self._read_chunks()
        elif head.length == UNTIL_CLOSE:
            self._read_until_close()
        else:
            self._read_body(head.length)
        if self._buffer and head.keeps:
            raise Malformed("more bytes came than the answer has")
        return head

    def _add(self, received: bytes) -> None:
        if not received:
            raise Malformed("the connection was closed before the answer was whole")
        self._buffer += received

    def _more(self) -> None:
        self._add(self._receive(_RECEIVE_BYTES))

    def _take(self, count: int) -> bytes:
        taken = bytes(self._buffer[:count])
        del self._buffer[:count]
        return taken

    def _read_head(self) -> Head:
        spent = 0
        while True:
            raw = self._take(self._find_head_end(MAX_HEAD_BYTES - spent))
            head = parse_head(raw)
            if head.status == 101:
                raise Malformed("it changes to a protocol that was not asked for")
            if head.status >= 200:
                return head
            spent += len(raw)

    def _find_head_end(self, limit: int) -> int:
        start = 0
        while (end := self._buffer.find(b"\r\n\r\n", start)) < 0:
            # What is no HTTP at all is not waited for.
            if not b"HTTP/1.".startswith(self._buffer[:7]):
                raise Malformed("the status line is not HTTP/1.1")
            if len(self._buffer) > limit:
                break
            start = max(0, len(self._buffer) - 3)
            self._more()
        if end < 0 or end + 4 > limit:
            raise Malformed(f"its head is longer than {MAX_HEAD_BYTES} bytes")
        return end + 4

    def _read_chunks(self) -> None:
        while size := self._read_chunk_size():
            self._read_body(size)
            if self._read_line(2) != b"":
                raise Malformed("a chunk is longer than it says")
        self._read_trailers()

    def _read_chunk_size(self) -> int:
        match = _CHUNK_SIZE.fullmatch(self._read_line(_CHUNK_LINE_BYTES))
        if match is None:
            raise Malformed("a chunk size is no number")
        return int(match[1], 16)

    def _read_trailers(self) -> None:
        spent = 0
        while line := self._read_line(MAX_HEAD_BYTES - spent):
            spent += len(line) + 2
            if not _FIELDS.fullmatch(line + b"\r\n"):
                raise Malformed("a trailer field is malformed")

    def _read_line(self, limit: int) -> bytes:
        start = 0
        while (end := self._buffer.find(b"\r\n", start)) < 0 and len(self._buffer) < limit:
            start = max(0, len(self._buffer) - 1)
            self._more()
        if end < 0 or end + 2 > limit:
            raise Malformed("a line of its chunked body is too long")
        line = self._take(end + 2)
        return line[:-2]

    def _read_body(self, count: int) -> None:
        """Move `count` bytes to the body; of a body over the limit, as many as fit."""
        wanted = len(self.body) + min(count, self._max_body_bytes - len(self.body))
        within_limit = wanted == len(self.body) + count
        while (missing := wanted - len(self.body)) > 0:
            if not self._buffer:
                self._add(self._receive(_RECEIVE_BYTES if missing < _BULK_BYTES else _BULK_BYTES))
            self.body += self._buffer[:missing]
            del self._buffer[:missing]
        if not within_limit:
            raise Malformed(f"its body is longer than {self._max_body_bytes} bytes")

    def _read_until_close(self) -> None:
        while True:
            room = self._max_body_bytes - len(self.body)
            self.body += self._buffer[:room]
            if len(self._buffer) > room:
                raise Malformed(f"its body is longer than {self._max_body_bytes} bytes")
            self._buffer.clear()
            received = self._receive(_BULK_BYTES)
            if not received:
                return
            self._buffer += received
