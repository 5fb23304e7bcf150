"""The TCP side of the wake-up probe: several packets on one connection, and connections that mean no good."""

from __future__ import annotations

import selectors
import socket
import time
from collections import OrderedDict
from functools import partial

from kiwi_worker.kiwi.probe.packets import NotAPacket, PacketSplitter, acknowledgement
from kiwi_worker.kiwi.probe.reception import Reception

__all__ = ["Connections"]

MAX_CONNECTIONS = 64
_READ_BYTES = 65_536


class _Connection:
    """What was read of a packet that is not complete, and what could not be written of the answers."""

    def __init__(self, sock: socket.socket, sender: str) -> None:
        self.socket = sock
        self.sender = sender
        self.splitter = PacketSplitter()
        self.unsent = bytearray()
        self.ending = False
        self.last_packet_at = time.monotonic()


class Connections:
    """All open TCP connections of a probe, the one that waits longest for a packet first.

    A connection is closed when it completes no packet within `idle_limit` seconds, however many bytes it
    sends; and when there are too many, the oldest makes room for the newest, so that held connections shut
    nobody out. Nothing more is read from a connection that does not take its answers.

    Args:
        selector: where connections are registered, each with the function to call when it is ready.
        reception: what to do with packets.
        idle_limit: seconds.
    """

    def __init__(self, selector: selectors.BaseSelector, reception: Reception, idle_limit: float) -> None:
        self._selector = selector
        self._reception = reception
        self._idle_limit = idle_limit
        self._open: OrderedDict[_Connection, None] = OrderedDict()

    def accept(self, sock: socket.socket, sender: str) -> None:
        """Take over an accepted connection."""
        if len(self._open) >= MAX_CONNECTIONS:
            self.cut_oldest()
        sock.setblocking(False)
        connection = _Connection(sock, sender)
        self._open[connection] = None
        self._selector.register(sock, selectors.EVENT_READ, partial(self._serve, connection))
        self._reception.counters.connections += 1

    def seconds_to_wait(self) -> float | None:
        """Seconds until the first of them is idle for too long; None while there are none."""
        if not self._open:
            return None
        oldest = next(iter(self._open))
        return max(0.0, oldest.last_packet_at + self._idle_limit - time.monotonic())

    def cut_idle(self) -> None:
        """Close those that completed no packet for too long."""
        while self.seconds_to_wait() == 0.0:
            self.cut_oldest()

    def cut_oldest(self) -> None:
        """Close the one that waits longest, when there is any."""
        if self._open:
            self._reception.counters.cut_connections += 1
            self._close(next(iter(self._open)))

    def close(self) -> None:
        """Close all of them."""
        for connection in tuple(self._open):
            self._close(connection)

    def _serve(self, connection: _Connection) -> None:
        if connection not in self._open:
            return
        try:
            if connection.unsent:
                self._send(connection)
            else:
                self._receive(connection)
        except OSError as error:
            self._reception.receive_error(error)
            self._close(connection)
        else:
            self._await_next(connection)

    def _receive(self, connection: _Connection) -> None:
        try:
            data = connection.socket.recv(_READ_BYTES)
        except BlockingIOError:
            return
        connection.ending = not data
        try:
            for packet in connection.splitter.feed(data):
                self._hear(connection, packet)
        except NotAPacket as error:
            self._reception.ignore(error.reason, connection.sender)
            connection.splitter = PacketSplitter()
            connection.ending = True

    def _hear(self, connection: _Connection, packet: bytes) -> None:
        identity = self._reception.identity(packet, connection.sender)
        if identity is None:
            return
        connection.last_packet_at = time.monotonic()
        self._open.move_to_end(connection)
        connection.unsent += acknowledgement(identity)
        self._acknowledge(connection)
        self._reception.wake(identity)

    def _acknowledge(self, connection: _Connection) -> None:
        """A sender that is gone is seen at the next read; its packet wakes all the same."""
        try:
            self._send(connection)
        except OSError as error:
            self._reception.unacknowledged(error)
            connection.unsent.clear()
            connection.ending = True
        else:
            self._reception.acknowledged()

    def _send(self, connection: _Connection) -> None:
        try:
            sent = connection.socket.send(connection.unsent)
        except BlockingIOError:
            return
        del connection.unsent[:sent]

    def _await_next(self, connection: _Connection) -> None:
        if connection.ending and not connection.unsent:
            self._close(connection)
            return
        events = selectors.EVENT_WRITE if connection.unsent else selectors.EVENT_READ
        key = self._selector.get_key(connection.socket)
        if key.events != events:
            self._selector.modify(connection.socket, events, key.data)

    def _close(self, connection: _Connection) -> None:
        if connection.splitter.partial:
            self._reception.ignore("incomplete", connection.sender)
        del self._open[connection]
        self._selector.unregister(connection.socket)
        connection.socket.close()
