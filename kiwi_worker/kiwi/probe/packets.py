"""The packets of the wake-up probe: what the middleware sends and what the worker answers.

Protocol page, "Lazy-mode wake-up probe". A packet is one JSON object with a `PacketId` of 1 to 128 printable
ASCII characters; nothing else in it is interpreted. The answer is `ACK:<PacketId>`, without a newline.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import msgspec

__all__ = [
    "IGNORED_REASONS",
    "MAX_PACKET_BYTES",
    "NotAPacket",
    "PacketSplitter",
    "acknowledgement",
    "packet_id",
    "pull_signal",
]

MAX_PACKET_BYTES = 65_536
MAX_PACKET_ID_LENGTH = 128

IGNORED_REASONS = (
    "empty",
    "too_long",
    "not_json",
    "not_an_object",
    "no_packet_id",
    "bad_packet_id",
    "incomplete",
    "sender_not_allowed",
)
"""Every reason for which something that arrived is ignored."""

_MARK = re.compile(rb'\\.|["{}\[\]]', re.DOTALL)
_WHITESPACE = b" \t\r\n"


class NotAPacket(ValueError):
    """What arrived is no wake-up packet.

    Attributes:
        reason: one of `IGNORED_REASONS`.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def pull_signal(identity: str, request_id: str | None = None) -> bytes:
    """The packet that tells a lazy worker to drain its queue, as the protocol page shows it.

    Args:
        identity: the `PacketId`, 1 to 128 printable ASCII characters; a new one for each wake-up.
        request_id: the request that waits, or None.
    """
    message = {"MessageText": "pull_signal", "Parameters": request_id}
    return json.dumps({"PacketId": identity, "Message": message}, separators=(",", ":")).encode("ascii")


def acknowledgement(identity: str) -> bytes:
    """The answer to the packet with this `PacketId`."""
    return b"ACK:" + identity.encode("ascii")


def packet_id(data: bytes) -> str:
    """The `PacketId` of a packet.

    Raises:
        NotAPacket: `data` is anything but one JSON object with a valid `PacketId`.
    """
    packet = _decoded(data)
    if not isinstance(packet, dict):
        raise NotAPacket("not_an_object")
    if "PacketId" not in packet:
        raise NotAPacket("no_packet_id")
    identity = packet["PacketId"]
    if not (isinstance(identity, str) and _is_valid_id(identity)):
        raise NotAPacket("bad_packet_id")
    return identity


def _decoded(data: bytes) -> object:
    if not data:
        raise NotAPacket("empty")
    if len(data) > MAX_PACKET_BYTES:
        raise NotAPacket("too_long")
    try:
        decoded: object = msgspec.json.decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        raise NotAPacket("not_json") from None
    return decoded


def _is_valid_id(identity: str) -> bool:
    return 1 <= len(identity) <= MAX_PACKET_ID_LENGTH and identity.isascii() and identity.isprintable()


class PacketSplitter:
    """Tells the packets of one byte stream apart by balanced JSON.

    Brackets inside strings do not count, and what was scanned once is not scanned again, so that a stream
    that comes byte by byte costs no more than one that comes at once.
    """

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._start_over()

    @property
    def partial(self) -> bool:
        """True while a packet has begun and not ended."""
        return bool(self._buffer)

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Take more bytes and yield each JSON value that is complete by now, be it an object or not.

        Raises:
            NotAPacket: what follows the values yielded so far begins no JSON value, or is longer than 64 KiB;
                nothing behind it can be trusted.
        """
        self._buffer += data
        while (end := self._end_of_value()) is not None:
            value = bytes(self._buffer[:end])
            del self._buffer[:end]
            self._start_over()
            yield value
        if len(self._buffer) > MAX_PACKET_BYTES:
            raise NotAPacket("too_long")

    def _start_over(self) -> None:
        self._scanned = self._depth = 0
        self._in_string = False

    def _end_of_value(self) -> int | None:
        if not self._depth and not self._skip_to_value():
            return None
        while (mark := _MARK.search(self._buffer, self._scanned)) is not None:
            self._scanned = mark.end()
            self._count(mark[0])
            if not self._depth:
                return self._scanned
        self._scanned = self._end_of_scan()
        return None

    def _skip_to_value(self) -> bool:
        """Drop the white space between two values; True when a value begins."""
        blank = len(self._buffer) - len(self._buffer.lstrip(_WHITESPACE))
        del self._buffer[:blank]
        if self._buffer and self._buffer[0] not in b"{[":
            raise NotAPacket("not_json")
        return bool(self._buffer)

    def _count(self, mark: bytes) -> None:
        if mark == b'"':
            self._in_string = not self._in_string
        elif self._in_string:
            return
        elif mark in b"{[":
            self._depth += 1
        elif mark in b"}]":
            self._depth -= 1

    def _end_of_scan(self) -> int:
        """A backslash at the very end is scanned again, together with the byte that it escapes."""
        end = len(self._buffer)
        return end - 1 if end > self._scanned and self._buffer.endswith(b"\\") else end
