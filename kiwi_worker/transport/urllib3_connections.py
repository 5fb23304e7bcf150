"""urllib3's connection classes, with the two things added that both ways of calling need.

Importing this module loads urllib3.
"""

from __future__ import annotations

import socket
import threading
from typing import Any

from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import NewConnectionError

from kiwi_worker.transport.failures import Interrupted, Unconnected

_LOOPBACKS = ("127.0.0.1", "::1")


class _Opening(HTTPConnection):
    """Finds `localhost` on both families, can be stopped, and marks what failed before anything was sent."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._lock = threading.Lock()
        self._handle: socket.socket | None = None
        self._aborted = False

    def connect(self) -> None:
        # urllib3 and requests report what failed before anything was sent and what failed after it alike.
        try:
            super().connect()
        except Exception as error:
            raise Unconnected from error
        finally:
            with self._lock:
                if self._handle is not None:
                    self._handle.close()
                    self._handle = None

    def abort(self) -> None:
        """From any thread: let a running `connect` fail, at the latest when the address is reached."""
        with self._lock:
            self._aborted = True
            if self._handle is not None:
                end_tcp(self._handle)

    def _new_conn(self) -> socket.socket:
        sock = self._connected_socket()
        with self._lock:
            # A handle of its own, since the handshake moves the connection from one socket object to another.
            self._handle = sock.dup()
            if self._aborted:
                sock.close()
                raise Interrupted
        return sock

    def _connected_socket(self) -> socket.socket:
        try:
            return super()._new_conn()
        except NewConnectionError:
            if self.host != "localhost":
                raise
            return self._loopback_socket()

    def _loopback_socket(self) -> socket.socket:
        """Try the loopback addresses: many a hosts file knows one, and the server listens on the other."""
        error: NewConnectionError | None = None
        try:
            for self.host in _LOOPBACKS:
                try:
                    return super()._new_conn()
                except NewConnectionError as refusal:
                    error = refusal
        finally:
            # The certificate is still checked for the name.
            self.host = "localhost"
        assert error is not None
        raise error


class PlainConnection(_Opening):
    """A connection without TLS. `connect` raises `Unconnected`."""


class TlsConnection(_Opening, HTTPSConnection):
    """A connection with TLS. `connect` raises `Unconnected`."""


def end_tcp(sock: socket.socket) -> None:
    """End every blocked call on a connection, below TLS; its socket stays to be closed by its user."""
    try:
        socket.socket.shutdown(sock, socket.SHUT_RDWR)
    except OSError:
        pass
