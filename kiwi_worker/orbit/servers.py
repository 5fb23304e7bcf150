"""Which of several servers is asked, and with which token: what all wires of a worker share."""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import monotonic
from typing import TypeVar

from kiwi_worker.errors import Ambiguous, KiwiWorkerError, NotSent
from kiwi_worker.orbit.wire import NOT_LEADER, Refused

__all__ = ["Credentials", "Servers"]

Read = TypeVar("Read")


class Credentials:
    """The bearer token; a file is read again when the runtime refuses it."""

    def __init__(self, read: Callable[[], str] | None) -> None:
        self._read = read
        self._lock = threading.Lock()
        self._header: str | None = None

    def header(self) -> str | None:
        """The value of the authorization header; the same object until it is refused."""
        header = self._header
        if header is not None or self._read is None:
            return header
        with self._lock:
            header = self._header = self._header or f"Bearer {self._read()}"
        return header

    def refused(self) -> None:
        """Read it again before the next call."""
        self._header = None


class Servers:
    """Which server is used now; one that fails is left for the next, the last for the first.

    Args:
        count: how many there are.
        credentials: read again when one of them refuses them.
    """

    def __init__(self, count: int, credentials: Credentials) -> None:
        self._count = count
        self._lock = threading.Lock()
        self.credentials = credentials
        self.current = 0

    def leave(self, index: int) -> None:
        """This one failed; the next is used, unless somebody moved on already."""
        with self._lock:
            if self.current == index:
                self.current = (index + 1) % self._count

    def call(self, ask: Callable[[int], Read], limit_seconds: float) -> Read:
        """Ask the server used now, and the others in turn as long as nothing was asked of anybody.

        Args:
            ask: one call to the server of this index.
            limit_seconds: after so long no further server is tried.
        """
        until = monotonic() + limit_seconds
        failure: KiwiWorkerError | None = None
        for _ in range(self._count):
            index = self.current
            try:
                return ask(index)
            except NotSent as error:
                failure = error
            except Ambiguous:
                self.leave(index)
                raise
            except Refused as error:
                if error.status in (401, 403):
                    self.credentials.refused()
                if error.code != NOT_LEADER:
                    raise
                failure = error
            self.leave(index)
            if monotonic() >= until:
                break
        assert failure is not None
        raise failure
