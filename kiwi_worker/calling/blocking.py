"""Carrying the core's effects out over blocking sockets."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar, cast

from .._version import __version__
from ..errors import ProtocolError
from ..transport.answer import Answer
from ..transport.channel import Channel
from ..transport.connection import Connection
from ..transport.failures import Unconnected, ambiguous, call_name, not_sent
from .effects import Ask, Done, Emit, Exclusive, More, Open, Operation, Pause, Steps
from .wire import Requests, ResponseReader

if TYPE_CHECKING:
    from ..transport.endpoint import Endpoint

__all__ = ["BlockingFace"]

MAX_BODY = 256 * 2**20
RECEIVE_BYTES = 65_536
USER_AGENT = f"kiwi-worker-client/{__version__}"

T = TypeVar("T")


class BlockingFace:
    """Runs steps on the caller's thread; any number of threads may use it at once.

    Args:
        endpoint: where the middleware is.
        connect_timeout: seconds.
    """

    def __init__(self, endpoint: Endpoint, connect_timeout: float) -> None:
        self._endpoint = endpoint
        self._connect_timeout = connect_timeout
        self._exclusive = threading.Lock()
        self._idle: list[Channel] = []
        self.requests = Requests(endpoint, USER_AGENT)

    def run(self, steps: Steps[T]) -> T:
        """What the steps return."""
        performer = _Performer(self, steps)
        try:
            ending = performer.advance()
            assert isinstance(ending, Done)
            return cast("T", ending.value)
        finally:
            performer.close()

    def iterate(self, steps: Steps[Any]) -> Iterator[Any]:
        """What the steps emit."""
        performer = _Performer(self, steps)
        try:
            while isinstance(ending := performer.advance(), Emit):
                yield ending.item
        finally:
            performer.close()

    def exclusive(self, steps: Steps[T]) -> T:
        """Run steps while nobody else does."""
        with self._exclusive:
            return self.run(steps)

    @contextmanager
    def channel(self) -> Iterator[Channel]:
        """A channel that nobody else uses meanwhile; it is kept for the next call."""
        try:
            channel = self._idle.pop()
        except IndexError:
            channel = Channel(
                self._endpoint,
                user_agent=USER_AGENT,
                connect_timeout=self._connect_timeout,
                max_body=MAX_BODY,
            )
        try:
            yield channel
        finally:
            self._idle.append(channel)

    def stream(self) -> _Stream:
        """A connection for one request, of which the answer may be read as it comes."""
        return _Stream(self._endpoint, self._connect_timeout)

    def close(self) -> None:
        """Close the idle connections."""
        while self._idle:
            self._idle.pop().close()


class _Performer(Operation):
    def __init__(self, face: BlockingFace, steps: Steps[Any]) -> None:
        super().__init__(steps)
        self._face = face
        self._stream: _Stream | None = None

    def advance(self) -> Emit | Done:
        while True:
            effect = self.next_effect()
            if isinstance(effect, (Emit, Done)):
                return effect
            try:
                self.reply(self._perform(effect))
            except Exception as failure:  # noqa: BLE001 - the steps decide what it means
                self.fail(failure)

    def close(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def _perform(self, effect: Ask | More | Pause | Exclusive) -> Any:
        if isinstance(effect, Open):
            return self._open(effect)
        if isinstance(effect, Ask):
            return self._ask(effect)
        if isinstance(effect, More):
            return b"" if self._stream is None else self._stream.more(effect.seconds)
        if isinstance(effect, Pause):
            time.sleep(effect.seconds)
            return None
        return self._face.exclusive(effect.steps)

    def _ask(self, ask: Ask) -> Answer:
        if ask.form:
            return self._open(ask)
        with self._face.channel() as channel:
            return channel.call(
                ask.method,
                ask.target,
                ask.body,
                authorization=ask.authorization,
                read_timeout=ask.read_seconds,
            )

    def _open(self, ask: Ask) -> Answer:
        self.close()
        stream = self._face.stream()
        try:
            answer = stream.open(ask, self._face.requests.bytes_of(ask))
        except BaseException:
            stream.close()
            raise
        if isinstance(ask, Open) and answer.status == 200:
            self._stream = stream
        else:
            stream.close()
        return answer


class _Stream:
    """One request whose answer is read piece by piece, on a connection of its own."""

    def __init__(self, endpoint: Endpoint, connect_timeout: float) -> None:
        self._endpoint = endpoint
        self._connection = Connection(endpoint, connect_timeout)
        self._reader = ResponseReader(MAX_BODY)

    def open(self, ask: Ask, request: bytes) -> Answer:
        """Send it; the whole answer, or its head when a stream begins."""
        name = call_name(ask.method, ask.target, self._endpoint)
        try:
            sock = self._connection.open()
        except (OSError, Unconnected) as error:
            raise not_sent(name, self._endpoint, error) from error
        streams = isinstance(ask, Open)
        try:
            self._connection.set_limit(ask.read_seconds)
            sock.sendall(request)
            while not self._reader.done and not (streams and self._reader.status == 200):
                self._receive()
        except (OSError, ProtocolError) as error:
            raise ambiguous(name, error, self._reader.status or None, b"") from error
        return self._reader.answer()

    def more(self, seconds: float) -> bytes:
        try:
            self._connection.set_limit(seconds)
            while not (part := self._reader.taken()) and not self._reader.done:
                self._receive()
        except (OSError, ProtocolError) as error:
            raise ambiguous("the stream", error, self._reader.status, b"") from error
        return part

    def close(self) -> None:
        self._connection.discard()

    def _receive(self) -> None:
        assert self._connection.sock is not None
        self._reader.feed(self._connection.sock.recv(RECEIVE_BYTES))
