"""One connection of the server: uvicorn's, with bounds, JSON errors, and an eye on answers nobody read."""

from __future__ import annotations

import array
import asyncio
import os
import socket
import sys
from collections.abc import Callable
from typing import cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from ..serving import Joined
from .records import encode

__all__ = ["Connection"]

MAX_HEADER_BYTES = 65_536
TCP_CLOSE = 7
"""The kernel's number for the state of a connection that was reset (`netinet/tcp.h`)."""


class Connection(HttpToolsProtocol):
    """Reads requests, writes answers.

    Attributes:
        when_unread: called when the other side closes this connection without having received the last
            answer; another request on it means that it has.
    """

    when_unread: Callable[[], None] | None = None
    _header_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(cast("asyncio.Transport", Joined(transport)))

    def on_message_begin(self) -> None:
        self._header_bytes = 0
        self.when_unread = None
        super().on_message_begin()
        self.scope["kiwi_connection"] = self  # type: ignore[typeddict-unknown-key]

    def on_header(self, name: bytes, value: bytes) -> None:
        self._header_bytes += len(name) + len(value)
        if self._header_bytes > MAX_HEADER_BYTES:
            raise ValueError("the headers are too large")
        super().on_header(name, value)

    def send_400_response(self, msg: str) -> None:
        body = encode({"error": "bad_request", "message": msg})
        head = b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\ncontent-length: %d\r\n"
        self.transport.write(head % len(body) + b"connection: close\r\n\r\n" + body)
        self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        when_unread, self.when_unread = self.when_unread, None
        if when_unread is not None and (exc is not None or _unreceived(self.transport)):
            when_unread()
        super().connection_lost(exc)


def _unreceived(transport: object) -> bool:
    """Whether the other side closed while bytes of ours were still on the way to it, or refused them.

    An end that was sent after our bytes were received acknowledges them; so bytes that are not acknowledged,
    or a reset, say that the answer was written to somebody who had gone.
    """
    file = transport.get_extra_info("socket")  # type: ignore[attr-defined]
    if sys.platform != "linux" or file is None or file.fileno() < 0:
        return False
    try:
        with socket.socket(fileno=os.dup(file.fileno())) as same:
            state = same.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]
            return state == TCP_CLOSE or _unacknowledged(same) > 0
    except OSError:
        return False


def _unacknowledged(connection: socket.socket) -> int:
    import fcntl
    import termios

    count = array.array("i", [0])
    fcntl.ioctl(connection.fileno(), termios.TIOCOUTQ, count)
    return count[0]
