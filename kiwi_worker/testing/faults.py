"""Faults by name: small frozen values that say how one call goes wrong.

A fault strikes at one of two moments. *Before* the server acted: nothing was handed out, locked or recorded,
and no protocol answer exists; what the client sees was made up on the way. *After* the server acted: the
work is done, and its answer is lost, late or spoiled; this is the moment that loses messages. `moments` of a
fault lists those it knows; the first one is its default. A fault that spoils the true answer knows only
`after`, since before there is none.

Each is used with `server.fault(call, FAULT, after=…)`. None of them may be shared state: the same value can
be armed several times.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Literal

from kiwi_worker.testing.wire import Reply, http_date

if TYPE_CHECKING:
    from kiwi_worker.testing.exchange import Exchange

__all__ = [
    "ByteOrderMark",
    "Chunked",
    "CloseKeepAlive",
    "DropAfter",
    "DropBefore",
    "DuplicateMessages",
    "EmptyBody",
    "ExpiredToken",
    "ExtraBytes",
    "Fault",
    "HalfOpen",
    "Html502",
    "NotHttp",
    "PartialBody",
    "Redeliver",
    "Redirect",
    "ReorderMessages",
    "SlowLink",
    "Stall",
    "Status",
    "TooManyRequests",
    "UntilClose",
    "WrongClock",
    "WrongJson",
    "WrongLength",
    "fault_named",
    "fault_names",
]

Moment = Literal["before", "after"]

_SLICE_SECONDS = 0.02
_HTML = (
    b"<html>\r\n<head><title>502 Bad Gateway</title></head>\r\n<body>\r\n<center><h1>502 Bad Gateway</h1>"
    b"</center>\r\n<hr><center>nginx</center>\r\n</body>\r\n</html>\r\n"
)


class Fault:
    """One way a call goes wrong. Subclass it, frozen, to make your own.

    Attributes:
        moments: when it can strike: `before` the server acted, `after`, or both; the first is the default.
    """

    moments: ClassVar[tuple[Moment, ...]] = ("before", "after")

    def strike(self, exchange: Exchange) -> None:
        """Answer this exchange wrongly. What it does not send is not sent.

        Raises:
            OSError: the client is gone.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class Stall(Fault):
    """The answer is the right one, and late.

    Args:
        seconds: how long nothing happens. `before`: the server does its work only then; `after`: the work is
            done and its answer waits.
    """

    seconds: float

    def strike(self, exchange: Exchange) -> None:
        exchange.pause(self.seconds)
        exchange.answer(exchange.act())


@dataclass(frozen=True)
class DropBefore(Fault):
    """The connection closes before the first byte of an answer.

    Args:
        reset: end it with a connection reset instead of an orderly close.
    """

    reset: bool = False

    def strike(self, exchange: Exchange) -> None:
        exchange.cut(reset=self.reset)


@dataclass(frozen=True)
class DropAfter(Fault):
    """The connection closes after some bytes of the answer, head included.

    Args:
        n_bytes: how many leave.
        reset: end it with a connection reset, which may also destroy bytes already under way.
    """

    moments: ClassVar[tuple[Moment, ...]] = ("after",)
    n_bytes: int
    reset: bool = False

    def strike(self, exchange: Exchange) -> None:
        reply = exchange.act()
        exchange.send((exchange.head(reply) + reply.payload())[: self.n_bytes])
        exchange.cut(reset=self.reset)


@dataclass(frozen=True)
class PartialBody(Fault):
    """A whole head with the true length, a part of the body, then the connection closes.

    Args:
        n_bytes: how much of the body leaves; None for half of it.
    """

    moments: ClassVar[tuple[Moment, ...]] = ("after",)
    n_bytes: int | None = None

    def strike(self, exchange: Exchange) -> None:
        reply = exchange.act()
        length = len(reply.payload()) // 2 if self.n_bytes is None else self.n_bytes
        exchange.send(exchange.head(reply) + reply.payload()[:length])
        exchange.cut()


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
class HalfOpen(Fault):
    """The request is accepted and never answered; the connection stays open until the client leaves."""

    def strike(self, exchange: Exchange) -> None:
        exchange.hang()


@dataclass(frozen=True)
class NotHttp(Fault):
    """Bytes that are no HTTP answer, then the connection closes.

    Args:
        data: the bytes.
    """

    data: bytes = b"SSH-2.0-OpenSSH_9.6\r\n"

    def strike(self, exchange: Exchange) -> None:
        exchange.send(self.data)
        exchange.cut()


@dataclass(frozen=True)
class ExpiredToken(Fault):
    """The token is over. On `token`: the one handed out is expired already. Elsewhere: the one presented is
    expired from now on, for this call and all later ones, and the answer is the protocol's 401."""

    moments: ClassVar[tuple[Moment, ...]] = ("before",)

    def strike(self, exchange: Exchange) -> None:
        exchange.token_expired = True
        exchange.answer(exchange.act())


