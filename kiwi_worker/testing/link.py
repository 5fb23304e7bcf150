"""One proxied connection: two directions, and what may go wrong between them."""

from __future__ import annotations

import selectors
import socket
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from kiwi_worker.testing.wire import is_ready

__all__ = ["Link", "LinkFault", "LinkRules", "StruckFault"]

LinkFault = Literal["drop_request", "drop_answer", "partial_answer", "stall", "half_open"]

_PIECE_BYTES = 65536
_LOOK_SECONDS = 0.05
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


@dataclass(frozen=True)
class StruckFault:
    """A random fault that struck.

    Attributes:
        fault: which.
        connection: the number of the connection.
        at: monotonic time.
    """

    fault: LinkFault
    connection: int
    at: float = field(default_factory=time.monotonic)


@dataclass(eq=False)
class LinkRules:
    """What holds for all links of a proxy now; changed while they run.

    Attributes:
        delay_seconds: how late each piece arrives.
        bytes_per_second: the speed of each direction, or None.
        idle_seconds: how long a link may be idle, or None.
        stall_seconds: how long a `stall` is.
        passing: cleared while nothing may pass.
    """

    delay_seconds: float
    bytes_per_second: float | None
    idle_seconds: float | None
    stall_seconds: float
    passing: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.passing.set()


class Link:
    """One client's connection and the one behind it. `run` serves it; the rest may be called from elsewhere.

    Args:
        client: the accepted socket; owned from now on.
        server: the connected one; owned from now on.
        number: the connection's number.
        rules: what holds for all links.
        draw: told whether a request is the connection's first, says which fault strikes it.
    """

    def __init__(
        self,
        client: socket.socket,
        server: socket.socket,
        number: int,
        rules: LinkRules,
        draw: Callable[[bool], LinkFault | None],
    ) -> None:
        self._client = client
        self._server = server
        self._number = number
        self._rules = rules
        self._draw = draw
        self._over = threading.Event()
        self._silent = False
        self._reset = False
        self._fault: LinkFault | None = None
        self._is_answered = True
        self._is_first = True
        self._moved_at = time.monotonic()

    def run(self) -> None:
        """Pass data both ways until both ends have ended or the link was ended; close both sockets."""
        back = threading.Thread(
            target=self._pump,
            args=(self._server, self._client),
            name=f"fault-proxy-{self._number}-back",
            daemon=True,
        )
        for sock in (self._client, self._server):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        back.start()
        try:
            self._pump(self._client, self._server)
        finally:
            back.join()
            self._close()

    def end(self, *, reset: bool) -> None:
        """End the link; with `reset` both sides see a connection reset."""
        self._reset = self._reset or reset
        self._over.set()
        for sock in (self._client, self._server):
            # Only the reading side: it wakes the thread that reads, and sends no orderly end before a reset.
            _shut(sock, socket.SHUT_RD)

    def go_silent(self) -> None:
        """Pass nothing any more, and keep both connections open."""
        self._silent = True

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        try:
            while (piece := self._read(source)) and not self._over.is_set():
                self._pass_on(piece, source, sink)
            self._pass_end_on(source, sink)
        except OSError:
            self.end(reset=True)

    def _pass_end_on(self, source: socket.socket, sink: socket.socket) -> None:
        self._wait_for_passage()
        if self._over.is_set():
            return
        if not self._silent:
            _shut(sink, socket.SHUT_WR)
        elif source is self._client:
            self.end(reset=False)

    def _read(self, source: socket.socket) -> bytes:
        limit = self._rules.idle_seconds
        while limit is not None and not is_ready(source, selectors.EVENT_READ, min(limit, _LOOK_SECONDS)):
            if time.monotonic() - self._moved_at >= limit:
                self.end(reset=False)
                return b""
        return source.recv(_PIECE_BYTES)

    def _pass_on(self, piece: bytes, source: socket.socket, sink: socket.socket) -> None:
        self._moved_at = time.monotonic()
        if source is self._client:
            self._begin_request()
            if self._fault == "drop_request":
                self.end(reset=True)
        else:
            piece = self._spoiled(piece)
        self._wait_for_passage()
        self._over.wait(self._rules.delay_seconds)
        self._send(piece, sink)

    def _begin_request(self) -> None:
        if self._is_answered:
            self._fault = self._draw(self._is_first)
            self._is_first = self._is_answered = False
        if self._fault == "half_open":
            self._silent = True

    def _spoiled(self, piece: bytes) -> bytes:
        """What is left of a piece of an answer."""
        self._is_answered = True
        if self._fault == "stall":
            self._over.wait(self._rules.stall_seconds)
        elif self._fault == "drop_answer":
            self.end(reset=True)
        elif self._fault == "partial_answer":
            self._send(piece[: max(1, len(piece) // 2)], self._client)
            self.end(reset=False)
        self._fault = None
        return piece

    def _wait_for_passage(self) -> None:
        while not self._rules.passing.wait(_LOOK_SECONDS) and not self._over.is_set():
            pass

    def _send(self, piece: bytes, sink: socket.socket) -> None:
        speed = self._rules.bytes_per_second
        step = len(piece) if speed is None else max(1, int(speed * _LOOK_SECONDS))
        left = memoryview(piece)
        while left and not self._over.is_set() and not self._silent:
            if not is_ready(sink, selectors.EVENT_WRITE, _LOOK_SECONDS):
                continue
            sent = sink.send(left[:step])
            left = left[sent:]
            if speed is not None:
                self._over.wait(sent / speed)

    def _close(self) -> None:
        for sock in (self._client, self._server):
            if self._reset:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
            sock.close()


def _shut(sock: socket.socket, how: int) -> None:
    try:
        sock.shutdown(how)
    except OSError:
        pass
