"""A probe listener at work, and what asks it."""

from __future__ import annotations

import contextlib
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kiwi_worker.kiwi.probe import ProbeListener, pull_signal

LIMIT_SECONDS = 20.0


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as sock:
            sock.bind(("::1", 0))
    except OSError:
        return False
    return True


needs_ipv6 = pytest.mark.skipif(not has_ipv6(), reason="no IPv6 here")


def eventually(condition: Callable[[], object]) -> None:
    end = time.monotonic() + LIMIT_SECONDS
    while not condition():
        assert time.monotonic() < end, "it did not come about"
        time.sleep(0.002)


class Probed:
    """A listener at work, and the wake-ups it caused."""

    def __init__(
        self, bind: str = "127.0.0.1", on_wake: Callable[[], None] | None = None, **options: Any
    ) -> None:
        self.wakes = 0
        self._on_wake = on_wake
        self.listener = ProbeListener(bind, 0, self._woken, **options)
        self.port = self.listener.bind()
        self.thread = threading.Thread(target=self.listener.serve, name="probe", daemon=True)
        self.thread.start()

    def _woken(self) -> None:
        self.wakes += 1
        if self._on_wake is not None:
            self._on_wake()

    @property
    def counters(self) -> Any:
        return self.listener.counters

    def stop(self) -> None:
        self.listener.stop()
        self.thread.join(LIMIT_SECONDS)
        assert not self.thread.is_alive()

    @contextlib.contextmanager
    def udp(self, address: str = "127.0.0.1") -> Iterator[socket.socket]:
        """A socket that hears only the address it probes, as a middleware's may be."""
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        with socket.socket(family, socket.SOCK_DGRAM) as sock:
            sock.settimeout(LIMIT_SECONDS)
            sock.connect((address, self.port))
            yield sock

    @contextlib.contextmanager
    def tcp(self, address: str = "127.0.0.1") -> Iterator[socket.socket]:
        with socket.create_connection((address, self.port), LIMIT_SECONDS) as sock:
            yield sock

    def ask(self, identity: str, address: str = "127.0.0.1") -> bytes:
        with self.udp(address) as sock:
            sock.send(pull_signal(identity))
            return sock.recv(65_536)

    def still_works(self) -> None:
        """A packet is repeated until it is acknowledged: behind a flood, the system may drop it."""
        identity = f"still-{random.random()}"
        with self.udp() as sock:
            sock.settimeout(0.5)
            eventually(lambda: self._is_answered(sock, identity))

    def _is_answered(self, sock: socket.socket, identity: str) -> bool:
        sock.send(pull_signal(identity))
        try:
            return sock.recv(65_536) == b"ACK:" + identity.encode()
        except TimeoutError:
            return False


@contextlib.contextmanager
def probed(*arguments: Any, **options: Any) -> Iterator[Probed]:
    probe = Probed(*arguments, **options)
    try:
        yield probe
    finally:
        probe.stop()


def received(sock: socket.socket) -> bytes:
    """Everything until the other side closes."""
    answer = b""
    while part := sock.recv(65_536):
        answer += part
    return answer


def exactly(sock: socket.socket, length: int) -> bytes:
    answer = b""
    while len(answer) < length and (part := sock.recv(length - len(answer))):
        answer += part
    return answer
