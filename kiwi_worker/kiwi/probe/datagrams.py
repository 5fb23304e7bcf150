"""A UDP socket that answers from the address that was asked.

A host with several addresses that is asked on one of them and answers from another is not understood: the
asker waits for an answer from the address it knows. Where the system tells the address a datagram was sent to
(`IP_PKTINFO`, `IPV6_RECVPKTINFO`), the answer leaves from it; elsewhere the system chooses, as it always did.
"""

from __future__ import annotations

import ipaddress
import socket
import struct
import sys
from typing import Any, NamedTuple

__all__ = ["Datagram", "DatagramSocket", "TooLong"]

_MAX_DATAGRAM_BYTES = 65_536
_RECEIVE_BUFFER_BYTES = 1 << 20
_SPACE_FOR_PKTINFO = 128
_IN_PKTINFO = struct.Struct("=I4s4s")
_IN6_PKTINFO = struct.Struct("=16sI")
_IP_PKTINFO: int = getattr(socket, "IP_PKTINFO", {"linux": 8, "darwin": 26}.get(sys.platform, -1))
_IPV6_RECVPKTINFO: int = getattr(socket, "IPV6_RECVPKTINFO", -1)
_IPV6_PKTINFO: int = getattr(socket, "IPV6_PKTINFO", -1)
_TRUNCATED: int = getattr(socket, "MSG_TRUNC", 0)

_Control = list[tuple[int, int, bytes]]


class TooLong(Exception):
    """A datagram was longer than any datagram that is understood here."""


class Datagram(NamedTuple):
    """A datagram with what is needed to answer it.

    Attributes:
        data: what it holds.
        sender: the socket address it came from, as the system gave it.
        control: what makes the answer leave from the address it was sent to; empty when that is not known.
    """

    data: bytes
    sender: Any
    control: _Control


class DatagramSocket:
    """Receives and answers datagrams without waiting; closing it closes the socket it was made with.

    Args:
        sock: a bound UDP socket, IPv4 or IPv6 (both families when it is bound so).
    """

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        sock.setblocking(False)
        _try_option(sock, socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER_BYTES)
        self._tells_destination = _ask_for_destination(sock)

    def fileno(self) -> int:
        """The file descriptor, for a selector."""
        return self._socket.fileno()

    def receive(self) -> Datagram:
        """The next datagram.

        Raises:
            BlockingIOError: there is none now.
            TooLong: it was cut off by the system.
            OSError: whatever the system reports, an earlier answer that could not be delivered included.
        """
        if not self._tells_destination:
            return Datagram(*self._socket.recvfrom(_MAX_DATAGRAM_BYTES), [])
        data, control, flags, sender = self._socket.recvmsg(_MAX_DATAGRAM_BYTES, _SPACE_FOR_PKTINFO)
        if flags & _TRUNCATED:
            raise TooLong
        return Datagram(data, sender, _control_for_answer(control))

    def answer(self, datagram: Datagram, data: bytes) -> None:
        """Send `data` to where the datagram came from, from the address it was sent to.

        Raises:
            OSError: it could not be sent; `BlockingIOError` when the system's buffer is full.
        """
        if datagram.control:
            try:
                self._socket.sendmsg([data], datagram.control, 0, datagram.sender)
                return
            except OSError:
                pass  # an address that is no source, such as a broadcast address: let the system choose
        self._socket.sendto(data, datagram.sender)

    def close(self) -> None:
        """Close the socket; a second time does nothing."""
        self._socket.close()


def _ask_for_destination(sock: socket.socket) -> bool:
    if not hasattr(sock, "recvmsg"):
        return False
    if sock.family == socket.AF_INET6:
        return _try_option(sock, socket.IPPROTO_IPV6, _IPV6_RECVPKTINFO, 1)
    return _try_option(sock, socket.IPPROTO_IP, _IP_PKTINFO, 1)


def _try_option(sock: socket.socket, level: int, option: int, value: int) -> bool:
    try:
        sock.setsockopt(level, option, value)
    except OSError:
        return False
    return True


def _control_for_answer(control: _Control) -> _Control:
    for level, kind, data in control:
        if level == socket.IPPROTO_IP and kind == _IP_PKTINFO and len(data) >= _IN_PKTINFO.size:
            _, local, _ = _IN_PKTINFO.unpack_from(data)
            return [(level, kind, _IN_PKTINFO.pack(0, local, bytes(4)))]
        if level == socket.IPPROTO_IPV6 and kind == _IPV6_PKTINFO and len(data) >= _IN6_PKTINFO.size:
            return [(level, kind, _same_address6(data))]
    return []


def _same_address6(data: bytes) -> bytes:
    """The interface is named only for a link-local address, which means nothing without it."""
    address, interface = _IN6_PKTINFO.unpack_from(data)
    keep = ipaddress.IPv6Address(address).is_link_local
    return _IN6_PKTINFO.pack(address, interface if keep else 0)
