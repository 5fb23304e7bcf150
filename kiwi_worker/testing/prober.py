"""The middleware's side of the lazy-mode wake-up probe: packets out, ACKs in."""

from __future__ import annotations

import json
import socket
import threading
import time
import uuid
from typing import Literal

__all__ = ["Prober", "wake_packet"]

_LOOK_SECONDS = 0.1
_LARGEST_DATAGRAM = 65536


def wake_packet(packet_id: str, request_id: str | None = None) -> bytes:
    """One wake-up packet, as the protocol page shows it (section "Lazy-mode wake-up probe")."""
    message = {"MessageText": "pull_signal", "Parameters": request_id}
    return json.dumps({"PacketId": packet_id, "Message": message}).encode("ascii")


class Prober:
    """Sends wake-up packets from one socket a family, and collects what comes back.

    Args:
        changed: the server's condition, notified when an ACK comes.
    """

    def __init__(self, changed: threading.Condition) -> None:
        self._changed = changed
        self._closing = threading.Event()
        self._sockets: dict[int, tuple[socket.socket, threading.Thread]] = {}
        self._answers: list[str] = []

    @property
    def answers(self) -> list[str]:
        """Every datagram that came back, in order, as text."""
        with self._changed:
            return list(self._answers)

    def start(self) -> None:
        """Be ready to send; sockets are made when the first packet needs them."""
        self._closing.clear()

    def stop(self) -> None:
        """Close the sockets and end their threads."""
        self._closing.set()
        with self._changed:
            held, self._sockets = list(self._sockets.values()), {}
        for sock, thread in held:
            _wake(sock)
            thread.join()
            sock.close()

    def send(self, ip: str, port: int, packet: bytes) -> None:
        """Send one datagram and wait for nothing.

        Raises:
            OSError: the address is none, or cannot be reached.
        """
        family, _, _, _, address = socket.getaddrinfo(ip, port, type=socket.SOCK_DGRAM)[0]
        self._socket(family).sendto(packet, address)

    def probe(
        self,
        ip: str,
        port: int,
        *,
        request_id: str | None = None,
        transport: Literal["udp", "tcp"] = "udp",
        timeout: float = 5.0,
    ) -> str:
        """Send one wake-up packet and return what came back for it.

        Raises:
            TimeoutError: nothing came.
            OSError: the address cannot be reached.
        """
        packet_id = str(uuid.uuid4())
        if transport == "tcp":
            return _probe_tcp(ip, port, wake_packet(packet_id, request_id), timeout)
        self.send(ip, port, wake_packet(packet_id, request_id))
        return self._wait_for(f"ACK:{packet_id}", timeout, f"{ip}:{port}")

    def _wait_for(self, ack: str, timeout: float, where: str) -> str:
        deadline = time.monotonic() + timeout
        with self._changed:
            while ack not in self._answers:
                if time.monotonic() >= deadline:
                    raise TimeoutError(f"no {ack} from {where} within {timeout:g} s")
                self._changed.wait(_LOOK_SECONDS)
        return ack

    def _socket(self, family: int) -> socket.socket:
        with self._changed:
            if family not in self._sockets:
                sock = socket.socket(family, socket.SOCK_DGRAM)
                sock.settimeout(_LOOK_SECONDS)
                sock.bind(("::" if family == socket.AF_INET6 else "0.0.0.0", 0))
                thread = threading.Thread(
                    target=self._collect, args=(sock,), name="misbehaving-server-prober", daemon=True
                )
                self._sockets[family] = (sock, thread)
                thread.start()
            return self._sockets[family][0]

    def _collect(self, sock: socket.socket) -> None:
        while not self._closing.is_set():
            try:
                answer = sock.recv(_LARGEST_DATAGRAM)
            except OSError:
                # Also "connection refused", which a worker that is gone causes on some systems.
                continue
            if self._closing.is_set():
                return
            with self._changed:
                self._answers.append(answer.decode("latin-1"))
                self._changed.notify_all()


def _wake(sock: socket.socket) -> None:
    """End a wait for what comes in, sooner than by its time limit."""
    loopback = "::1" if sock.family == socket.AF_INET6 else "127.0.0.1"
    try:
        sock.sendto(b"", (loopback, sock.getsockname()[1]))
    except OSError:
        pass  # then the time limit ends it


def _probe_tcp(ip: str, port: int, packet: bytes, timeout: float) -> str:
    wanted = len(b"ACK:") + len(json.loads(packet)["PacketId"])
    answer = b""
    with socket.create_connection((ip, port), timeout) as sock:
        sock.sendall(packet)
        while len(answer) < wanted and (part := sock.recv(wanted - len(answer))):
            answer += part
    return answer.decode("latin-1")
