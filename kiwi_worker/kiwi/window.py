"""The ids of requests that were claimed or started, so that none is run twice."""

from __future__ import annotations

from collections import OrderedDict

__all__ = ["Window"]

SIZE = 10_000
_SETTLED = object()


class Window:
    """Remembers the last ids, up to `size`.

    Each step is one operation of the dictionary, so that two threads with the same id cannot both find it
    new. It is an ordered one because a plain one takes ever longer to find its oldest key as keys go.
    """

    def __init__(self, size: int = SIZE) -> None:
        self._size = size
        self._seen: OrderedDict[str, object] = OrderedDict()

    def enter(self, request_id: str) -> bool:
        """Whether the id is new; it is not from here on."""
        mark = object()
        if self._seen.setdefault(request_id, mark) is not mark:
            return False
        if len(self._seen) > self._size:
            self._seen.popitem(last=False)
        return True

    def settle(self, request_id: str) -> None:
        """The id got its final answer; it stays known."""
        if request_id in self._seen:
            self._seen[request_id] = _SETTLED

    def is_settled(self, request_id: str) -> bool:
        """Whether the id is known and got its final answer."""
        return self._seen.get(request_id) is _SETTLED

    def leave(self, request_id: str) -> None:
        """The id may come again."""
        self._seen.pop(request_id, None)
