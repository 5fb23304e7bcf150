"""Two network namespaces and the cable between them, which can be pulled, and is as long as one likes.

The kernel's own delay, `netem`, is missing from many kernels. So each end is a TAP device, and what goes from
one to the other goes through here, frame by frame: everything above, ARP, UDP and TCP, is the kernel's.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import selectors
import struct
import subprocess
import threading
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path

__all__ = ["FAR", "NEAR", "Network"]

NEAR, FAR = "10.203.7.1", "10.203.7.2"
LONGEST_FRAME = 65_536

_TUNSETIFF = 0x400454CA
_IFF_TAP, _IFF_NO_PI = 0x0002, 0x1000
_CLONE_NEWNET = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)


class Network:
    """The namespaces `near` and `far` with an address each, `NEAR` and `FAR`.

    Raises:
        OSError: the kernel does not let us, or there is no `ip`.
    """

    def __init__(self) -> None:
        self._names = {end: f"kiwi-{os.getpid()}-{end}" for end in ("near", "far")}
        self.cable = Cable()
        try:
            self._make()
        except BaseException:
            self.close()
            raise

    def _make(self) -> None:
        for (end, name), address in zip(self._names.items(), (NEAR, FAR), strict=True):
            ip("netns", "add", name)
            device = f"kt{os.getpid()}{end[0]}"
            self.cable.plug_in(device)
            ip("link", "set", device, "netns", name, "name", "cable")
            ip("-n", name, "address", "add", f"{address}/24", "dev", "cable")
            ip("-n", name, "link", "set", "lo", "up")
            self.set(end, "up")
        self.cable.start()

    def set(self, end: str, state: str) -> None:
        """Take the device of one end `down`, as an administrator does, or `up`."""
        ip("-n", self._names[end], "link", "set", "cable", state)

    def command(self, end: str, *command: str) -> tuple[str, ...]:
        """The command that runs this one in a namespace, in a process that is the same from then on."""
        return ("ip", "netns", "exec", self._names[end], *command)

    @contextlib.contextmanager
    def inside(self, end: str) -> Iterator[None]:
        """Let this thread, and the threads and processes it starts, be in a namespace."""
        with open("/proc/thread-self/ns/net") as ours, open(f"/run/netns/{self._names[end]}") as theirs:
            _enter(theirs.fileno())
            try:
                yield
            finally:
                _enter(ours.fileno())

    def close(self) -> None:
        """Remove everything."""
        self.cable.close()
        for name in self._names.values():
            if Path("/run/netns", name).exists():
                ip("netns", "delete", name)


class Cable:
    """Passes frames from each of two TAP devices to the other.

    Attributes:
        is_pulled: nothing passes, and nobody is told.
        delay_seconds: how late each frame arrives.
    """

    def __init__(self) -> None:
        self.is_pulled = False
        self.delay_seconds = 0.0
        self._ends: list[int] = []
        self._thread = threading.Thread(target=self._pass, name="cable")
        self._stopped, self._stop = os.pipe()
        self._under_way: deque[tuple[float, int, bytes]] = deque()

    def plug_in(self, device: str) -> None:
        """Make a TAP device that is one end."""
        end = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        self._ends.append(end)
        fcntl.ioctl(end, _TUNSETIFF, struct.pack("16sH22x", device.encode(), _IFF_TAP | _IFF_NO_PI))

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        os.close(self._stop)
        if self._thread.is_alive():
            self._thread.join()
        for descriptor in (self._stopped, *self._ends):
            os.close(descriptor)

    def _pass(self) -> None:
        first, second = self._ends
        with selectors.DefaultSelector() as selector:
            selector.register(self._stopped, selectors.EVENT_READ)
            selector.register(first, selectors.EVENT_READ, second)
            selector.register(second, selectors.EVENT_READ, first)
            while True:
                for key, _ in selector.select(self._seconds_to_next()):
                    if key.fd == self._stopped:
                        return
                    self._take(key.fd, key.data)
                self._deliver()

    def _take(self, source: int, target: int) -> None:
        with contextlib.suppress(OSError):
            frame = os.read(source, LONGEST_FRAME)
            self._under_way.append((time.monotonic() + self.delay_seconds, target, frame))

    def _seconds_to_next(self) -> float | None:
        return max(0.0, self._under_way[0][0] - time.monotonic()) if self._under_way else None

    def _deliver(self) -> None:
        """In their order: a frame never overtakes another one when the delay changes."""
        while self._seconds_to_next() == 0.0:
            _, target, frame = self._under_way.popleft()
            if not self.is_pulled:
                with contextlib.suppress(OSError):  # that end is down
                    os.write(target, frame)


def ip(*arguments: str) -> None:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True)
    if done.returncode:
        raise OSError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")


def _enter(namespace: int) -> None:
    if _libc.setns(namespace, _CLONE_NEWNET):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
