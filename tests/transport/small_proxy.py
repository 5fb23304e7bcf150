"""A forward proxy: CONNECT, and requests in absolute form."""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
from collections.abc import Iterator
from dataclasses import dataclass, field

from raw_server import LIMIT_SECONDS, Peer, RawServer, serving

REFUSED = b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n"


@dataclass
class SmallProxy:
    """Notes the head of every request that it is sent; wants `authorization` when that is not None."""

    authorization: str | None = None
    heads: list[str] = field(default_factory=list)

    def __call__(self, peer: Peer) -> None:
        while (head := peer.read_head()) is not None:
            self.heads.append(head.decode("ascii"))
            if self.authorization and f"Proxy-Authorization: {self.authorization}\r\n" not in self.heads[-1]:
                peer.send(REFUSED)
            elif head.startswith(b"CONNECT "):
                self._tunnel(peer)
                return
            else:
                peer.send(self._forwarded(head))

    def _tunnel(self, peer: Peer) -> None:
        host, _, port = self.heads[-1].split(" ")[1].rpartition(":")
        with socket.create_connection((host.strip("[]"), int(port)), LIMIT_SECONDS) as upstream:
            peer.send(b"HTTP/1.1 200 Connection established\r\n\r\n")
            _relay(peer.sock, upstream)

    def _forwarded(self, head: bytes) -> bytes:
        """The answer of a server to a request without a body, in one piece."""
        method, url, rest = head.split(b" ", 2)
        address, _, path = url.removeprefix(b"http://").partition(b"/")
        host, _, port = address.rpartition(b":")
        with socket.create_connection((host.decode().strip("[]"), int(port)), LIMIT_SECONDS) as upstream:
            upstream.sendall(b"%b /%b %b" % (method, path, rest))
            return upstream.recv(65536)


def _relay(client: socket.socket, upstream: socket.socket) -> None:
    """Carry bytes both ways until one side ends; in one thread, since a TLS socket is for one."""
    others = {client: upstream, upstream: client}
    with contextlib.suppress(OSError):
        while True:
            for source in _ready(client, upstream):
                data = source.recv(65536)
                if not data:
                    return
                others[source].sendall(data)


def _ready(client: socket.socket, upstream: socket.socket) -> list[socket.socket]:
    if isinstance(client, ssl.SSLSocket) and client.pending():
        return [client]
    return select.select([client, upstream], [], [], LIMIT_SECONDS)[0]


@contextlib.contextmanager
def proxying(
    *, authorization: str | None = None, context: ssl.SSLContext | None = None
) -> Iterator[tuple[SmallProxy, RawServer]]:
    """A running proxy and the server that it is."""
    proxy = SmallProxy(authorization)
    with serving(proxy, context=context) as server:
        yield proxy, server
