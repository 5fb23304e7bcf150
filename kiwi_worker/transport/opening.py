"""Opening a connection: urllib3's connection classes do it, and what they open is handed on as a socket.

TLS, host name checks, CONNECT tunnels, DNS and both IP versions are theirs. What is decided here is
which of the two classes to use, and whom it connects to:

    server   proxy    connection
    http     none     to the server
    https    none     TLS to the server
    http     http     to the proxy, requests in absolute form
    http     https    TLS to the proxy, requests in absolute form
    https    http     to the proxy, CONNECT, TLS to the server
    https    https    TLS to the proxy, CONNECT, in it TLS to the server
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, cast

from kiwi_worker.transport.failures import Unconnected

if TYPE_CHECKING:
    import socket
    import ssl
    from collections.abc import Callable

    from kiwi_worker.transport.endpoint import Address, Endpoint, Proxy
    from kiwi_worker.transport.urllib3_connections import PlainConnection, TlsConnection

    _ContextMaker = Callable[[], ssl.SSLContext]
    Opening = PlainConnection | TlsConnection


def new_connection(endpoint: Endpoint, connect_timeout: float) -> Opening:
    """An unopened connection that will lead to the endpoint's server.

    Args:
        connect_timeout: seconds, for each address of the host, and again for the TLS handshake.
    """
    if endpoint.via is None:
        return _plain_or_tls(endpoint.address, endpoint.tls_context, connect_timeout)
    if endpoint.scheme == "https":
        return _tunnel(endpoint, endpoint.via, connect_timeout)
    return _plain_or_tls(endpoint.via.address, endpoint.proxy_tls_context, connect_timeout)


def open_socket(connection: Opening, limit_seconds: float | None) -> socket.socket:
    """Open the connection and take its socket; the caller closes it.

    Args:
        limit_seconds: the most that everything together may take, where the connection's own limits
            leave a gap: a proxy that answers CONNECT one byte at a time.

    Raises:
        Unconnected: it could not be opened; its cause says why.
    """
    try:
        _connect(connection, limit_seconds)
    except BaseException:
        connection.close()
        raise
    # SSLTransport (TLS inside TLS) is no socket by type, but has every method used here.
    sock = cast("socket.socket", connection.sock)
    if hasattr(sock, "suppress_ragged_eofs"):
        # Under TLS an end without a farewell may be an attacker's doing: it is an error, not an end.
        cast("Any", sock).suppress_ragged_eofs = False
    return sock


def _connect(connection: Opening, limit_seconds: float | None) -> None:
    if limit_seconds is None:
        connection.connect()
        return
    watch = _Watch(connection, limit_seconds)
    try:
        with watch:
            connection.connect()
    except Unconnected:
        if watch.expired:
            raise Unconnected from TimeoutError(f"it took longer than {limit_seconds:g} seconds")
        raise


class _Watch:
    """Ends a connection's opening when its time is over."""

    def __init__(self, connection: Opening, limit_seconds: float) -> None:
        self.expired = False
        self._connection = connection
        self._limit_seconds = limit_seconds
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kiwi-connect-limit", daemon=True)

    def __enter__(self) -> _Watch:
        try:
            self._thread.start()
        except RuntimeError as error:
            raise Unconnected from error
        return self

    def _run(self) -> None:
        if not self._done.wait(self._limit_seconds):
            self.expired = True
            self._connection.abort()

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()


def _plain_or_tls(address: Address, context: _ContextMaker, connect_timeout: float) -> Opening:
    from kiwi_worker.transport.urllib3_connections import PlainConnection, TlsConnection

    if address.scheme == "http":
        return PlainConnection(address.host, address.port, timeout=connect_timeout)
    return TlsConnection(address.host, address.port, timeout=connect_timeout, ssl_context=context())


def _tunnel(endpoint: Endpoint, proxy: Proxy, connect_timeout: float) -> Opening:
    from urllib3.connection import ProxyConfig

    from kiwi_worker.transport.urllib3_connections import TlsConnection

    connection = TlsConnection(
        proxy.address.host,
        proxy.address.port,
        timeout=connect_timeout,
        ssl_context=endpoint.tls_context(),
        proxy_config=ProxyConfig(endpoint.proxy_tls_context(), False, None, None),
    )
    connection.set_tunnel(endpoint.host, endpoint.port, proxy.headers(), scheme=proxy.address.scheme)
    return connection
