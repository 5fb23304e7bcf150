"""Answers in one piece, for the servers that come with the package."""

from __future__ import annotations

import asyncio
from typing import Any

__all__ = ["Joined"]


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
