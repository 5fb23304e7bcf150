"""One kept connection as the data plane uses it: opened, limited in time, looked at, interrupted."""

from __future__ import annotations

import logging
import socket
import struct
import sys
import threading
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from kiwi_worker import held
from kiwi_worker.transport.failures import Interrupted, Unconnected
from kiwi_worker.transport.heads import checked_seconds
from kiwi_worker.transport.opening import new_connection, open_socket

if TYPE_CHECKING:
    from collections.abc import Callable

    from kiwi_worker.transport.endpoint import Endpoint
    from kiwi_worker.transport.opening import Opening

_MIN_SECONDS = 0.001
_log = logging.getLogger("kiwi_worker.transport")

# Equal to no number, so that whatever is asked for is set.
_NO_LIMIT = float("nan")
_KERNEL_LIMITS = sys.platform != "win32"


class Connection:
    """A socket to an endpoint. Used by one thread at a time; only `interrupt` may come from another.

    Attributes:
        sock: the open socket, or None.
        limit_seconds: the time limit now set for one wait for bytes; NaN when none is.
        send: sends the bytes it is given, as far as they go; gives how many.
        readable: tells whether the socket has something to read, bytes or its end, without waiting.
        sends_parts: whether a write that failed may have sent a part that the server understands. A plain
            socket has then sent nothing, and TLS no whole record; TLS inside TLS may have sent several.
        interrupted: set by `interrupt`, cleared by the user of the connection when it took notice.
    """

    def __init__(self, endpoint: Endpoint, connect_timeout: float) -> None:
        self.sock: socket.socket | None = None
        self.limit_seconds = self._send_limit_seconds = _NO_LIMIT
        self.send: Callable[[bytes], int] = len
        self.readable: Callable[[], object] = bool
        self.sends_parts = False
        self.interrupted = False
        self._endpoint = endpoint
        self._connect_timeout = checked_seconds(connect_timeout)
        self._opening: Opening | None = None
        self._blocks_in_kernel = False
        # Without it, an interrupt could shut down a number that already belongs to another file.
        self._lock = threading.Lock()

    def open(self) -> socket.socket:
        """Open a new connection in the place of the present one.

        Raises:
            Interrupted: it was, before or meanwhile.
            SettingsError: a certificate file cannot be used.
            Unconnected: it could not be opened.
        """
        self.discard()
        opening = self._opening = new_connection(self._endpoint, self._connect_timeout)
        try:
            self._stop_if_interrupted()
            limit_seconds = 3 * self._connect_timeout if self._endpoint.via is not None else None
            sock = open_socket(opening, limit_seconds)
        except Unconnected:
            self._stop_if_interrupted()
            raise
        finally:
            self._opening = None
        self._blocks_in_kernel = _KERNEL_LIMITS and type(sock) is socket.socket
        if self._blocks_in_kernel:
            sock.settimeout(None)
        self.sends_parts = not isinstance(sock, socket.socket)
        if type(sock) is socket.socket:
            self.send, self.readable = held.sender(sock), held.readable(sock)
        else:
            # Below TLS a poll may say yes, which is looked into. TLS inside TLS keeps bytes between its
            # layers, where no poll sees them.
            self.send = sock.send
            self.readable = held.readable(sock) if isinstance(sock, socket.socket) else lambda: True
        self.limit_seconds = self._send_limit_seconds = _NO_LIMIT
        # First the socket, then the look at the flag; `interrupt` does it the other way round.
        self.sock = sock
        self._stop_if_interrupted()
        _log.debug("connected to %s", self._endpoint.origin, extra={"action": "connection_opened"})
        return sock

    def _stop_if_interrupted(self) -> None:
        if self.interrupted:
            raise Interrupted

    def set_limit(self, seconds: float) -> None:
        """Limit every wait for bytes from now on; a write waits no longer than the longest such limit.

        Raises:
            ValueError: no finite, positive number of seconds.
        """
        assert self.sock is not None
        seconds = max(checked_seconds(seconds), _MIN_SECONDS)
        if self._blocks_in_kernel:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _kernel_time(seconds))
            # A request that is sent at once hardly ever waits: a second system call for each is not worth it.
            if not seconds <= self._send_limit_seconds:
                self._set_send_limit(seconds)
        else:
            self.sock.settimeout(seconds)
        self.limit_seconds = seconds

    def limit_write(self, seconds: float) -> None:
        """Limit the next write, whatever the limit of waits is; that has to be set again.

        Raises:
            ValueError: no finite, positive number of seconds.
        """
        assert self.sock is not None
        seconds = max(checked_seconds(seconds), _MIN_SECONDS)
        if self._blocks_in_kernel:
            self._set_send_limit(seconds)
        else:
            self.sock.settimeout(seconds)
        self.limit_seconds = _NO_LIMIT

    def _set_send_limit(self, seconds: float) -> None:
        assert self.sock is not None
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _kernel_time(seconds))
        self._send_limit_seconds = seconds

    def is_stale(self) -> bool:
        """Whether an idle connection that is `readable` was closed, or has bytes that nothing asked for."""
        assert self.sock is not None
        return type(self.sock) is socket.socket or self._is_stale_below_tls(self.sock)

    def _is_stale_below_tls(self, sock: socket.socket) -> bool:
        """Readable is not yet closed: session tickets and key updates come at any time. So TLS is asked."""
        import ssl

        sock.settimeout(0)
        self.limit_seconds = _NO_LIMIT
        try:
            sock.recv(1)
        except (ssl.SSLWantReadError, BlockingIOError):
            return False
        except OSError:
            pass
        return True

    def interrupt(self) -> None:
        """From any thread: end what the connection is doing, or the next thing it is asked to do."""
        with self._lock:
            self.interrupted = True
            if self._opening is not None:
                self._opening.abort()
            if self.sock is not None:
                _end(self.sock)

    def discard(self) -> None:
        """Close the socket, if there is one; the next use opens another."""
        with self._lock:
            sock, self.sock = self.sock, None
            if sock is not None:
                sock.close()


@lru_cache(64)
def _kernel_time(seconds: float) -> bytes:
    return struct.pack("@ll", int(seconds), int(seconds % 1 * 1e6))


def _end(sock: Any) -> None:
    from kiwi_worker.transport.urllib3_connections import end_tcp

    # TLS inside TLS is no socket, but has one. The farewell of TLS belongs to the connection's own thread.
    end_tcp(sock if isinstance(sock, socket.socket) else sock.socket)
