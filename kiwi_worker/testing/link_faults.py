"""Faults of the link: late, slow, cut or silent, whatever the answer says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from kiwi_worker.testing.fault import Fault, Moment

if TYPE_CHECKING:
    from kiwi_worker.testing.exchange import Exchange

__all__ = [
    "CloseKeepAlive",
    "DropAfter",
    "DropBefore",
    "HalfOpen",
    "NotHttp",
    "PartialBody",
    "SlowLink",
    "Stall",
]

_SLICE_SECONDS = 0.02


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
class HalfOpen(Fault):
    """The request is accepted and never answered; the connection stays open until the client leaves."""

    def strike(self, exchange: Exchange) -> None:
        exchange.hang()


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
class NotHttp(Fault):
    """Bytes that are no HTTP answer, then the connection closes.

    Args:
        data: the bytes.
    """

    data: bytes = b"SSH-2.0-OpenSSH_9.6\r\n"

    def strike(self, exchange: Exchange) -> None:
        exchange.send(self.data)
        exchange.cut()
