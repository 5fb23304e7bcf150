"""One port, bound for UDP and for TCP."""

from __future__ import annotations

import errno
import socket
import sys
from typing import Any

from kiwi_worker.errors import ProbePortError

__all__ = ["bind_pair"]

_TRIES_FOR_A_FREE_PAIR = 64
_BACKLOG = 128

_WHAT_TO_DO = {
    errno.EADDRINUSE: "another program (another worker?) has it: stop that one, or set "
    "wakeup_probe_service_port to another port or to 0 for any free one",
    errno.EACCES: "this user may not bind it: set wakeup_probe_service_port to a port above 1023",
    errno.EADDRNOTAVAIL: "no interface of this machine has that address: set wakeup_probe_bind to one "
    "it has, or to 0.0.0.0",
    errno.EAFNOSUPPORT: "this machine does not speak that address family: set wakeup_probe_bind to 0.0.0.0",
}
_ANYTHING_ELSE = "set wakeup_probe_bind and wakeup_probe_service_port to what this machine can bind"


def bind_pair(address: str, port: int) -> tuple[socket.socket, socket.socket]:
    """Bind a UDP socket and a listening TCP socket to the same address and port.

    Args:
        address: an address of this machine, `0.0.0.0`, or `::` for IPv6 and IPv4 together.
        port: the port; 0 = any that is free for both.

    Returns:
        The UDP socket and the TCP socket.

    Raises:
        ProbePortError: it cannot be bound; the text names port, address and what to do.
    """
    for tries_left in reversed(range(_TRIES_FOR_A_FREE_PAIR)):
        tcp = _bound(address, port, socket.SOCK_STREAM)
        try:
            return _bound(address, tcp.getsockname()[1], socket.SOCK_DGRAM), tcp
        except ProbePortError:
            tcp.close()
            if port or not tries_left:
                raise
    raise AssertionError("unreachable")


def _bound(address: str, port: int, kind: socket.SocketKind) -> socket.socket:
    try:
        family, target = _resolved(address, port, kind)
        sock = socket.socket(family, kind)
    except (OSError, OverflowError, UnicodeError) as error:
        raise _refusal(address, port, kind, error) from None
    try:
        _prepare(sock)
        sock.bind(target)
        if kind == socket.SOCK_STREAM:
            sock.listen(_BACKLOG)
        sock.setblocking(False)
    except (OSError, OverflowError) as error:
        sock.close()
        raise _refusal(address, port, kind, error) from None
    return sock


def _resolved(address: str, port: int, kind: socket.SocketKind) -> tuple[socket.AddressFamily, Any]:
    found = socket.getaddrinfo(address.strip("[]"), port, type=kind, flags=socket.AI_PASSIVE)
    return found[0][0], found[0][4]


def _prepare(sock: socket.socket) -> None:
    if sock.family == socket.AF_INET6:
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    if sys.platform == "win32":
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_EXCLUSIVEADDRUSE, 1)
    elif sock.type == socket.SOCK_STREAM:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)


def _refusal(address: str, port: int, kind: socket.SocketKind, error: Exception) -> ProbePortError:
    transport = "TCP" if kind == socket.SOCK_STREAM else "UDP"
    code = error.errno if isinstance(error, OSError) else None
    why = getattr(error, "strerror", None) or str(error)
    return ProbePortError(
        f"the wake-up probe cannot listen on {transport} port {port} at address {address} ({why}): "
        f"{_WHAT_TO_DO.get(code or 0, _ANYTHING_ELSE)}",
        address=address,
        port=port,
    )
