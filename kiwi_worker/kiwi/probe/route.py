"""The address of this machine that the middleware can reach.

A host name is a bad witness: it may map to a loopback address, or to one of several networks. The route that
the system would take to the middleware is the one whose near end the middleware can answer to.
"""

from __future__ import annotations

import ipaddress
import logging
import socket
from typing import Any

from kiwi_worker.errors import UnreachableError

__all__ = ["route_address"]

_log = logging.getLogger("kiwi_worker.kiwi")


_WHAT_TO_DO = "check the network and middleware_url, or set advertised_ip to where the probe is reached"


def route_address(host: str, port: int) -> str:
    """The local address of the route to `host`; nothing is sent.

    It is logged as a warning when that is a loopback address and the middleware is not on this machine.

    Args:
        host: name or address of the middleware, also when a proxy is in between: a wake-up passes no proxy.
        port: its port.

    Returns:
        An IPv4 or IPv6 address in its usual text form, without a scope.

    Raises:
        UnreachableError: the name is unknown, or there is no route.
    """
    reasons: list[str] = []
    for family, _, _, _, target in _addresses(host, port):
        try:
            near = _near_end(family, target)
        except OSError as error:
            reasons.append(f"{target[0]}: {error.strerror or error}")
            continue
        _warn_about_loopback(near, str(target[0]))
        return near
    raise UnreachableError(f"no route to the middleware {host} ({'; '.join(reasons)}): {_WHAT_TO_DO}")


def _addresses(host: str, port: int) -> list[Any]:
    try:
        return socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_DGRAM)
    except (OSError, UnicodeError) as error:
        text = f"the name of the middleware, {host}, is not known ({error}): {_WHAT_TO_DO}"
        raise UnreachableError(text) from None


def _near_end(family: int, target: Any) -> str:
    with socket.socket(family, socket.SOCK_DGRAM) as sock:
        sock.connect(target)
        return str(sock.getsockname()[0]).partition("%")[0]


def _warn_about_loopback(near: str, target: str) -> None:
    if _is_loopback(near) and not _is_loopback(target):
        _log.warning(
            "the route to the middleware %s starts at the loopback address %s, which it cannot probe: "
            "set advertised_ip",
            target,
            near,
            extra={"action": "loopback_route"},
        )


def _is_loopback(address: str) -> bool:
    parsed = ipaddress.ip_address(address.partition("%")[0])
    return parsed.is_loopback or parsed.is_unspecified
