"""What was received and has not been taken by a slot yet, and the slots that wait for it.

An idle slot waits on a lock of its own, so that exactly as many threads are woken as there is work for: every
thread that runs without need takes the interpreter lock from the one that works.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

__all__ = ["Backlog"]


class Backlog:
    """A queue between one receiver and many slots.

    Who takes an item while others wait lets one more slot work, so that there are soon as many at work as
    there is work for, and never many more.

    Args:
        room: how many items may wait here before the receiver is to stop.
        start_slot: starts one more slot thread; False when all are there.

    Attributes:
        active: how many slots work.
        taken: how many items were ever taken.
        on_idle: called by a slot that found nothing to take, before it sleeps.
    """

    def __init__(self, room: int, start_slot: Callable[[], bool]) -> None:
        self._items: deque[Any] = deque()
        self._idle: list[threading.Lock] = []
        self._all_started = False
        self._room = room
        self._room_changed = threading.Condition()
        self._room_wanted = 0
        self._start_slot = start_slot
        self._counting = threading.Lock()
        self.on_idle: Callable[[], None] = lambda: None
        self.closed = False
        self.active = 0
        self.taken = 0

    def __len__(self) -> int:
        return len(self._items)

    def extend(self, items: Iterable[Any]) -> None:
        """Put items at the end, and see to it that somebody takes them."""
        self._items.extend(items)
        self._wake()

    def put_first(self, item: Any) -> None:
        """Put one item before all others."""
        self._items.appendleft(item)
        self._wake()
        if self._room_wanted:
            self.nudge()

    def take(self, own: threading.Lock) -> Any:
        """The next item; None once the backlog is closed and empty.

        Args:
            own: the lock the calling slot sleeps on; it is held when this is called, and when it returns.
        """
        while True:
            # First, since it takes its time: an item in hand would be overtaken by others meanwhile.
            if len(self._items) > 1 and (self._idle or not self._all_started):
                self._wake()
            try:
                item = self._items.popleft()
            except IndexError:
                if self.closed:
                    self.left()
                    return None
                self.on_idle()
                self._sleep(own)
                continue
            self.taken += 1
            if self._room_wanted:
                self.nudge_if_low()
            return item

    def take_now(self) -> Any:
        """The next item; None when there is none."""
        try:
            item = self._items.popleft()
        except IndexError:
            return None
        if self._room_wanted:
            self.nudge_if_low()
        return item

    def _sleep(self, own: threading.Lock) -> None:
        # Whoever takes a lock off the list counts its slot as active again: this thread, which saw
        # something to do after all, or the one that wakes it.
        with self._counting:
            self.active -= 1
            self._idle.append(own)
            if self._items or self.closed:
                self._idle.pop()
                self.active += 1
                return
        own.acquire()

    def joined(self) -> None:
        """A new slot begins to take items."""
        with self._counting:
            self.active += 1

    def left(self) -> None:
        """A slot takes no more items."""
        with self._counting:
            self.active -= 1

    def _wake(self) -> None:
        """Let one more slot work, the one that slept least; start one when none sleeps."""
        with self._counting:
            own = self._idle.pop() if self._idle else None
            self.active += own is not None
        if own is not None:
            own.release()
        elif not self._all_started:
            self._all_started = not self._start_slot()

    def wait_for_room(self, has_room: Callable[[], bool]) -> None:
        """Wait until `has_room` says so; it is asked again when something is taken or `nudge` is called.

        Several threads may wait at once: one receiver, or every slot that would poll.
        """
        with self._room_changed:
            # Counted first, asked then: who makes room meanwhile sees that somebody waits.
            self._room_wanted += 1
            try:
                while not self.closed and not has_room():
                    self._room_changed.wait()
            finally:
                self._room_wanted -= 1

    def nudge_if_low(self) -> None:
        """Let those who wait for room ask again, unless what waits here keeps them waiting anyway.

        This is what the end of each message calls: a receiver that woke for every one of them would take the
        interpreter lock from the slots each time.
        """
        if self._room_wanted and len(self._items) < self._room:
            self.nudge()

    def nudge(self) -> None:
        """Let those who wait for room ask again."""
        if self._room_wanted:
            with self._room_changed:
                self._room_changed.notify_all()

    def close(self) -> None:
        """No more items: slots end once it is empty, the receiver at once."""
        self.closed = True
        self.nudge()
        while self._idle:
            self._wake()

    def clear(self) -> list[Any]:
        """Take out everything."""
        items = []
        try:
            while True:
                items.append(self._items.popleft())
        except IndexError:
            return items
