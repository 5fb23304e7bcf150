"""What a worker and its handler processes say to each other, and how: frames with a length before them.

Params and results travel as the bytes they are; nothing is pickled.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable
from typing import Any

import msgspec

from kiwi_worker.engine.outcomes import Ending, Outcome
from kiwi_worker.engine.processes.origin import Origin

__all__ = [
    "Begun",
    "Call",
    "Ended",
    "Failed",
    "Feedback",
    "FromChild",
    "FromWorker",
    "Hello",
    "Link",
    "Logged",
    "Ready",
    "Stopping",
    "Told",
    "readable",
]

_CHUNK = 65_536
_LENGTH = struct.Struct("<Q")


class Hello(msgspec.Struct, array_like=True, tag="hello"):
    """The first word to a process.

    Attributes:
        arguments: the `sys.argv` of the program.
        origin: where it finds the worker.
        log_level: the least severe level that anybody listens to.
    """

    arguments: list[str]
    origin: Origin
    log_level: int


class Call(msgspec.Struct, array_like=True, tag="call"):
    """One call.

    Attributes:
        number: what this process knows it by.
        definition: the registry's key of the handler.
        key, name, run: of the work.
        params: the JSON text of its params; None without any.
        seconds_left: until its time limit; None without one.
        facts: what its context is made of; None when the handler wants none.
        is_stopping: whether the worker shuts down.
        longest_result: the most bytes its result may have; None for no limit.
    """

    number: int
    definition: str | tuple[str, ...]
    key: str
    name: str
    run: int
    params: bytes | None
    seconds_left: float | None
    facts: dict[str, Any] | None
    is_stopping: bool
    longest_result: int | None


class Told(msgspec.Struct, array_like=True, tag="told"):
    """A call is to stop."""

    number: int
    cause: str


class Stopping(msgspec.Struct, array_like=True, tag="stopping"):
    """The worker shuts down."""


class Ready(msgspec.Struct, array_like=True, tag="ready"):
    """The process has loaded everything."""


class Failed(msgspec.Struct, array_like=True, tag="failed"):
    """The process could not load everything, and ends."""

    text: str
    traceback: str


class Begun(msgspec.Struct, array_like=True, tag="begun"):
    """The process takes the call; before that it had no effect, and another process may take it."""

    number: int


class Feedback(msgspec.Struct, array_like=True, tag="feedback"):
    """Feedback that a handler gave; what is no string is JSON text already."""

    number: int
    content: str
    kind: int | None
    persist: bool


class Logged(msgspec.Struct, array_like=True, tag="logged"):
    """A log record; `more` is the JSON text of what is not in every record."""

    name: str
    fields: dict[str, Any]
    more: bytes


class Ended(msgspec.Struct, array_like=True, tag="ended"):
    """The outcome of a call; `answer` is JSON text, `memory_mib` is what the process occupies."""

    number: int
    ending: str
    result: bytes | None
    text: str
    error_type: str
    answer: bytes | None
    memory_mib: float

    @classmethod
    def of(cls, number: int, outcome: Outcome, memory_mib: float) -> Ended:
        """The frame of an outcome."""
        answer = None if outcome.answer is None else msgspec.json.encode(dict(outcome.answer), enc_hook=str)
        text, kind = readable(outcome.text), outcome.error_type
        return cls(number, outcome.ending.value, outcome.result, text, kind, answer, memory_mib)

    @property
    def outcome(self) -> Outcome:
        """The outcome in it."""
        answer = None if self.answer is None else msgspec.json.decode(self.answer)
        return Outcome(Ending(self.ending), self.result, self.text, self.error_type, answer)


FromWorker = Hello | Call | Told | Stopping
FromChild = Ready | Failed | Begun | Feedback | Logged | Ended

_encode = msgspec.msgpack.Encoder(enc_hook=str).encode
decoder_of: dict[Any, Callable[[bytes], Any]] = {
    FromWorker: msgspec.msgpack.Decoder(FromWorker).decode,
    FromChild: msgspec.msgpack.Decoder(FromChild).decode,
}


def readable(text: str) -> str:
    """The text without what has no UTF-8."""
    return text.encode("utf-8", "replace").decode()


class Link:
    """One end of a socket between the two; any thread sends, one receives.

    Args:
        sock: the socket.
        receives: the union of what comes.
    """

    def __init__(self, sock: socket.socket, receives: Any) -> None:
        self._sock = sock
        self._decode = decoder_of[receives]
        self._sending = threading.Lock()
        self._buffer = bytearray()
        self._limit: float | None = None

    def send(self, message: msgspec.Struct) -> None:
        """Send one; waits while the other end does not read.

        Raises:
            OSError: the other end is gone.
        """
        body = _encode(message)
        with self._sending:
            self._sock.sendall(_LENGTH.pack(len(body)) + body)

    def receive(self, limit_seconds: float | None = None) -> Any:
        """The next message; None when the other end is gone, or says nothing that makes sense.

        Raises:
            TimeoutError: the time is over.
        """
        if limit_seconds != self._limit:
            self._limit = limit_seconds
            self._sock.settimeout(limit_seconds)
        while (message := self._take()) is None:
            try:
                chunk = self._sock.recv(_CHUNK)
            except ConnectionError:
                return None
            if not chunk:
                return None
            self._buffer += chunk
        try:
            return self._decode(message)
        except msgspec.MsgspecError:
            return None  # something else was written to it

    def _take(self) -> bytes | None:
        if len(self._buffer) < _LENGTH.size:
            return None
        end = _LENGTH.size + _LENGTH.unpack_from(self._buffer)[0]
        if len(self._buffer) < end:
            return None
        message = bytes(self._buffer[_LENGTH.size : end])
        del self._buffer[:end]
        return message

    def say_no_more(self) -> None:
        """Let the other end read the end."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Close this end."""
        self._sock.close()
