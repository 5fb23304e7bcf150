"""The program of the watchdog process. It is run as a file, imports nothing of this package and little else.

Its descriptor 0 is a pipe whose other end only the worker holds: a byte in it says that a stop has begun, its
end that the worker is gone. Descriptor 1 is the socket to which the worker's interpreter writes the numbers
of its signals, at C level; here they are looked at and never taken away. So a stop is seen even when the
worker runs no Python code any more.
"""

from __future__ import annotations

import _socket
import os
import select
import sys
from time import monotonic, sleep

LIFELINE = 0
SIGNALS = 1
SIGKILL = 9
PAUSE_SECONDS = 0.1


def main(worker: int, limit_seconds: float, stop_numbers: frozenset[int]) -> None:
    """Wait for a stop; kill the worker when it is not gone within the limit from there."""
    os.setsid()
    stops = wait_for_stop(_socket.socket(fileno=SIGNALS), stop_numbers)
    # The number of a parent cannot have been given to another process while it is the parent.
    if stops and outlives(limit_seconds) and os.getppid() == worker:
        os.write(2, b"kiwi-worker: process %d was killed: its time to stop was over\n" % worker)
        os.kill(worker, SIGKILL)


def wait_for_stop(signals: _socket.socket, stop_numbers: frozenset[int]) -> bool:
    """Whether a stop began; False when the worker was gone first."""
    poll = select.poll()
    poll.register(LIFELINE, select.POLLIN)
    poll.register(SIGNALS, select.POLLIN)
    while True:
        for descriptor, _ in poll.poll():
            if descriptor == LIFELINE:
                return os.read(LIFELINE, 1) != b""
            numbers = waiting(signals)
            if numbers == b"":
                poll.unregister(SIGNALS)
            elif not stop_numbers.isdisjoint(numbers):
                return True
        # The worker takes its bytes away within a moment, unless it hangs.
        sleep(PAUSE_SECONDS)


def waiting(signals: _socket.socket) -> bytes:
    """The bytes nobody took yet; empty when the other end is closed."""
    try:
        return signals.recv(4096, _socket.MSG_PEEK | _socket.MSG_DONTWAIT)
    except BlockingIOError:
        return b"\0"


def outlives(seconds: float) -> bool:
    """Whether the worker is still there when the time is over."""
    end = monotonic() + seconds
    poll = select.poll()
    poll.register(LIFELINE, select.POLLIN)
    while (left := end - monotonic()) > 0:
        if poll.poll(left * 1000) and not os.read(LIFELINE, 64):
            return False
    return True


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]), frozenset(map(int, sys.argv[3].split(","))))
