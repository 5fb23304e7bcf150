"""Faults of the answer: another one than the protocol's, or the right one in an unusual or wrong frame."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from kiwi_worker.testing.fault import Fault, Moment
from kiwi_worker.testing.wire import Reply, http_date

if TYPE_CHECKING:
    from kiwi_worker.testing.exchange import Exchange

__all__ = [
    "ByteOrderMark",
    "Chunked",
    "EmptyBody",
    "ExtraBytes",
    "Html502",
    "Redirect",
    "Status",
    "TooManyRequests",
    "UntilClose",
    "WrongJson",
    "WrongLength",
]

_HTML = (
    b"<html>\r\n<head><title>502 Bad Gateway</title></head>\r\n<body>\r\n<center><h1>502 Bad Gateway</h1>"
    b"</center>\r\n<hr><center>nginx</center>\r\n</body>\r\n</html>\r\n"
)


@dataclass(frozen=True)
class Status(Fault):
    """Another status, with any body.

    Args:
        status: the HTTP status.
        body: the body.
        content_type: its content type, or None for none.
        headers: further headers, as name and value pairs.
    """

    status: int
    body: bytes = b""
    content_type: str | None = "application/json"
    headers: tuple[tuple[str, str], ...] = ()

    def strike(self, exchange: Exchange) -> None:
        exchange.answer(Reply(self.status, self.body, self.content_type, self.headers))


@dataclass(frozen=True)
class Html502(Fault):
    """A proxy's page: 502 with HTML."""

    def strike(self, exchange: Exchange) -> None:
        exchange.answer(Reply(502, _HTML, "text/html"))


@dataclass(frozen=True)
class WrongJson(Fault):
    """200, the JSON content type, and a body that is no JSON.

    Args:
        body: the body.
    """

    body: bytes = b'{"accepted": tru'

    def strike(self, exchange: Exchange) -> None:
        exchange.answer(Reply(200, self.body))


@dataclass(frozen=True)
class EmptyBody(Fault):
    """An answer without a body.

    Args:
        status: its status.
    """

    status: int = 200

    def strike(self, exchange: Exchange) -> None:
        exchange.answer(Reply(self.status))


@dataclass(frozen=True)
class TooManyRequests(Fault):
    """429 with a Retry-After.

    Args:
        retry_after: seconds until the client may come again, or None to leave the header out.
        as_date: say it as an HTTP date instead of as seconds.
    """

    retry_after: float | None = 1
    as_date: bool = False

    def strike(self, exchange: Exchange) -> None:
        exchange.answer(Reply(429, b'{"error": "too many requests"}', headers=self._headers()))

    def _headers(self) -> tuple[tuple[str, str], ...]:
        if self.retry_after is None:
            return ()
        return (("Retry-After", http_date(self.retry_after) if self.as_date else f"{self.retry_after:g}"),)


@dataclass(frozen=True)
class Redirect(Fault):
    """A redirect.

    Args:
        to: the `Location`: an address, or a path.
        status: 301, 302, 303, 307 or 308.
    """

    to: str
    status: int = 307

    def strike(self, exchange: Exchange) -> None:
        exchange.answer(Reply(self.status, headers=(("Location", self.to),)))


@dataclass(frozen=True)
class ByteOrderMark(Fault):
    """The true answer with a UTF-8 byte order mark in front of its body."""

    moments: ClassVar[tuple[Moment, ...]] = ("after",)

    def strike(self, exchange: Exchange) -> None:
        reply = exchange.act()
        exchange.answer(reply.with_body(b"\xef\xbb\xbf" + reply.body))


@dataclass(frozen=True)
class ExtraBytes(Fault):
    """The true answer, with bytes after its stated end; the connection stays open.

    Args:
        data: the bytes.
    """

    moments: ClassVar[tuple[Moment, ...]] = ("after",)
    data: bytes = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nleft"

    def strike(self, exchange: Exchange) -> None:
        reply = exchange.act()
        exchange.send(exchange.head(reply) + reply.payload() + self.data)


@dataclass(frozen=True)
class WrongLength(Fault):
    """The true answer with a wrong Content-Length; too long a one is followed by the connection's end.

    Args:
        difference: what is added to the true length; negative cuts the answer short.
    """

    moments: ClassVar[tuple[Moment, ...]] = ("after",)
    difference: int

    def strike(self, exchange: Exchange) -> None:
        reply = exchange.act()
        length = max(0, len(reply.payload()) + self.difference)
        exchange.send(exchange.head(reply, (("Content-Length", str(length)),)) + reply.payload())
        exchange.cut()


@dataclass(frozen=True)
class Chunked(Fault):
    """The true answer in chunked transfer coding: no fault of the protocol, but of those who expect a length.

    Args:
        chunk_bytes: the size of one chunk.
        broken: close before the last chunk, so that the end is missing.
    """

    moments: ClassVar[tuple[Moment, ...]] = ("after",)
    chunk_bytes: int = 16
    broken: bool = False

    def strike(self, exchange: Exchange) -> None:
        reply = exchange.act()
        body, size = reply.payload(), self.chunk_bytes
        chunks = [body[start : start + size] for start in range(0, len(body), size)]
        exchange.send(exchange.head(reply, (("Transfer-Encoding", "chunked"),)))
        exchange.send(b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks))
        if self.broken:
            exchange.cut()
        else:
            exchange.send(b"0\r\n\r\n")


@dataclass(frozen=True)
class UntilClose(Fault):
    """The true answer without a length: it ends where the connection does, as HTTP/1.0 allows."""

    moments: ClassVar[tuple[Moment, ...]] = ("after",)

    def strike(self, exchange: Exchange) -> None:
        reply = exchange.act()
        exchange.send(exchange.head(reply, (("Connection", "close"),)) + reply.payload())
        exchange.call.outcome = "answered"
        exchange.drop_line()
