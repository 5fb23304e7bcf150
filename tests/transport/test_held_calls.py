"""System calls with the interpreter lock held: the same as Python's own, and nobody waits long for them."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from raw_server import wait_until

from kiwi_worker import held
from kiwi_worker.held import Writer, readable, sender


@pytest.fixture(params=["held", "usual"])
def _way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the C library's calls, and as on a system that does not have them."""
    if request.param == "usual":
        monkeypatch.setattr(held, "_calls", lambda: None)
    else:
        assert held._calls() is not None


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    listener = socket.create_server(("127.0.0.1", 0))
    with listener, socket.create_connection(listener.getsockname()) as one:
        other, _ = listener.accept()
        with other:
            yield one, other


Pair = tuple[socket.socket, socket.socket]


@pytest.mark.usefixtures("_way")
def test_what_is_sent_arrives(pair: Pair) -> None:
    one, other = pair
    assert sender(one)(b"a\0b") == 3
    assert other.recv(10) == b"a\0b"


@pytest.mark.usefixtures("_way")
def test_what_cannot_be_sent_at_once_waits_without_the_lock(pair: Pair) -> None:
    one, other = pair
    send, received = sender(one), 0

    def receive() -> None:
        nonlocal received
        while data := other.recv(1 << 20):
            received += len(data)

    # With the lock held, the reader could not make the room that the sender waits for.
    reader = threading.Timer(0.05, receive)
    reader.start()
    sent = sum(send(b"x" * 65536) for _ in range(500))
    one.shutdown(socket.SHUT_WR)
    reader.join(20)
    assert received == sent > 65536


@pytest.mark.usefixtures("_way")
def test_a_send_that_fails_raises_what_it_always_raised(pair: Pair) -> None:
    one, _ = pair
    send = sender(one)
    one.shutdown(socket.SHUT_WR)
    with pytest.raises(BrokenPipeError):
        send(b"x")
    one.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        send(b"x")


def _bytes(other: socket.socket) -> None:
    other.send(b"x")


def _end(other: socket.socket) -> None:
    other.close()


def _reset(other: socket.socket) -> None:
    other.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    other.close()


@pytest.mark.usefixtures("_way")
@pytest.mark.parametrize("what", [_bytes, _end, _reset])
def test_bytes_the_end_and_a_reset_are_seen(pair: Pair, what: Callable[[socket.socket], None]) -> None:
    one, other = pair
    is_readable = readable(one)
    assert not is_readable()
    what(other)
    wait_until(lambda: bool(is_readable()))
    assert is_readable(), "a look takes nothing away"


@pytest.mark.usefixtures("_way")
@pytest.mark.parametrize("size", [0, 3, 100_000])
def test_what_is_written_is_in_the_file(tmp_path: Path, size: int) -> None:
    path = tmp_path / "file"
    fd = os.open(path, os.O_WRONLY | os.O_CREAT)
    assert Writer().write(fd, b"\0" * size) == size
    os.close(fd)
    assert path.read_bytes() == b"\0" * size


@pytest.mark.usefixtures("_way")
def test_a_write_that_fails_raises_what_it_always_raised() -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    with pytest.raises(OSError, match="No space left"):
        Writer().write(full, b"x")
    os.close(full)
    with pytest.raises(OSError, match="Bad file descriptor"):
        Writer().write(full, b"x")


def test_only_the_first_write_that_stalls_holds_up_every_thread() -> None:
    # A pipe that is full stalls whoever writes to it, as a disk that is too busy does.
    writer, (read_end, write_end) = Writer(), os.pipe()
    piece = b"x" * 4096

    def fill() -> None:
        os.set_blocking(write_end, False)
        try:
            while True:
                os.write(write_end, piece)
        except BlockingIOError:
            os.set_blocking(write_end, True)

    fill()
    # Another process has to make room for the first one: no thread of this one can.
    late = f"import os, time; time.sleep(0.3); os.read({read_end}, 8192)"
    with subprocess.Popen([sys.executable, "-c", late], pass_fds=[read_end]) as other:
        assert writer.write(write_end, piece) == len(piece)
    assert other.returncode == 0
    fill()
    reader = threading.Timer(0.05, os.read, [read_end, 8192])
    reader.start()
    assert writer.write(write_end, piece) == len(piece)
    reader.join()
    os.close(read_end)
    os.close(write_end)
