"""What the servers that come with the package share: a listening socket, and answers in one piece."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

from kiwi_worker.errors import SettingsError

__all__ = ["Joined", "listen"]


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens; port 0 is any that is free.

    Raises:
        SettingsError: it cannot be had; the setting is `port`.
    """
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        # Accepted connections inherit it: else the end of a long answer waits until the rest is acknowledged.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(2048)
    except OSError as error:
        listener.close()
        raise SettingsError("port", f"cannot listen on {host}:{port}: {error.strerror}") from None
    listener.setblocking(False)
    return listener


class Joined:
    """A transport that writes the head of an answer together with what follows it.

    uvicorn writes them one after the other: two system calls here, and two wake-ups at the other side.
    """

    __slots__ = ("_head", "_transport")

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._head = b""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        if self._head:
            data, self._head = self._head + data, b""
        elif data.endswith(b"\r\n\r\n") and data.startswith(b"HTTP/1.1 ") and data[9:10] != b"1":
            self._head = data
            return
        if data:
            self._transport.write(data)

    def close(self) -> None:
        self.write(b"")
        self._transport.close()
