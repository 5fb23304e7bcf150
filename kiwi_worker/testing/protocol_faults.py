"""Faults of the protocol's own meaning: tokens, clocks, and messages that come twice or in another order."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from kiwi_worker.testing.fault import Fault, Moment
from kiwi_worker.testing.kiwi_queue import Message
from kiwi_worker.testing.wire import Reply

if TYPE_CHECKING:
    from kiwi_worker.testing.exchange import Exchange

__all__ = [
    "DuplicateMessages",
    "ExpiredToken",
    "Redeliver",
    "ReorderMessages",
    "WrongClock",
]


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
class DuplicateMessages(Fault):
    """A drain that holds every message several times.

    Args:
        copies: how often each one is there.
    """

    moments: ClassVar[tuple[Moment, ...]] = ("after",)
    calls: ClassVar[frozenset[str]] = frozenset({"drain"})
    copies: int = 2

    def strike(self, exchange: Exchange) -> None:
        reply = exchange.act()
        exchange.answer(replace(reply, body=_array(_elements(reply) * self.copies)))


@dataclass(frozen=True)
class ReorderMessages(Fault):
    """A drain whose messages come last first."""

    moments: ClassVar[tuple[Moment, ...]] = ("after",)
    calls: ClassVar[frozenset[str]] = frozenset({"drain"})

    def strike(self, exchange: Exchange) -> None:
        reply = exchange.act()
        exchange.answer(replace(reply, body=_array(_elements(reply)[::-1])))


@dataclass(frozen=True)
class Redeliver(Fault):
    """What this drain or poll hands out is handed out again by the next one: the same message in two drains,
    or the same ORBIT attempt under a new token."""

    moments: ClassVar[tuple[Moment, ...]] = ("after",)
    calls: ClassVar[frozenset[str]] = frozenset({"drain", "poll"})

    def strike(self, exchange: Exchange) -> None:
        reply = exchange.act()
        exchange.take_back()
        exchange.answer(reply)


def _elements(reply: Reply) -> list[bytes]:
    """The elements of a drained array, as the raw bytes they were handed out as."""
    return [message.raw for message in reply.taken if isinstance(message, Message)]


def _array(elements: list[bytes]) -> bytes:
    return b"[" + b",".join(elements) + b"]"
