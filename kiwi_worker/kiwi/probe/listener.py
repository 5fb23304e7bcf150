"""The wake-up probe listener of a lazy worker (protocol page, "Lazy-mode wake-up probe")."""

from __future__ import annotations

import selectors
import socket
import threading
from collections.abc import Callable, Iterable
from typing import Any

from kiwi_worker.kiwi.probe.connections import Connections
from kiwi_worker.kiwi.probe.datagrams import Datagram, DatagramSocket, TooLong
from kiwi_worker.kiwi.probe.packets import acknowledgement
from kiwi_worker.kiwi.probe.ports import bind_pair
from kiwi_worker.kiwi.probe.reception import ProbeCounters, Reception

__all__ = ["ProbeListener"]

_DATAGRAMS_PER_TURN = 64
_ERRORS_BEFORE_A_PAUSE = 16
_PAUSE_SECONDS = 0.1


class ProbeListener:
    """Listens for wake-up packets over UDP and TCP on one port, acknowledges them and wakes the worker.

    A packet is acknowledged first, from the address it was sent to; then `on_wake` is called, unless that
    `PacketId` was seen before. What is no packet gets no answer and is counted by reason. Nothing that
    arrives, and no answer that cannot be delivered, ends the listener. It works in the one thread that calls
    `serve`, and sleeps there without a timer while no TCP connection is open.

    Args:
        bind: address to listen on: `0.0.0.0`, `::` (both families), or one address of this machine.
        port: UDP and TCP port; 0 = any port that is free for both.
        on_wake: called in the listener's thread after the acknowledgement of each packet not seen before; it
            is to return at once. When it raises, that is logged, and the same packet may wake again.
        allow: addresses and networks (`10.0.0.0/8`) whose packets are heard; empty = everyone's.
        idle_limit: seconds after which a TCP connection that completes no packet is closed.

    Raises:
        SettingsError: an entry of `allow` is neither an address nor a network.
    """

    def __init__(
        self,
        bind: str,
        port: int,
        on_wake: Callable[[], None],
        *,
        allow: Iterable[str] = (),
        idle_limit: float = 10.0,
    ) -> None:
        self._address = bind
        self._port = port
        self._reception = Reception(on_wake, allow)
        self._idle_limit = idle_limit
        self._errors_in_a_row = 0
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._serving = False
        self._sockets: _Sockets | None = None

    @property
    def counters(self) -> ProbeCounters:
        """What the listener has seen, for logs, health and metrics."""
        return self._reception.counters

    def bind(self) -> int:
        """Bind the port, for UDP and TCP.

        Returns:
            The port that was bound: the real one when port 0 was asked for.

        Raises:
            ProbePortError: it cannot be bound; the text names port, address and what to do.
        """
        sockets = _Sockets(self._address, self._port, self._reception, self._idle_limit)
        sockets.watch(sockets.udp, lambda: self._hear_datagrams(sockets))
        sockets.watch(sockets.tcp, lambda: self._accept(sockets))
        with self._lock:
            self._sockets = sockets
        return sockets.port

    def serve(self) -> None:
        """Serve until `stop` is called, which may have happened before. `bind` comes first.

        Should it raise, which would be a defect, the port stays bound and it may be called again.
        """
        with self._lock:
            sockets = self._sockets
            self._serving = sockets is not None
        if sockets is None:
            return
        try:
            while not self._stopping.is_set():
                sockets.turn()
        finally:
            self._end_of_service()

    def stop(self) -> None:
        """Make `serve` return soon and close everything; from any thread, any number of times."""
        with self._lock:
            self._stopping.set()
            if self._serving and self._sockets is not None:
                self._sockets.interrupt()
            else:
                self._close()

    def _end_of_service(self) -> None:
        with self._lock:
            self._serving = False
            if self._stopping.is_set():
                self._close()

    def _close(self) -> None:
        if self._sockets is not None:
            self._sockets.close()
            self._sockets = None

    def _hear_datagrams(self, sockets: _Sockets) -> None:
        """A flood is heard in portions, so that TCP connections and `stop` get their turn."""
        for _ in range(_DATAGRAMS_PER_TURN):
            try:
                datagram = sockets.udp.receive()
            except BlockingIOError:
                return
            except TooLong:
                self._reception.ignore("too_long", "somebody")
            except OSError as error:
                self._go_on_after(error)
                return
            else:
                self._errors_in_a_row = 0
                self._hear(sockets.udp, datagram)

    def _hear(self, udp: DatagramSocket, datagram: Datagram) -> None:
        sender = str(datagram.sender[0])
        if not self._reception.admits(sender):
            return
        identity = self._reception.identity(datagram.data, sender)
        if identity is None:
            return
        try:
            udp.answer(datagram, acknowledgement(identity))
        except OSError as error:
            self._reception.unacknowledged(error)
        else:
            self._reception.acknowledged()
        self._reception.wake(identity)

    def _accept(self, sockets: _Sockets) -> None:
        try:
            connection, address = sockets.tcp.accept()
        except BlockingIOError:
            return
        except OSError as error:  # out of file descriptors, perhaps: the oldest connection gives one back
            sockets.connections.cut_oldest()
            self._go_on_after(error)
            return
        sender = str(address[0])
        if self._reception.admits(sender):
            sockets.connections.accept(connection, sender)
        else:
            connection.close()

    def _go_on_after(self, error: OSError) -> None:
        """An error that stays would keep the socket ready for ever: pause, so that it takes no processor."""
        self._reception.receive_error(error)
        self._errors_in_a_row += 1
        if self._errors_in_a_row >= _ERRORS_BEFORE_A_PAUSE:
            self._stopping.wait(_PAUSE_SECONDS)


class _Sockets:
    """Everything that is open between `bind` and the end."""

    def __init__(self, address: str, port: int, reception: Reception, idle_limit: float) -> None:
        udp, self.tcp = bind_pair(address, port)
        self.udp = DatagramSocket(udp)
        self.port = int(self.tcp.getsockname()[1])
        self._interrupt, self._interrupted = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._interrupted, selectors.EVENT_READ, lambda: None)
        self.connections = Connections(self._selector, reception, idle_limit)

    def watch(self, source: Any, action: Callable[[], None]) -> None:
        self._selector.register(source, selectors.EVENT_READ, action)

    def turn(self) -> None:
        """Wait for whatever comes next and do what it asks for."""
        for key, _ in self._selector.select(self.connections.seconds_to_wait()):
            key.data()
        self.connections.cut_idle()

    def interrupt(self) -> None:
        """Make `turn` return; the byte stays unread, so that further turns return as well."""
        self._interrupt.setblocking(False)
        try:
            self._interrupt.send(b"x")
        except OSError:
            pass  # thousands of unread interrupts: one of them is enough

    def close(self) -> None:
        self.connections.close()
        self._selector.close()
        for closable in (self.udp, self.tcp, self._interrupt, self._interrupted):
            closable.close()
