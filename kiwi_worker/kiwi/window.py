"""The ids of requests that were claimed or started, so that none is run twice."""

from __future__ import annotations

import threading

__all__ = ["Window"]

SIZE = 10_000


class Window:
    """Remembers the last ids, up to `size`."""

    def __init__(self, size: int = SIZE) -> None:
        self._size = size
        self._seen: dict[str, object] = {}
        self._lock = threading.Lock()

    def enter(self, request_id: str) -> bool:
        """Whether the id is new; it is not from here on."""
        mark = object()
        # One dict operation, so that two threads with the same id cannot both find it new.
        if self._seen.setdefault(request_id, mark) is not mark:
            return False
        if len(self._seen) > self._size:
            self._forget_oldest()
        return True

    def leave(self, request_id: str) -> None:
        """The id may come again."""
        self._seen.pop(request_id, None)

    def _forget_oldest(self) -> None:
        with self._lock:
            while len(self._seen) > self._size:
                try:
                    del self._seen[next(iter(self._seen))]
                except (KeyError, RuntimeError):
                    return  # another slot changed it just now, and will come by here itself
