"""The image: what a journal file says, read without writing to it and without its lock."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from kiwi_worker.errors import JournalError

from .entries import Entries
from .records import HEADER, CorruptRecord, Record, encode_record, read_record

__all__ = ["DEGRADED_LINE", "WHOLE_LINE", "JournalImage", "encode_header", "parse_journal", "read_journal"]

WHOLE_LINE: Final = b"kiwi-worker journal 1 whole   \n"
DEGRADED_LINE: Final = b"kiwi-worker journal 1 degraded\n"
"""Written over the first line, in place (which a full disk allows), when records could not be written."""


@dataclass(frozen=True)
class JournalImage:
    """What a journal file says.

    Attributes:
        path: the file.
        worker_id: whose journal it is; None for a file nothing was written to yet.
        process_id: the process that wrote it last.
        degraded: whether records are missing, because they could not be written at some time.
        bytes: size of the file.
        torn_bytes: size of the half record at its end, which a killed writer leaves.
        entries: what is open.
    """

    path: str
    worker_id: str | None
    process_id: int
    degraded: bool
    bytes: int
    torn_bytes: int
    entries: Entries


def read_journal(path: str) -> JournalImage:
    """Read the journal file at `path`; it may be in use.

    Raises:
        JournalError: it cannot be read, is no journal, or is corrupt.
    """
    try:
        # A FIFO would hold up the open for ever.
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
        with open(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise JournalError(f"journal {path}: not a regular file")
            return parse_journal(path, file.read())
    except OSError as error:
        raise JournalError(f"journal {path}: cannot be read: {error.strerror}") from error


def encode_header(worker_id: str, time: float) -> bytes:
    """What a journal file begins with."""
    return WHOLE_LINE + encode_record(HEADER, worker_id, str(os.getpid()).encode(), 0, time)


def parse_journal(path: str, data: bytes) -> JournalImage:
    """Understand the bytes of a journal file; `path` is for the error's text.

    Raises:
        JournalError: they are no journal, or corrupt.
    """
    if not data:
        return JournalImage(path, None, 0, False, 0, 0, Entries())
    line = data[: len(WHOLE_LINE)]
    if line not in (WHOLE_LINE, DEGRADED_LINE):
        raise JournalError(f"journal {path}: not a journal of this version; it was left as it is")
    try:
        return _replay(path, data, line == DEGRADED_LINE)
    except CorruptRecord as error:
        raise JournalError(
            f"journal {path}: corrupt, {error}; it was left as it is: move it away to start without it"
        ) from error


def _replay(path: str, data: bytes, degraded: bool) -> JournalImage:
    entries = Entries()
    end = len(WHOLE_LINE)
    records = _records(memoryview(data), end)
    header, end = next(records, (None, end))
    if header is None or header.kind != HEADER:
        raise CorruptRecord(end, "no header")
    for record, after in records:
        entries.apply(record)
        end = after
    return JournalImage(path, header.key, int(header.body), degraded, len(data), len(data) - end, entries)


def _records(data: memoryview, offset: int) -> Iterator[tuple[Record, int]]:
    while (found := read_record(data, offset)) is not None:
        yield found
        offset = found[1]
