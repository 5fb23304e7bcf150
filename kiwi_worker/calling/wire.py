"""HTTP/1.1 answers and server-sent events out of bytes, without a socket: shared by both faces.

`transport.reader` reads whole answers from a blocking socket; here the bytes are handed in, because a stream
is read as it comes and an asyncio connection cannot block. Heads are parsed by the same strict parser.
"""

from __future__ import annotations

from ..errors import ProtocolError
from ..transport.answer import Answer
from ..transport.endpoint import Endpoint
from ..transport.heads import RequestHeads, check_path, method_bytes, target_prefix
from ..transport.reader import CHUNKED, UNTIL_CLOSE, Head, Malformed, parse_head
from .effects import Ask, Open

__all__ = ["EventReader", "Requests", "ResponseReader"]

MAX_HEAD = 65_536
MAX_LINE = 4096


class Requests:
    """Makes the bytes of requests.

    Args:
        endpoint: where they go.
        user_agent: what sends them.
    """

    def __init__(self, endpoint: Endpoint, user_agent: str) -> None:
        self._endpoint = endpoint
        self._user_agent = user_agent
        self._prefix = target_prefix(endpoint)

    def bytes_of(self, ask: Ask) -> bytes:
        """One whole request."""
        check_path(ask.target)
        heads = RequestHeads(self._endpoint, self._user_agent, ask.authorization)
        head = heads.bare[:-2]
        if isinstance(ask, Open):
            head = head.replace(b"Accept: application/json", b"Accept: text/event-stream")
            if ask.last_event_id:
                head += b"Last-Event-ID: %d\r\n" % ask.last_event_id
        if ask.body is not None:
            kind = b"application/x-www-form-urlencoded" if ask.form else b"application/json"
            head += b"Content-Type: %b\r\nContent-Length: %d\r\n" % (kind, len(ask.body))
        line = method_bytes(ask.method) + self._prefix + ask.target.encode("ascii")
        return line + head + b"\r\n" + (ask.body or b"")


class ResponseReader:
    """Reads one answer out of the bytes it is fed.

    Attributes:
        done: the whole answer is there.

    Raises:
        ProtocolError: from every method, the bytes are no HTTP answer.
    """

    def __init__(self, max_body: int) -> None:
        self.done = False
        self._head: Head | None = None
        self._buffer = bytearray()
        self._body = bytearray()
        self._left = 0
        self._max_body = max_body

    @property
    def status(self) -> int:
        """The status once the head is there, else 0."""
        return 0 if self._head is None else self._head.status

    @property
    def keeps(self) -> bool:
        """Whether the connection may carry another request."""
        return self.done and self._head is not None and self._head.keeps and not self._buffer

    def feed(self, data: bytes) -> None:
        """Some more bytes; none at all means that the server closed the connection."""
        if not data:
            self._closed()
        self._buffer += data
        while self._head is None and self._read_head():
            pass
        if self._head is not None and not self.done:
            self._read_body(self._head.length)

    def taken(self) -> bytes:
        """The part of the body that came since the last time, for answers that are read as they come."""
        part = bytes(self._body)
        self._body.clear()
        return part

    def answer(self) -> Answer:
        """The answer; its body is what was not taken."""
        assert self._head is not None
        return Answer(self._head.status, bytes(self._body), self._head.raw)

    def _closed(self) -> None:
        if self._head is None or self._head.length != UNTIL_CLOSE:
            raise ProtocolError("the server closed the connection before its answer was whole")
        self.done = True

    def _read_head(self) -> bool:
        """Take one head; whether there may be another one, after a 1xx."""
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            if len(self._buffer) > MAX_HEAD:
                raise ProtocolError("the server's answer has a head that does not end")
            return False
        try:
            head = parse_head(bytes(self._buffer[: end + 4]))
        except Malformed as problem:
            raise ProtocolError(f"the server's answer is not HTTP: {problem}") from None
        del self._buffer[: end + 4]
        if head.status < 200:
            return True
        self._head = head
        self._left = max(head.length, 0)
        return False

    def _read_body(self, length: int) -> None:
        if length == CHUNKED:
            while self._read_chunk():
                pass
        elif length == UNTIL_CLOSE:
            self._take(len(self._buffer))
        else:
            count = min(self._left, len(self._buffer))
            self._take(count)
            self._left -= count
            self.done = self._left == 0

    def _read_chunk(self) -> bool:
        """Take one whole chunk; the last one ends the answer. Whether another may be there."""
        end = self._buffer.find(b"\r\n")
        if end < 0 and len(self._buffer) <= MAX_LINE:
            return False
        size = _chunk_size(bytes(self._buffer[: max(end, 0)]))
        if size == 0:
            self._read_trailer(end)
            return False
        if size > self._max_body:
            raise self._too_long()
        if len(self._buffer) < end + 2 + size + 2:
            return False
        del self._buffer[: end + 2]
        self._take(size)
        del self._buffer[:2]
        return True

    def _read_trailer(self, start: int) -> None:
        end = self._buffer.find(b"\r\n\r\n", start)
        if end >= 0:
            del self._buffer[: end + 4]
            self.done = True

    def _take(self, count: int) -> None:
        if len(self._body) + count > self._max_body:
            raise self._too_long()
        self._body += self._buffer[:count]
        del self._buffer[:count]

    def _too_long(self) -> ProtocolError:
        return ProtocolError(f"the server's answer is longer than {self._max_body} bytes")


def _chunk_size(line: bytes) -> int:
    try:
        return int(line.split(b";")[0], 16)
    except ValueError:
        raise ProtocolError("the server's answer has a chunk without a size") from None


class EventReader:
    """Reads server-sent events out of the bytes it is fed."""

    def __init__(self) -> None:
        self._buffer = b""

    def feed(self, data: bytes) -> list[tuple[str, int, bytes]]:
        """The events that are whole now: name, number (0 without one), data.

        Raises:
            ProtocolError: one of them cannot be read.
        """
        *blocks, self._buffer = (self._buffer + data).split(b"\n\n")
        return [event for block in blocks if (event := _event(block)) is not None]


def _event(block: bytes) -> tuple[str, int, bytes] | None:
    fields = dict(line.split(b": ", 1) for line in block.split(b"\n") if b": " in line)
    if b"data" not in fields:
        return None
    try:
        return fields.get(b"event", b"message").decode(), int(fields.get(b"id", b"0")), fields[b"data"]
    except ValueError:
        raise ProtocolError("the server sent an event whose name or number cannot be read") from None
