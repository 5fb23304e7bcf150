"""The spool: an append-only log that takes every step at once, so that SQLite can take them in the large.

What was written to a file survives the death of the process that wrote it, and an append costs microseconds
where a transaction costs a hundred. So a step is durable when its record is appended, and the caller is
answered; a moment later one transaction brings everything since the last into the database, and the file is
removed. After a crash the files that are left are brought in first.

Records have the form of the worker's journal (`kiwi_worker.engine.journal.records`), with steps as bodies.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator
from typing import Any

import msgspec

from ...engine.journal.records import CorruptRecord, encode_record, read_record
from ...errors import SettingsError

__all__ = ["Spool", "encode_step"]

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode


def encode_step(kind: int, values: object) -> bytes:
    """The record of one step."""
    return encode_record(kind, "", _encode(values))


class Spool:
    """The files beside a database, numbered upwards; the newest is written to.

    Args:
        db: the path of the database.
    """

    def __init__(self, db: str) -> None:
        self._stem = f"{db}-spool-"
        self._sealed = self._numbers()
        self._number = max(self._sealed, default=0)
        self._file: int | None = None
        self._size = 0

    def steps_after(self, number: int) -> Iterator[tuple[int, Any]]:
        """The steps, kind and values, of the files with higher numbers, in order.

        Raises:
            SettingsError: a file is damaged, which a crash alone does not do.
        """
        for later in sorted(n for n in self._sealed if n > number):
            path = self._path(later)
            try:
                with open(path, "rb") as file:
                    yield from _steps(file.read())
            except (CorruptRecord, msgspec.DecodeError) as error:
                problem = f"{path} is damaged ({error}); move it away to start without what it holds"
                raise SettingsError("db", problem) from None

    def start_after(self, number: int) -> None:
        """Use no number up to this one."""
        self._number = max(self._number, number)

    def append(self, data: bytes) -> None:
        """Write whole records.

        Raises:
            OSError: it could not be done, and nothing of them is there.
        """
        if self._file is None:
            path = self._path(self._number + 1)
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
            self._number += 1
            self._size = 0
        try:
            _write_all(self._file, data)
        except OSError:
            os.ftruncate(self._file, self._size)
            raise
        self._size += len(data)

    def seal(self) -> int:
        """Write no more to the present file; its number."""
        if self._file is not None:
            os.close(self._file)
            self._file = None
            self._sealed.append(self._number)
        return self._number

    def drop(self, number: int) -> None:
        """Remove the files up to this number: the database has what they hold."""
        for known in [n for n in self._sealed if n <= number]:
            os.unlink(self._path(known))
            self._sealed.remove(known)

    def _numbers(self) -> list[int]:
        ends = (path[len(self._stem) :] for path in glob.glob(glob.escape(self._stem) + "*"))
        return [int(end) for end in ends if end.isdigit()]

    def _path(self, number: int) -> str:
        return f"{self._stem}{number}"


def _steps(data: bytes) -> Iterator[tuple[int, Any]]:
    view, offset = memoryview(data), 0
    while (found := read_record(view, offset)) is not None:
        record, offset = found
        yield record.kind, _decode(record.body)


def _write_all(file: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]
