"""The journal file: one path, locked, appended to, and now and then replaced by a shorter one. It knows
bytes, no records."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Iterable
from itertools import islice
from typing import Final

from kiwi_worker.errors import JournalError
from kiwi_worker.held import Writer

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

__all__ = ["JournalFile"]

_APPEND: Final = os.O_WRONLY | os.O_APPEND | os.O_CREAT
_CHUNK_RECORDS: Final = 1000
_fdatasync = getattr(os, "fdatasync", os.fsync)


class JournalFile:
    """A file that this process alone writes, by `flock`. All but `sync` need the caller's lock.

    Attributes:
        path: where it is, symbolic links resolved, so that a replacement lands in the right place.
        size: its bytes.
        written: how many appends there were.
    """

    def __init__(self, path: str) -> None:
        """Open the file, creating an empty one, and lock it.

        Raises:
            JournalError: there is no such directory, the file is no regular file, is open to others, cannot
                be written, or is locked by another process.
        """
        if fcntl is None:
            raise JournalError(f"journal {path}: a journal needs file locks, which this system does not have")
        self.path = os.path.realpath(path)
        self._fd = _open_locked(self.path)
        self.size = os.fstat(self._fd).st_size
        self.written = 0
        self._writer = Writer()
        self._synced = 0
        # Held while the descriptor is synced or exchanged, so that it is not closed under a sync.
        self._sync_lock = threading.Lock()

    def read(self) -> bytes:
        """All its bytes."""
        with open(self.path, "rb") as file:
            return file.read()

    def append(self, data: bytes) -> None:
        """Add `data` at the end; on OSError a part of it may be there. On the path of every message."""
        count = self._writer.write(self._fd, data)
        if count != len(data):
            _write_all(self._fd, memoryview(data)[count:])
        self.size += len(data)
        self.written += 1

    def replace(self, parts: Iterable[bytes], *, durable: bool) -> None:
        """Put a file of these parts in its place, atomically: after a crash there is the one or the other.

        Raises:
            OSError: it could not be done.
        """
        written = self.written
        temporary = self.path + ".new"
        fd = os.open(temporary, _APPEND | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
        try:
            # Whoever finds the new file under the name must find it locked.
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.fchmod(fd, 0o600)
            size = _write_parts(fd, iter(parts))
            if durable:
                os.fsync(fd)
            os.replace(temporary, self.path)
        except BaseException:
            os.close(fd)
            _unlink_quietly(temporary)
            raise
        self._exchange(fd, size, written if durable else self._synced)
        if durable:
            _sync_directory(self.path)

    def overwrite_start(self, data: bytes) -> None:
        """Write over the first bytes, in place."""
        # A descriptor that appends would append this, too.
        fd = os.open(self.path, os.O_WRONLY)
        try:
            os.pwrite(fd, data, 0)
        finally:
            os.close(fd)

    def sync(self, upto: int) -> None:
        """Return when the first `upto` appends are on the disk; callers that come together share one sync."""
        with self._sync_lock:
            if self._synced >= upto or self._fd < 0:
                return
            written = self.written
            _fdatasync(self._fd)
            self._synced = written

    def close(self) -> None:
        """Close the file, which frees its lock."""
        self._exchange(-1, self.size, self._synced)

    def abandon(self) -> None:
        """In a forked child: let go of the descriptor, so that the child does not keep the lock alive."""
        self._sync_lock = threading.Lock()
        self.close()

    def _exchange(self, fd: int, size: int, synced: int) -> None:
        with self._sync_lock:
            old, self._fd = self._fd, fd
            self.size = size
            self._synced = synced
        if old >= 0:
            os.close(old)


def _open_locked(path: str) -> int:
    _check_directory(path)
    while True:
        fd = _open_checked(path)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Its owner may have replaced it since we opened it: then we hold a file without a name.
            if _is_at(fd, path):
                return fd
        except BlockingIOError as error:
            os.close(fd)
            raise JournalError(
                f"journal {path}: locked by another process; each worker needs a journal of its own"
            ) from error
        except OSError as error:
            os.close(fd)
            raise JournalError(f"journal {path}: cannot be locked: {error.strerror}") from error
        os.close(fd)


def _check_directory(path: str) -> None:
    directory = os.path.dirname(path)
    if not os.path.isdir(directory):
        raise JournalError(f"journal {path}: there is no directory {directory}; create it")
    if not os.access(directory, os.W_OK | os.X_OK):
        raise JournalError(f"journal {path}: this user cannot replace files in {directory}")


def _open_checked(path: str) -> int:
    try:
        # Without O_NONBLOCK a FIFO would hold up the open for ever.
        fd = os.open(path, _APPEND | os.O_NONBLOCK, 0o600)
    except OSError as error:
        raise JournalError(f"journal {path}: cannot be written: {error.strerror}") from error
    problem = _find_problem(os.fstat(fd))
    if problem is not None:
        os.close(fd)
        raise JournalError(f"journal {path}: {problem}")
    return fd


def _find_problem(status: os.stat_result) -> str | None:
    if not stat.S_ISREG(status.st_mode):
        return "not a regular file"
    if status.st_uid != os.geteuid():
        return "belongs to another user"
    if status.st_mode & 0o077:
        return f"open to other users (mode {stat.S_IMODE(status.st_mode):04o}); chmod 600 it"
    return None


def _is_at(fd: int, path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path))
    except FileNotFoundError:
        return False


def _write_parts(fd: int, parts: Iterable[bytes]) -> int:
    iterator = iter(parts)
    size = 0
    while data := b"".join(islice(iterator, _CHUNK_RECORDS)):
        _write_all(fd, memoryview(data))
        size += len(data)
    return size


def _write_all(fd: int, data: memoryview) -> None:
    while data:
        data = data[os.write(fd, data) :]


def _unlink_quietly(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass


def _sync_directory(path: str) -> None:
    fd = os.open(os.path.dirname(path), os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
