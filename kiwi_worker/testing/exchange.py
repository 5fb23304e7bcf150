"""One request on its way to an answer: what a fault may do with it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from kiwi_worker.testing.wire import Line, Reply, Request

if TYPE_CHECKING:
    from kiwi_worker.testing.calls import Call

__all__ = ["Exchange"]

_LOOK_SECONDS = 0.05


class Exchange:
    """One request on its way to an answer. Faults and the protocol's side both work on it.

    Attributes:
        request: what was asked.
        call: its record.
        keep: whether the connection stays open afterwards.
        clock_offset_seconds: how wrong the server's wall clock is for this answer.
        token_expired: whether the token of this call is to count as expired.

    Args:
        line: the connection.
        request: what was asked.
        call: its record.
        perform: the protocol's side; does what is asked and says what to answer.
        take_back: undoes the handing-out of an answer's `taken`.
        closing: set when the server stops.
    """

    def __init__(
        self,
        line: Line,
        request: Request,
        call: Call,
        *,
        perform: Callable[[Exchange], Reply],
        take_back: Callable[[Reply], None],
        closing: threading.Event,
    ) -> None:
        self.request = request
        self.call = call
        self.keep = not request.wants_close
        self.clock_offset_seconds = 0.0
        self.token_expired = False
        self._line = line
        self._perform = perform
        self._take_back = take_back
        self._closing = closing
        self._reply: Reply | None = None

    def act(self) -> Reply:
        """Do what was asked, once however often it is called, and return the true answer."""
        if self._reply is None:
            self._reply = self._perform(self)
            self.call.acted = self._reply.status < 400
        return self._reply

    def take_back(self) -> None:
        """Put what the true answer hands out back, so that it is handed out once more later."""
        self._take_back(self.act())

    def head(self, reply: Reply, framing: tuple[tuple[str, str], ...] | None = None) -> bytes:
        """The head of this answer, dated by the server's (maybe wrong) clock."""
        self.call.status = reply.status
        return reply.head(time.time() + self.clock_offset_seconds, framing)

    def answer(self, reply: Reply) -> None:
        """Send a whole answer.

        Raises:
            OSError: the client is gone.
        """
        self.send(self.head(reply) + reply.payload())

    def send(self, data: bytes) -> None:
        """Send raw bytes.

        Raises:
            OSError: the client is gone.
        """
        self._line.send(data)

    def cut(self, *, reset: bool = False) -> None:
        """Close the connection here; with `reset`, as a connection reset."""
        self.call.outcome = "cut"
        self.drop_line(reset=reset)

    def drop_line(self, *, reset: bool = False) -> None:
        """Close the connection without calling the exchange broken: its answer is out."""
        self.keep = False
        self._line.close(reset=reset)

    def pause(self, seconds: float) -> None:
        """Wait; the server's stop ends the wait early."""
        self._closing.wait(seconds)

    def hang(self) -> None:
        """Keep the connection open and say nothing until the client leaves or the server stops."""
        self.call.outcome = "cut"
        self.keep = False
        while not self.is_over():
            self.pause(_LOOK_SECONDS)

    def is_over(self) -> bool:
        """Whether nobody waits for the answer any more."""
        return self._closing.is_set() or self._line.is_gone()
