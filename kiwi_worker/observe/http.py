"""A very small HTTP server for health and metrics: GET, short answers, one thread, few connections.

It takes no thread for each connection and no time while nobody asks; a client that is slow, or stays,
holds up nobody else and is cut off.
"""

from __future__ import annotations

import logging
import selectors
import socket
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import NamedTuple

__all__ = ["Page", "PageServer"]

_logger = logging.getLogger("kiwi_worker.observe")

MOST_CONNECTIONS = 16
LONGEST_HEAD_BYTES = 8192
LIMIT_SECONDS = 5.0
"""How long one connection may take in all."""
ERRORS_PAUSE_SECONDS = 0.2
STOP_SECONDS = 2.0

_REASONS = {200: "OK", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed", 500: "Error"}


class Page(NamedTuple):
    """An answer."""

    status: int
    body: bytes
    content_type: str = "application/json"


Handler = Callable[[str], Page]
"""Makes a page; called with the `Accept` header of the request."""


class _Connection:
    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.received = b""
        self.unsent = b""
        self.until = time.monotonic() + LIMIT_SECONDS


class PageServer:
    """Serves pages by their paths until it is closed.

    Args:
        name: of its thread.
        host: the address to listen on.
        port: the port; 0 for any free one.
        pages: what makes each page, by path.

    Attributes:
        port: the real port.

    Raises:
        OSError: the port cannot be had.
    """

    def __init__(self, name: str, host: str, port: int, pages: Mapping[str, Handler]) -> None:
        self._pages = pages
        self._listener = socket.create_server((host, port), backlog=MOST_CONNECTIONS)
        self._listener.setblocking(False)
        self.port = int(self._listener.getsockname()[1])
        self._near, self._far = socket.socketpair()
        self._stopped = threading.Event()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ, None)
        self._selector.register(self._near, selectors.EVENT_READ, None)
        self._open: OrderedDict[_Connection, None] = OrderedDict()
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop serving and free the port."""
        self._stopped.set()
        self._far.send(b"\0")
        if self._thread is not threading.current_thread():
            self._thread.join(STOP_SECONDS)

    def _serve(self) -> None:
        try:
            while not self._stopped.is_set():
                try:
                    self._turn()
                except Exception:
                    # Whatever it was: a worker whose health cannot be asked is taken for dead.
                    _logger.exception("serving a page failed", extra={"action": "page_failed"})
                    self._stopped.wait(ERRORS_PAUSE_SECONDS)
        finally:
            self._close_all()

    def _close_all(self) -> None:
        for connection in list(self._open):
            self._cut(connection)
        self._selector.close()
        for sock in (self._listener, self._near, self._far):
            sock.close()

    def _turn(self) -> None:
        for key, _ in self._selector.select(self._seconds_to_wait()):
            if key.fileobj is self._listener:
                self._accept()
            elif key.data is not None and key.data in self._open:
                self._go_on(key.data)
        while self._seconds_to_wait() == 0.0:
            self._cut(next(iter(self._open)))

    def _seconds_to_wait(self) -> float | None:
        oldest = next(iter(self._open), None)
        return None if oldest is None else max(0.0, oldest.until - time.monotonic())

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except BlockingIOError:
            return
        except OSError:  # out of descriptors, perhaps: one that we hold may come back
            self._stopped.wait(ERRORS_PAUSE_SECONDS)
            return
        if len(self._open) >= MOST_CONNECTIONS:
            self._cut(next(iter(self._open)))
        sock.setblocking(False)
        connection = _Connection(sock)
        self._open[connection] = None
        self._selector.register(sock, selectors.EVENT_READ, connection)

    def _cut(self, connection: _Connection) -> None:
        del self._open[connection]
        self._selector.unregister(connection.sock)
        connection.sock.close()

    def _go_on(self, connection: _Connection) -> None:
        try:
            ended = self._send(connection) if connection.unsent else self._receive(connection)
        except BlockingIOError:
            return
        except OSError:
            ended = True
        if ended:
            self._cut(connection)

    def _receive(self, connection: _Connection) -> bool:
        """Read on; whether the connection is over."""
        data = connection.sock.recv(LONGEST_HEAD_BYTES)
        connection.received += data
        whole = b"\r\n\r\n" in connection.received or b"\n\n" in connection.received
        if not whole and len(connection.received) < LONGEST_HEAD_BYTES:
            return not data
        connection.unsent = self._answer(connection.received) if whole else _encode(Page(400, b"{}"), False)
        self._selector.modify(connection.sock, selectors.EVENT_WRITE, connection)
        return False

    @staticmethod
    def _send(connection: _Connection) -> bool:
        sent = connection.sock.send(connection.unsent)
        connection.unsent = connection.unsent[sent:]
        if not connection.unsent:
            connection.sock.shutdown(socket.SHUT_WR)
        return not connection.unsent

    def _answer(self, head: bytes) -> bytes:
        lines = head.decode("latin-1").splitlines()
        method, _, rest = lines[0].partition(" ")
        target = rest.partition(" ")[0].partition("?")[0]
        page = self._page(method, target, _header(lines[1:], "accept"))
        return _encode(page, method == "HEAD")

    def _page(self, method: str, target: str, accept: str) -> Page:
        if method not in ("GET", "HEAD"):
            return Page(405, b'{"error":"only GET"}')
        make = self._pages.get(target)
        if make is None:
            return Page(404, b'{"error":"no such page"}')
        try:
            return make(accept)
        except Exception:
            _logger.exception("making a page failed", extra={"action": "page_failed"})
            return Page(500, b'{"error":"making the page failed; the log says why"}')


def _header(lines: list[str], name: str) -> str:
    for line in lines:
        key, _, value = line.partition(":")
        if key.strip().lower() == name:
            return value.strip()
    return ""


def _encode(page: Page, head_only: bool) -> bytes:
    head = (
        f"HTTP/1.1 {page.status} {_REASONS.get(page.status, 'Unavailable')}\r\n"
        f"Content-Type: {page.content_type}\r\nContent-Length: {len(page.body)}\r\n"
        "Cache-Control: no-store\r\nConnection: close\r\n\r\n"
    )
    return head.encode("latin-1") + (b"" if head_only else page.body)
