"""Raw HTTP/1.1 on an accepted socket: requests read, answers encoded, every byte under our control."""

from __future__ import annotations

import json
import selectors
import socket
import struct
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from email.utils import formatdate
from functools import cached_property
from http import HTTPStatus
from typing import Any, BinaryIO
from urllib.parse import parse_qsl, unquote

__all__ = ["BadRequest", "Line", "Reply", "Request", "http_date", "is_ready"]

_Selector: type[selectors.BaseSelector] = getattr(selectors, "PollSelector", selectors.SelectSelector)
_LONGEST_LINE = 65536
_LONGEST_BODY = 256 * 1024 * 1024
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


class BadRequest(Exception):
    """What came is no HTTP/1.1 request; the text says where it stopped being one."""


@dataclass(frozen=True)
class Request:
    """One request as it came over the wire.

    Attributes:
        method: the verb, as sent.
        target: the request target, as sent: path and query, still percent-encoded.
        headers: name and value pairs in the order sent; names as sent.
        body: the whole body, with a chunked one put together.
        prefix: what stands in front of the protocol's paths on this server.
    """

    method: str
    target: str
    headers: tuple[tuple[str, str], ...]
    body: bytes
    prefix: str = ""

    @property
    def path(self) -> str:
        """The path, still percent-encoded, without the query and the server's prefix."""
        return self.target.partition("?")[0].removeprefix(self.prefix)

    @cached_property
    def segments(self) -> tuple[str, ...]:
        """The parts of the path, each percent-decoded on its own, so that `%2F` in an id stays in it."""
        return tuple(unquote(part) for part in self.path.strip("/").split("/"))

    @cached_property
    def query(self) -> dict[str, str]:
        """The query's names and values; the last one wins."""
        return dict(parse_qsl(self.target.partition("?")[2], keep_blank_values=True))

    def header(self, name: str) -> str | None:
        """The first value of this header, or None; the name in any case."""
        return _first(self.headers, name)

    def json_object(self) -> dict[str, Any] | None:
        """The body as a JSON object, or None when it is something else."""
        try:
            body = json.loads(self.body)
        except ValueError:
            return None
        return body if isinstance(body, dict) else None

    @property
    def wants_close(self) -> bool:
        """Whether the client asked for the connection to be closed after the answer."""
        return (self.header("connection") or "").lower() == "close"


@dataclass(frozen=True)
class Reply:
    """One answer before it is encoded.

    Attributes:
        status: the HTTP status.
        body: the body; nothing of it is sent with 204.
        content_type: the content type, or None for none.
        headers: further headers.
        taken: what this answer hands out for good (drained messages, a polled task), so that a fault can
            put it back. Empty for answers that hand out nothing.
    """

    status: int = 200
    body: bytes = b""
    content_type: str | None = "application/json"
    headers: tuple[tuple[str, str], ...] = ()
    taken: tuple[object, ...] = ()

    def with_body(self, body: bytes) -> Reply:
        """The same answer with another body."""
        return replace(self, body=body)

    def head(self, now: float, framing: tuple[tuple[str, str], ...] | None = None) -> bytes:
        """The status line and headers, with the empty line that ends them.

        Args:
            now: wall-clock seconds since the epoch, for `Date`.
            framing: the headers that say how long the body is; None states its true length.
        """
        lines = [f"HTTP/1.1 {self.status} {_reason(self.status)}", f"Date: {formatdate(now, usegmt=True)}"]
        lines += [f"{name}: {value}" for name, value in self._all_headers(framing)]
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")

    def payload(self) -> bytes:
        """The bytes that follow the head."""
        return b"" if self.status == 204 else self.body

    def _all_headers(self, framing: tuple[tuple[str, str], ...] | None) -> Iterable[tuple[str, str]]:
        yield ("Server", "kiwi-misbehaving")
        if self.content_type is not None and self.payload():
            yield ("Content-Type", self.content_type)
        yield from self.headers
        if framing is not None:
            yield from framing
        elif self.status != 204:
            yield ("Content-Length", str(len(self.body)))


