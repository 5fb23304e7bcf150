"""A server made of threads and bytes: it says what a test tells it to say, right or wrong."""

from __future__ import annotations

import contextlib
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

LIMIT_SECONDS = 20.0

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


@dataclass
class Request:
    """A request as it came: `raw` holds every byte of it."""

    raw: bytes
    method: str
    target: str
    headers: list[tuple[str, str]]
    body: bytes

    def header(self, name: str) -> str | None:
        values = [value for key, value in self.headers if key.lower() == name.lower()]
        return values[0] if values else None


class Peer:
    """The server's side of one connection."""

    def __init__(self, sock: socket.socket, number: int) -> None:
        self.sock = sock
        self.number = number
        self._buffer = b""

    def _receive(self) -> bool:
        data = self.sock.recv(65536)
        self._buffer += data
        return bool(data)

    def read_head(self) -> bytes | None:
        while b"\r\n\r\n" not in self._buffer:
            if not self._receive():
                return None
        head, _, self._buffer = self._buffer.partition(b"\r\n\r\n")
        return head + b"\r\n\r\n"

    def read_request(self) -> Request | None:
        """The next request, or None when the client has gone."""
        head = self.read_head()
        if head is None:
            return None
        announced = re.search(rb"\r\nContent-Length: (\d+)\r\n", head)
        length = int(announced[1]) if announced else 0
        while len(self._buffer) < length:
            if not self._receive():
                return None
        body, self._buffer = self._buffer[:length], self._buffer[length:]
        return _parsed(head, body)

    def send(self, data: bytes) -> None:
        self.sock.sendall(data)

    def reset(self) -> None:
        """End the connection with a reset instead of a farewell."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
        self.sock.close()

    def until_closed(self) -> None:
        """Wait, saying nothing, until the client gives up."""
        with contextlib.suppress(OSError):
            while self.sock.recv(65536):
                pass


def _parsed(head: bytes, body: bytes) -> Request:
    line, *fields = head[:-4].decode("ascii").split("\r\n")
    method, target, version = line.split(" ")
    assert version == "HTTP/1.1"
    headers = [(key, value.lstrip(" ")) for key, _, value in (entry.partition(":") for entry in fields)]
    return Request(head + body, method, target, headers, body)


Handler = Callable[[Peer], None]


@dataclass
class RawServer:
    """Accepts connections and gives each to `handler`, in a thread of its own, until `close`."""

    handler: Handler
    host: str = "127.0.0.1"
    context: ssl.SSLContext | None = None
    peers: list[Peer] = field(default_factory=list)
    failures: list[BaseException] = field(default_factory=list)
    _threads: list[threading.Thread] = field(default_factory=list)

    def __post_init__(self) -> None:
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        self._listener = socket.create_server((self.host, 0), family=family)
        self.port: int = self._listener.getsockname()[1]
        self._start(self._accept)

    @property
    def url(self) -> str:
        scheme = "https" if self.context is not None else "http"
        return f"{scheme}://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"

    def _start(self, target: Callable[[], None]) -> None:
        thread = threading.Thread(target=target, name="raw-server", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            sock.settimeout(LIMIT_SECONDS)
            self._start(lambda sock=sock: self._serve(sock))  # type: ignore[misc]

    def _serve(self, sock: socket.socket) -> None:
        peer = Peer(sock, len(self.peers))
        self.peers.append(peer)
        try:
            if self.context is not None:
                peer.sock = self.context.wrap_socket(sock, server_side=True)
            self.handler(peer)
        except OSError:
            # The client may go at any time.
            pass
        except BaseException as error:
            self.failures.append(error)
        finally:
            peer.sock.close()
            sock.close()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for peer in self.peers:
            with contextlib.suppress(OSError):
                socket.socket.shutdown(peer.sock, socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(LIMIT_SECONDS)
            assert not thread.is_alive()
        assert self.failures == []


@contextlib.contextmanager
def serving(
    handler: Handler, *, host: str = "127.0.0.1", context: ssl.SSLContext | None = None
) -> Iterator[RawServer]:
    server = RawServer(handler, host, context)
    try:
        yield server
    finally:
        server.close()


def answering(*answers: bytes, requests: list[Request] | None = None) -> Handler:
    """A handler that gives these answers in turn, the last one again and again, and notes the requests."""
    left = list(answers)

    def handle(peer: Peer) -> None:
        while (request := peer.read_request()) is not None:
            if requests is not None:
                requests.append(request)
            peer.send(left.pop(0) if len(left) > 1 else left[0])

    return handle


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait until something holds; fail when it does not come to hold."""
    deadline = time.monotonic() + LIMIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "it did not come to hold in time"
        time.sleep(0.002)
