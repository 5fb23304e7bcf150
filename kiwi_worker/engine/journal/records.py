"""Records: the bytes of a journal file.

A file is its first line, then records; the first record is the header (whose journal this is)::

    record = size u64 | size again u64 | time f64 | number u32 | key size u32 | kind u8 | key | body | CRC-32

all little-endian; `size` counts the whole record, the CRC covers everything before it. The size stands there
twice so that a damaged size is told from a record that was cut off: a process killed while it writes leaves
the beginning of a record and nothing after it, everything else is damage.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple
from zlib import crc32

__all__ = [
    "CLAIMED",
    "CLAIMED_AND_STARTED",
    "FORGOTTEN",
    "HEADER",
    "OUTCOME",
    "RECEIVED",
    "STARTED",
    "CorruptRecord",
    "Record",
    "encode_received",
    "encode_record",
    "read_record",
    "received_entries",
]

HEADER: Final = 1
"""Key: the worker id. Body: the process id of the writer, in decimal. Time: when it was written."""
RECEIVED: Final = 2
"""A batch, as a whole. Number: how many entries. Body: their sizes, then keys and bodies in turn."""
CLAIMED: Final = 3
STARTED: Final = 4
"""Number: which run this is, counted from 1 over restarts."""
OUTCOME: Final = 5
FORGOTTEN: Final = 6
CLAIMED_AND_STARTED: Final = 7
"""As STARTED."""

_HEAD: Final = struct.Struct("<QQdIIB")
_SIZES: Final = struct.Struct("<QQ")
_OVERHEAD: Final = _HEAD.size + 4
_pack_head = _HEAD.pack


class CorruptRecord(Exception):
    """The bytes at `offset` are no record, and no record that was cut off either."""

    def __init__(self, offset: int, problem: str) -> None:
        super().__init__(f"{problem} at byte {offset}")
        self.offset = offset


class Record(NamedTuple):
    """One record, decoded and checked."""

    kind: int
    key: str
    body: bytes
    number: int
    time: float


def encode_record(kind: int, key: str, body: bytes = b"", number: int = 0, time: float = 0.0) -> bytes:
    """The bytes of one record; `time` is in seconds since the epoch. On the path of every message."""
    name = key.encode("utf-8", "surrogatepass")
    size = _OVERHEAD + len(name) + len(body)
    data = b"".join((_pack_head(size, size, time, number, len(name), kind), name, body))
    return data + crc32(data).to_bytes(4, "little")


def encode_received(entries: Sequence[tuple[str, bytes]], time: float) -> bytes:
    """The bytes of one record that holds a whole batch of keys and bodies, received at `time`."""
    parts: list[bytes] = []
    for key, body in entries:
        parts.append(key.encode("utf-8", "surrogatepass"))
        parts.append(body)
    sizes = struct.pack(f"<{len(parts)}Q", *map(len, parts))
    return encode_record(RECEIVED, "", b"".join((sizes, *parts)), len(entries), time)


def received_entries(record: Record) -> Iterator[tuple[str, bytes]]:
    """The keys and bodies of a RECEIVED record, in the order they were received."""
    sizes = struct.unpack_from(f"<{2 * record.number}Q", record.body)
    start = 16 * record.number
    for key_size, body_size in zip(sizes[::2], sizes[1::2], strict=True):
        middle = start + key_size
        end = middle + body_size
        yield record.body[start:middle].decode("utf-8", "surrogatepass"), record.body[middle:end]
        start = end


def read_record(data: memoryview, offset: int) -> tuple[Record, int] | None:
    """The record at `offset` and the offset after it, or None when the file ends in the midst of it.

    Raises:
        CorruptRecord: the record is damaged.
    """
    left = len(data) - offset
    if left < _SIZES.size:
        return None
    size, again = _SIZES.unpack_from(data, offset)
    if size != again or 0 < size < _OVERHEAD:
        raise CorruptRecord(offset, "a damaged record size")
    if size > left:
        return None
    check = offset + size - 4 if size else offset
    if size and crc32(data[offset:check]) == int.from_bytes(data[check : check + 4], "little"):
        return _decode(data, offset, check), offset + size
    # A power cut may leave a file that has grown while its last bytes never reached the disk: they are zero.
    if bytes(data[check:]).strip(b"\0"):
        raise CorruptRecord(offset, "a damaged record")
    return None


def _decode(data: memoryview, offset: int, end: int) -> Record:
    _, _, time, number, key_size, kind = _HEAD.unpack_from(data, offset)
    start = offset + _HEAD.size
    middle = start + key_size
    key = str(data[start:middle], "utf-8", "surrogatepass")
    return Record(kind, key, bytes(data[middle:end]), number, time)