class Line:
    """One accepted connection, used by one thread; only `interrupt` may be called from another.

    Args:
        sock: the accepted socket; the line owns it from now on.
        number: counts connections, so that a test can see which calls shared one.
        idle_seconds: how long it waits for the next request, or None for as long as it takes.
    """

    def __init__(self, sock: socket.socket, number: int, idle_seconds: float | None = None) -> None:
        self.number = number
        self._sock = sock
        self._idle_seconds = idle_seconds
        self._reader: BinaryIO = sock.makefile("rb")

    def read_request(self) -> Request | None:
        """The next request, or None when the client closed or the idle time is over.

        Raises:
            BadRequest: what came is no HTTP/1.1 request.
            OSError: the connection broke off.
        """
        try:
            self._sock.settimeout(self._idle_seconds)
            first = self._reader.readline(_LONGEST_LINE)
        except TimeoutError:
            return None
        self._sock.settimeout(None)
        return self._rest_of_request(first) if first.strip() else None

    def send(self, data: bytes) -> None:
        """Send these bytes, all of them.

        Raises:
            OSError: the client is gone.
        """
        self._sock.sendall(data)

    def is_gone(self) -> bool:
        """Whether the client has closed its side (not known over TLS: False there)."""
        try:
            return (
                is_ready(self._sock, selectors.EVENT_READ, 0) and self._sock.recv(1, socket.MSG_PEEK) == b""
            )
        except ValueError:
            return False
        except OSError:
            return True

    def interrupt(self) -> None:
        """End whatever the line's thread waits for on this socket."""
        try:
            self._sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass

    def close(self, *, reset: bool = False) -> None:
        """Close; with `reset` the client sees a connection reset instead of an orderly end."""
        if reset:
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        self._reader.close()
        self._sock.close()

    def _rest_of_request(self, first: bytes) -> Request:
        parts = first.decode("latin-1").rstrip("\r\n").split(" ")
        if len(parts) != 3 or not parts[2].startswith("HTTP/1."):
            raise BadRequest(f"the request line {first[:100]!r} is not 'METHOD target HTTP/1.x'")
        headers = tuple(self._headers())
        if (_first(headers, "expect") or "").lower() == "100-continue":
            self.send(b"HTTP/1.1 100 Continue\r\n\r\n")
        return Request(parts[0], parts[1], headers, self._body(headers))

    def _headers(self) -> Iterable[tuple[str, str]]:
        while line := self._reader.readline(_LONGEST_LINE).strip(b"\r\n"):
            name, colon, value = line.decode("latin-1").partition(":")
            if not colon:
                raise BadRequest(f"the header line {line[:100]!r} has no colon")
            yield name, value.strip()

    def _body(self, headers: tuple[tuple[str, str], ...]) -> bytes:
        if (_first(headers, "transfer-encoding") or "").lower() == "chunked":
            return b"".join(self._chunks())
        length = _first(headers, "content-length") or "0"
        if not length.isdigit():
            raise BadRequest(f"the Content-Length {length[:40]!r} is no number")
        return self._exactly(int(length))

    def _chunks(self) -> Iterable[bytes]:
        while size := _chunk_size(self._reader.readline(_LONGEST_LINE)):
            yield self._exactly(size)
            self._reader.readline(_LONGEST_LINE)
        while self._reader.readline(_LONGEST_LINE).strip():
            pass

    def _exactly(self, length: int) -> bytes:
        if length > _LONGEST_BODY:
            raise BadRequest(f"a body of {length} bytes is over the {_LONGEST_BODY} this server reads")
        body = self._reader.read(length)
        if len(body) < length:
            raise ConnectionError(f"the client closed after {len(body)} of {length} bytes of its body")
        return body


def _chunk_size(line: bytes) -> int:
    try:
        return int(line.split(b";")[0], 16)
    except ValueError:
        raise BadRequest(f"{line[:40]!r} is no size of a chunk") from None


def _first(headers: tuple[tuple[str, str], ...], name: str) -> str | None:
    wanted = name.lower()
    return next((value for key, value in headers if key.lower() == wanted), None)


def _reason(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Unknown"


def http_date(seconds_from_now: float) -> str:
    """An HTTP date this many seconds from now."""
    return formatdate(time.time() + seconds_from_now, usegmt=True)


def is_ready(sock: socket.socket, event: int, seconds: float) -> bool:
    """Wait at most so long until the socket is ready for `selectors.EVENT_READ` or `EVENT_WRITE`."""
    # Not `select.select`: it refuses descriptors over 1023, which a test with many workers reaches.
    with _Selector() as selector:
        selector.register(sock, event)
        return bool(selector.select(seconds))
