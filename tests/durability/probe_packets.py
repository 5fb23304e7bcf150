"""Wake-up packets, and what is nearly one: what the probe is fuzzed with."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from typing import TypeVar

__all__ = ["PacketMaker"]

T = TypeVar("T")

WAKE_UP = b'{"PacketId":"fuzz-%d","Message":{"MessageText":"pull_signal","Parameters":%b}}'
TOKENS = [
    b'"PacketId"',
    b'"',
    b"\\",
    b"\\u0000",
    b"\\ud800",
    b"{",
    b"}",
    b"[",
    b"]",
    b",",
    b":",
    b"null",
    b"NaN",
    b"-1e999",
    b"\xff",
    b"\x00",
    b"\xef\xbb\xbf",
    b"\r\n",
    b"[" * 2000,
    b" " * 8000,
]
ODD_VALUES: list[object] = [
    None,
    True,
    -1,
    2**70,
    "",
    " ",
    "a" * 128,
    "a" * 129,
    "\0",
    "a\r\nACK:b",
    "ä\U0001f600",
    [],
    ["a"],
    {"PacketId": "inner"},
]


class PacketMaker:
    """Makes one packet after another, by chance.

    Args:
        seed: the same one makes the same packets.
    """

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._fraction = self._random.random
        self._made = 0
        self._mutations: list[Callable[[bytes], bytes]] = [
            self._change_a_byte,
            self._cut,
            self._insert,
            self._remove,
            self._repeat,
            lambda packet: packet + self.wake_up(),
        ]

    def wake_up(self) -> bytes:
        """A packet as the page shows it; now and then one that was made before."""
        number = self._made
        if self._fraction() < 0.1:
            number -= self._below(min(100, number))
        else:
            self._made += 1
        return WAKE_UP % (number, self._one_of((b"null", b'"request"')))

    def any(self) -> bytes:
        """A mutated packet, a valid one, one with odd values in it, or garbage."""
        kind = self._fraction()
        if kind < 0.6:
            return self._mutated()
        if kind < 0.85:
            return self.wake_up()
        return self._odd() if kind < 0.92 else self._random.randbytes(self._below(80))

    def stream(self, packets: int) -> bytes:
        """Packets one after another, few of which are not valid: nothing behind nonsense is read."""
        parts = []
        for _ in range(packets):
            parts.append(self.any() if self._fraction() < 0.03 else self.wake_up())
            parts.append(self._one_of((b"", b"", b" ", b"\r\n")))
        return b"".join(parts)

    def cuts(self, data: bytes) -> list[bytes]:
        """The same bytes in pieces."""
        pieces = []
        while data:
            size = 1 + self._below(self._one_of((3, 100, 1000)))
            pieces.append(data[:size])
            data = data[size:]
        return pieces

    def _mutated(self) -> bytes:
        packet = self.wake_up()
        for _ in range(self._one_of((1, 1, 1, 1, 2, 4))):
            packet = self._one_of(self._mutations)(packet)
        return packet

    def _odd(self) -> bytes:
        names = [name for name in ("PacketId", "Message", "x") if self._fraction() < 0.8]
        packet = {name: self._one_of(ODD_VALUES) for name in names}
        return json.dumps(packet, ensure_ascii=self._fraction() < 0.5).encode()

    def _below(self, end: int) -> int:
        return int(self._fraction() * end)  # four times as fast as randrange

    def _one_of(self, choices: Sequence[T]) -> T:
        return choices[int(self._fraction() * len(choices))]

    def _change_a_byte(self, packet: bytes) -> bytes:
        place = self._below(len(packet) + 1)
        return b"%b%c%b" % (packet[:place], self._below(256), packet[place + 1 :])

    def _cut(self, packet: bytes) -> bytes:
        return packet[: self._below(len(packet) + 1)]

    def _insert(self, packet: bytes) -> bytes:
        place = self._below(len(packet) + 1)
        return packet[:place] + self._one_of(TOKENS) + packet[place:]

    def _remove(self, packet: bytes) -> bytes:
        place = self._below(len(packet) + 1)
        return packet[:place] + packet[place + self._below(30) :]

    def _repeat(self, packet: bytes) -> bytes:
        place = self._below(len(packet) + 1)
        end = place + self._below(30)
        return packet[:end] + packet[place:end] * self._one_of((1, 1, 1, 20)) + packet[end:]
