"""The journal a worker writes: see `Journal`."""

from __future__ import annotations

import errno
import functools
import logging
import os
import threading
import time as clock
import weakref
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Final, Literal, NamedTuple

from kiwi_worker.errors import JournalError

from .file import JournalFile
from .image import DEGRADED_LINE, JournalImage, encode_header, parse_journal
from .intervals import IntervalSync
from .records import CLAIMED, CLAIMED_AND_STARTED, FORGOTTEN, OUTCOME, STARTED, encode_received, encode_record
from .recovered import Leftover, Recovered, sort_leftovers

__all__ = ["Journal", "JournalStats", "Leftover", "Recovered"]

_log = logging.getLogger("kiwi_worker.journal")
_MIB: Final = 1024 * 1024
_NO_SPACE: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_OPEN_SHARE: Final = 0.75
"""A full journal is rewritten when what is open takes less than this share of it."""

_MOST_DEFERRED: Final = 100


class _Bounds(NamedTuple):
    max_age_seconds: float | None
    max_bytes: int
    compact_bytes: int
    retry_seconds: float


class JournalStats(NamedTuple):
    """`bytes`: size of the file. `open_entries`: entries not forgotten. `degraded`: see `Journal`."""

    bytes: int
    open_entries: int
    degraded: bool


class Journal:
    """An append-only log of what was received, claimed, started and computed, and is not answered yet.

    Each record is written by the thread that has the news, with one plain `write()`: that survives the death
    of the process and costs microseconds. A power cut it survives with `sync`. (A memory-mapped file would be
    hardly faster, and a full disk would then be a signal that ends the process.)

    It is one file. When most of it is past, it is replaced by a new one that holds what is still open, so no
    old entry keeps past ones alive and there is nothing to gather from several files. What is open is
    therefore also held in memory.

    When the disk is full, or cannot be written, the worker goes on without the journal: `stats.degraded`, one
    error in the log. The file is marked, so that after a crash nothing that may have been started is taken
    for waiting. Some seconds later, and again, it is tried to write a new file with all that is open by then;
    from there on the journal is whole again.

    It knows no protocol: keys are strings, bodies bytes. All methods are thread safe; after `close` they do
    nothing. In a forked child it is closed.
    """

    @classmethod
    def open(
        cls,
        path: str,
        *,
        worker_id: str,
        sync: Literal["interval", "always"] | None = None,
        max_age_seconds: float | None = None,
        max_bytes: int = 256 * _MIB,
        compact_bytes: int = 16 * _MIB,
        retry_seconds: float = 5.0,
    ) -> Journal:
        """Open or create the journal at `path`, lock it, and read what a former process left.

        Args:
            path: the file; its directory must exist and be writable, since the file is replaced at times.
            worker_id: whose journal it is. A journal serves one worker id for ever.
            sync: None: survives the death of the process. `interval`: reaches the disk once a second.
                `always`: is on the disk before a method returns (but `forgotten`).
            max_age_seconds: what was received longer ago is not recovered, but reported as expired.
            max_bytes: from this size on it is `full`. What has to be written still is; a rewrite needs room
                for what is open in addition.
            compact_bytes: from this size on it is rewritten when at least half of it is past.
            retry_seconds: how long a degraded journal waits between attempts to become whole.

        Raises:
            JournalError: the file is another worker's, locked by another process, corrupt, no journal, open
                to other users, not writable, or its directory is missing. It is left as it was.
        """
        file = JournalFile(path)
        try:
            image = parse_journal(file.path, file.read())
            _check_owner(image, worker_id)
            bounds = _Bounds(max_age_seconds, max_bytes, compact_bytes, retry_seconds)
            return cls(file, image, worker_id, sync, bounds)
        except BaseException:
            file.close()
            raise

    def __init__(
        self,
        file: JournalFile,
        image: JournalImage,
        worker_id: str,
        sync: Literal["interval", "always"] | None,
        bounds: _Bounds,
    ) -> None:
        """Not for callers: use `open`."""
        self._file = file
        self._worker_id = worker_id
        self._bounds = bounds
        self._lock = threading.Lock()
        self._writing = True
        self._closed = False
        self._retry_at = 0.0
        self._rewrite_size = bounds.compact_bytes
        self._durable = sync is not None
        self._always = sync == "always"
        self._deferred: list[bytes] = []
        self._entries = image.entries
        self.recovered: Recovered = _recover(image, bounds.max_age_seconds)
        """What a former process left."""
        self._begin(image)
        self._interval = IntervalSync(self._sync) if sync == "interval" else None
        _close_in_children().add(self)

    def received(self, batch: Sequence[tuple[str, bytes]]) -> None:
        """Note a whole batch of (key, body), before the first of it is handled. One record.

        A key that is open already is left as it is. The empty key stands for an element without one: all of
        those are forgotten together, by `forgotten("")`.
        """
        time = clock.time()
        data = encode_received(batch, time)
        with self._lock:
            self._entries.received(batch, time)
            self._write(data)
        if self._always:
            self._sync()

    def claimed(self, key: str) -> None:
        """Note that this worker holds the lock for an entry; nothing when it is not open."""
        data = encode_record(CLAIMED, key)
        with self._lock:
            self._entries.claimed(key)
            self._write(data)
        if self._always:
            self._sync()

    def started(self, key: str, *, claimed: bool = False) -> int:
        """Note that an entry is about to run; with `claimed`, in the same record, that its lock was just won.

        Returns:
            Which run this is, from 1, counted over restarts; 0 when the entry is not open.
        """
        run = self._entries.next_run(key)
        if run:
            data = encode_record(CLAIMED_AND_STARTED if claimed else STARTED, key, b"", run)
            with self._lock:
                self._entries.started(key, run, claimed)
                self._write(data)
            if self._always:
                self._sync()
        return run

    def outcome(self, key: str, body: bytes) -> None:
        """Note the outcome of an entry, before it is sent; the entry need not have been received."""
        time = clock.time()
        data = encode_record(OUTCOME, key, body, 0, time)
        with self._lock:
            self._entries.outcome(key, body, time)
            self._write(data)
        if self._always:
            self._sync()

    def forgotten(self, key: str) -> None:
        """Note that an entry is answered, or is nobody's business any more.

        This is written together with the next record of any thread, or by `flush`: a write of its own would
        cost a busy worker more than the chance that, after a crash, the same answer is sent once more.
        """
        # Without the lock: the note first, so that a duplicate received meanwhile is not taken for this one.
        self._deferred.append(encode_record(FORGOTTEN, key))
        self._entries.forgotten(key)
        if len(self._deferred) > _MOST_DEFERRED:
            self.flush()

    def flush(self) -> None:
        """Write what `forgotten` left to be written; for a thread that is about to wait for work."""
        if self._deferred:
            with self._lock:
                self._write(b"")

    @property
    def full(self) -> bool:
        """Whether nothing more should be received until some of what is open is forgotten."""
        max_bytes = self._bounds.max_bytes
        if self._file.size < max_bytes:
            return False
        with self._lock:
            if self._writing and self._entries.body_bytes() < _OPEN_SHARE * max_bytes:
                self._compact()
            return self._file.size >= max_bytes

    @property
    def stats(self) -> JournalStats:
        """Its size and state now."""
        return JournalStats(self._file.size, len(self._entries), not (self._writing or self._closed))

    def close(self) -> None:
        """Leave in the file only what is open, and free its lock.

        What other threads still note is dropped.
        """
        if self._interval is not None:
            self._interval.stop()
        with self._lock:
            if self._closed:
                return
            if self._writing:
                self._compact()
            else:
                self._try_to_recover()
            self._closed = True
            self._writing = False
            self._file.close()

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _begin(self, image: JournalImage) -> None:
        # Written anew at each start: that drops a torn tail and what expired, and shows that it can be done.
        try:
            self._rewrite(durable=True)
        except OSError as error:
            if image.worker_id is None or error.errno not in _NO_SPACE:
                raise JournalError(f"journal {image.path}: cannot be written: {error.strerror}") from error
            self._degrade(error)
        self._log_recovered()

    def _write(self, data: bytes) -> None:
        if self._deferred:
            data = self._take_deferred() + data
        if self._writing:
            try:
                self._file.append(data)
            except OSError as error:
                self._rescue(error)
            else:
                if self._file.size > self._rewrite_size:
                    self._compact()
        elif not self._closed and clock.monotonic() >= self._retry_at:
            self._try_to_recover()

    def _take_deferred(self) -> bytes:
        # Other threads may append meanwhile: what they append stays.
        deferred = self._deferred
        count = len(deferred)
        data = b"".join(deferred[:count])
        del deferred[:count]
        return data

    def _rewrite(self, *, durable: bool) -> None:
        self._file.replace(self._encode(), durable=durable)
        self._rewrite_size = max(self._bounds.compact_bytes, 2 * self._file.size)

    def _encode(self) -> Iterator[bytes]:
        yield encode_header(self._worker_id, clock.time())
        yield from self._entries.encode()

    def _compact(self) -> None:
        try:
            self._rewrite(durable=self._durable)
        except OSError as error:
            self._rewrite_size = self._file.size + self._bounds.compact_bytes
            _log.warning(
                "journal %s could not be rewritten and grows on: %s",
                self._file.path,
                error.strerror,
                extra={"action": "journal_not_compacted", "worker_id": self._worker_id},
            )

    def _rescue(self, error: OSError) -> None:
        # All that is open may fit where one more record does not: under a limit of size or a quota.
        try:
            self._rewrite(durable=self._durable)
        except OSError:
            self._degrade(error)

    def _degrade(self, error: OSError) -> None:
        self._writing = False
        self._retry_at = clock.monotonic() + self._bounds.retry_seconds
        try:
            self._file.overwrite_start(DEGRADED_LINE)
        except OSError:
            pass  # Said below either way: nothing is promised from here on.
        _log.error(
            "journal %s cannot be written (%s): until it can be, a crash of this worker loses messages it "
            "has received and results it has computed; free space or repair the file system",
            self._file.path,
            error.strerror,
            extra={"action": "journal_degraded", "worker_id": self._worker_id},
        )

    def _try_to_recover(self) -> None:
        try:
            self._rewrite(durable=self._durable)
        except OSError:
            self._retry_at = clock.monotonic() + self._bounds.retry_seconds
            return
        self._writing = True
        _log.warning(
            "journal %s is whole again",
            self._file.path,
            extra={"action": "journal_whole", "worker_id": self._worker_id},
        )

    def _sync(self) -> None:
        try:
            self._file.sync(self._file.written)
        except OSError as error:
            with self._lock:
                if self._writing:
                    self._rescue(error)

    def _log_recovered(self) -> None:
        found = self.recovered
        if found or found.expired or found.torn_bytes or found.degraded:
            _log.warning(
                "journal %s: a former process left %d outcomes, %d waiting and %d started; %d had expired; "
                "%d bytes of a half-written record were dropped%s",
                self._file.path,
                len(found.outcomes),
                len(found.waiting),
                len(found.started),
                len(found.expired),
                found.torn_bytes,
                "; it could not write all its news" if found.degraded else "",
                extra={"action": "journal_recovered", "worker_id": self._worker_id},
            )

    def _close_in_child(self) -> None:
        # Another thread of the parent may have held the lock at the fork.
        self._lock = threading.Lock()
        self._interval = None
        self._closed = True
        self._writing = False
        self._file.abandon()


def _check_owner(image: JournalImage, worker_id: str) -> None:
    if image.worker_id not in (None, worker_id):
        raise JournalError(
            f"journal {image.path}: belongs to worker {image.worker_id!r}, and this is {worker_id!r}; "
            "give each worker a journal of its own, and a fixed worker id"
        )


def _recover(image: JournalImage, max_age_seconds: float | None) -> Recovered:
    now = clock.time()
    entries = image.entries
    if image.degraded:
        entries.assume_started()
    expired = [] if max_age_seconds is None else entries.remove_older(now - max_age_seconds)
    return sort_leftovers(entries, expired, now=now, degraded=image.degraded, torn_bytes=image.torn_bytes)


@functools.cache
def _close_in_children() -> weakref.WeakSet[Journal]:
    journals: weakref.WeakSet[Journal] = weakref.WeakSet()

    def close_all() -> None:
        for journal in journals:
            journal._close_in_child()

    os.register_at_fork(after_in_child=close_all)
    return journals