@dataclass(frozen=True)
class WrongClock(Fault):
    """The server's wall clock is wrong: `Date` on any call, and the claims `iat` and `exp` on `token`.

    Args:
        offset_seconds: how far it is ahead; negative when it is behind.
    """

    moments: ClassVar[tuple[Moment, ...]] = ("before",)
    offset_seconds: float

    def strike(self, exchange: Exchange) -> None:
        exchange.clock_offset_seconds = self.offset_seconds
        exchange.answer(exchange.act())


@dataclass(frozen=True)
class SlowLink(Fault):
    """The true answer at a given speed.

    Args:
        bytes_per_second: the speed, above 0.
    """

    moments: ClassVar[tuple[Moment, ...]] = ("after",)
    bytes_per_second: float

    def strike(self, exchange: Exchange) -> None:
        reply = exchange.act()
        data = exchange.head(reply) + reply.payload()
        step = max(1, int(self.bytes_per_second * _SLICE_SECONDS))
        for start in range(0, len(data), step):
            exchange.send(data[start : start + step])
            exchange.pause(step / self.bytes_per_second)


@dataclass(frozen=True)
class CloseKeepAlive(Fault):
    """The true answer, promising nothing about the connection, which then closes.

    Args:
        seconds: how long it stays open, idle, before it closes.
        reset: end it with a connection reset.
    """

    moments: ClassVar[tuple[Moment, ...]] = ("after",)
    seconds: float = 0.0
    reset: bool = False

    def strike(self, exchange: Exchange) -> None:
        exchange.answer(exchange.act())
        exchange.call.outcome = "answered"
        exchange.pause(self.seconds)
        exchange.drop_line(reset=self.reset)


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


@dataclass(frozen=True)
class ByteOrderMark(Fault):
    """The true answer with a UTF-8 byte order mark in front of its body."""

    moments: ClassVar[tuple[Moment, ...]] = ("after",)

    def strike(self, exchange: Exchange) -> None:
        reply = exchange.act()
        exchange.answer(reply.with_body(b"\xef\xbb\xbf" + reply.body))


@dataclass(frozen=True)
class DuplicateMessages(Fault):
    """A drain that holds every message several times.

    Args:
        copies: how often each one is there.
    """

    moments: ClassVar[tuple[Moment, ...]] = ("after",)
    copies: int = 2

    def strike(self, exchange: Exchange) -> None:
        reply = exchange.act()
        exchange.answer(replace(reply, body=_array(_elements(reply) * self.copies)))


@dataclass(frozen=True)
class ReorderMessages(Fault):
    """A drain whose messages come last first."""

    moments: ClassVar[tuple[Moment, ...]] = ("after",)

    def strike(self, exchange: Exchange) -> None:
        reply = exchange.act()
        exchange.answer(replace(reply, body=_array(_elements(reply)[::-1])))


@dataclass(frozen=True)
class Redeliver(Fault):
    """What this drain or poll hands out is handed out again by the next one: the same message in two drains,
    or the same ORBIT attempt under a new token."""

    moments: ClassVar[tuple[Moment, ...]] = ("after",)

    def strike(self, exchange: Exchange) -> None:
        reply = exchange.act()
        exchange.take_back()
        exchange.answer(reply)


def fault_names() -> list[str]:
    """The names of all faults of this module, sorted."""
    return sorted(_all_faults())


def fault_named(name: str, **arguments: object) -> Fault:
    """The fault of this name; text is taken for bytes where the fault wants bytes, lists for tuples.

    Raises:
        ValueError: there is no such fault, or it does not take these arguments.
    """
    faults = _all_faults()
    if name not in faults:
        raise ValueError(f"there is no fault {name!r}; the faults are {', '.join(sorted(faults))}")
    kinds: dict[str, str] = getattr(faults[name], "__annotations__", {})
    try:
        return faults[name](**{key: _fitting(value, kinds.get(key, "")) for key, value in arguments.items()})
    except TypeError as error:
        raise ValueError(f"{name}: {error}") from error


def _all_faults() -> dict[str, type[Fault]]:
    return {kind.__name__: kind for kind in Fault.__subclasses__() if kind.__module__ == __name__}


def _fitting(value: object, kind: str) -> object:
    if kind.startswith("bytes") and isinstance(value, str):
        return value.encode()
    if isinstance(value, list):
        return tuple(tuple(part) if isinstance(part, list) else part for part in value)
    return value


def _elements(reply: Reply) -> list[bytes]:
    """The elements of a drained array, as the raw bytes they were handed out as."""
    raws = [bytes(getattr(entry, "raw", b"")) for entry in reply.taken]
    return raws or [json.dumps(element).encode() for element in json.loads(reply.body or b"[]")]


def _array(elements: list[bytes]) -> bytes:
    return b"[" + b",".join(elements) + b"]"
