"""A listening socket with one thread that accepts and one for each connection, all of them ended on stop."""

from __future__ import annotations

import itertools
import selectors
import socket
import ssl
import threading
from collections.abc import Callable

__all__ = ["Listener"]

_JOIN_SECONDS = 10.0


class Listener:
    """Accepts connections and serves each on a thread of its own.

    Args:
        serve: called with the accepted socket and its number, on the connection's thread. Closes the socket.
            It must end soon after that socket was shut down.
        host: the address to bind.
        port: the port to bind; 0 for any free one, which `address` tells.
        name: the start of its threads' names.
        ssl_context: serve TLS with this context; the handshake is made by the connection's thread.
    """

    def __init__(
        self,
        serve: Callable[[socket.socket, int], None],
        host: str,
        port: int,
        *,
        name: str,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        self._serve = serve
        self._host = host
        self._port = port
        self._name = name
        self._ssl_context = ssl_context
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._open: dict[int, tuple[socket.socket, threading.Thread]] = {}
        self._stopping = False
        self._listening: socket.socket | None = None
        self._accepting: threading.Thread | None = None
        self._wake: tuple[socket.socket, socket.socket] | None = None

    @property
    def address(self) -> tuple[str, int]:
        """Host and real port; after a stop, the port that was bound last."""
        return (self._host, self._port)

    @property
    def connections(self) -> int:
        """How many connections are open now."""
        with self._lock:
            return len(self._open)

    def start(self) -> None:
        """Bind, listen and accept. After a stop it may be started again, on the same port.

        Raises:
            OSError: the address cannot be bound.
        """
        self._stopping = False
        self._listening = _listening_socket(self._host, self._port)
        self._port = self._listening.getsockname()[1]
        self._wake = socket.socketpair()
        self._accepting = threading.Thread(target=self._accept, name=f"{self._name}-accept", daemon=True)
        self._accepting.start()

    def stop(self) -> None:
        """Stop listening, end every connection, and wait for all threads.

        Raises:
            RuntimeError: a connection's thread did not end.
        """
        self.stop_listening()
        self.end_connections(wait=True)

    def stop_listening(self) -> None:
        """Refuse new connections; the open ones go on."""
        self._stopping = True
        if self._accepting is None or self._wake is None or self._listening is None:
            return
        self._wake[1].send(b"x")
        self._accepting.join(_JOIN_SECONDS)
        for sock in (*self._wake, self._listening):
            sock.close()
        self._accepting = self._wake = self._listening = None

    def end_connections(self, *, wait: bool = False) -> None:
        """Shut every open connection down; with `wait`, until their threads are over.

        Raises:
            RuntimeError: a connection's thread did not end.
        """
        with self._lock:
            held = list(self._open.values())
        for sock, _ in held:
            _shut_down(sock)
        for _, thread in held if wait else ():
            thread.join(_JOIN_SECONDS)
            if thread.is_alive():
                raise RuntimeError(f"the thread {thread.name} did not end within {_JOIN_SECONDS:g} s")

    def _accept(self) -> None:
        listening, wake = self._listening, self._wake
        if listening is None or wake is None:
            return
        with selectors.DefaultSelector() as selector:
            selector.register(listening, selectors.EVENT_READ)
            selector.register(wake[0], selectors.EVENT_READ)
            while not self._stopping:
                selector.select()
                self._take(listening)

    def _take(self, listening: socket.socket) -> None:
        try:
            sock, _ = listening.accept()
        except OSError:
            return
        if self._stopping:
            sock.close()
            return
        sock.setblocking(True)
        self._start_serving(self._wrapped(sock), next(self._numbers))

    def _wrapped(self, sock: socket.socket) -> socket.socket:
        if self._ssl_context is None:
            return sock
        return self._ssl_context.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)

    def _start_serving(self, sock: socket.socket, number: int) -> None:
        thread = threading.Thread(
            target=self._run, args=(sock, number), name=f"{self._name}-{number}", daemon=True
        )
        with self._lock:
            self._open[number] = (sock, thread)
            thread.start()

    def _run(self, sock: socket.socket, number: int) -> None:
        try:
            self._serve(sock, number)
        finally:
            with self._lock:
                del self._open[number]


def _listening_socket(host: str, port: int) -> socket.socket:
    family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    sock = socket.socket(family, kind, proto)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen(256)
        sock.setblocking(False)
    except OSError:
        sock.close()
        raise
    return sock


def _shut_down(sock: socket.socket) -> None:
    try:
        sock.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass
