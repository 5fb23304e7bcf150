"""Carrying the core's effects out on an asyncio loop."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, TypeVar, cast

from ..errors import ProtocolError, SettingsError
from ..transport.answer import Answer
from ..transport.failures import ambiguous, call_name, not_sent
from .blocking import MAX_BODY, RECEIVE_BYTES, USER_AGENT
from .effects import Ask, Done, Emit, Exclusive, More, Open, Operation, Pause, Steps
from .wire import Requests, ResponseReader

if TYPE_CHECKING:
    from ..transport.endpoint import Endpoint

__all__ = ["AsyncFace"]

T = TypeVar("T")


class AsyncFace:
    """Runs steps on the running loop; any number of tasks of one loop may use it at once.

    Args:
        endpoint: where the middleware is.
        connect_timeout: seconds.
    """

    def __init__(self, endpoint: Endpoint, connect_timeout: float) -> None:
        if endpoint.via is not None:
            raise SettingsError("proxy", "the asynchronous client connects directly; use the blocking one")
        self.endpoint = endpoint
        self.connect_timeout = connect_timeout
        self.requests = Requests(endpoint, USER_AGENT)
        self._exclusive = asyncio.Lock()
        self._idle: list[_Connection] = []

    async def run(self, steps: Steps[T]) -> T:
        """What the steps return."""
        performer = _Performer(self, steps)
        try:
            ending = await performer.advance()
            assert isinstance(ending, Done)
            return cast("T", ending.value)
        finally:
            performer.close()

    async def iterate(self, steps: Steps[Any]) -> AsyncIterator[Any]:
        """What the steps emit."""
        performer = _Performer(self, steps)
        try:
            while isinstance(ending := await performer.advance(), Emit):
                yield ending.item
        finally:
            performer.close()

    async def exclusive(self, steps: Steps[T]) -> T:
        """Run steps while nobody else does."""
        async with self._exclusive:
            return await self.run(steps)

    async def take(self, name: str) -> _Connection:
        """An idle connection that still stands, or a new one.

        Raises:
            NotSent: none can be opened.
        """
        while self._idle:
            connection = self._idle.pop()
            if connection.usable():
                return connection
            connection.close()
        endpoint = self.endpoint
        try:
            opening = asyncio.open_connection(
                endpoint.host,
                endpoint.port,
                ssl=endpoint.tls_context() if endpoint.scheme == "https" else None,
            )
            return _Connection(*await asyncio.wait_for(opening, self.connect_timeout))
        except (OSError, asyncio.TimeoutError) as error:
            raise not_sent(name, endpoint, _named(error)) from error

    def give_back(self, connection: _Connection) -> None:
        """It can carry another request."""
        self._idle.append(connection)

    async def close(self) -> None:
        """Close the idle connections."""
        while self._idle:
            connection = self._idle.pop()
            connection.close()
            await connection.closed()


def _named(error: Exception) -> Exception:
    """asyncio hides what the system said about a connection behind words of its own."""
    number = getattr(error, "errno", None)
    return OSError(number, os.strerror(number)) if isinstance(error, ConnectionError) and number else error


class _Performer(Operation):
    def __init__(self, face: AsyncFace, steps: Steps[Any]) -> None:
        super().__init__(steps)
        self._face = face
        self._stream: _Connection | None = None

    async def advance(self) -> Emit | Done:
        while True:
            effect = self.next_effect()
            if isinstance(effect, (Emit, Done)):
                return effect
            try:
                self.reply(await self._perform(effect))
            except Exception as failure:  # noqa: BLE001 - the steps decide what it means
                self.fail(failure)

    def close(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    async def _perform(self, effect: Ask | More | Pause | Exclusive) -> Any:
        if isinstance(effect, Ask):
            return await self._ask(effect)
        if isinstance(effect, More):
            return b"" if self._stream is None else await self._stream.more(effect.seconds)
        if isinstance(effect, Pause):
            return await asyncio.sleep(effect.seconds)
        return await self._face.exclusive(effect.steps)

    async def _ask(self, ask: Ask) -> Answer:
        self.close()
        name = call_name(ask.method, ask.target, self._face.endpoint)
        connection = await self._face.take(name)
        try:
            answer = await connection.ask(self._face.requests.bytes_of(ask), ask, name)
        except BaseException:
            connection.close()
            raise
        if isinstance(ask, Open) and answer.status == 200:
            self._stream = connection
        elif connection.reader.keeps:
            self._face.give_back(connection)
        else:
            connection.close()
        return answer


class _Connection:
    """One kept connection, used by one operation at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = ResponseReader(MAX_BODY)
        self._incoming = reader
        self._outgoing = writer

    def usable(self) -> bool:
        return not self._incoming.at_eof() and not self._outgoing.is_closing()

    def close(self) -> None:
        self._outgoing.close()

    async def closed(self) -> None:
        try:
            await self._outgoing.wait_closed()
        except OSError:
            pass

    async def ask(self, request: bytes, ask: Ask, name: str) -> Answer:
        self.reader = ResponseReader(MAX_BODY)
        streams = isinstance(ask, Open)
        try:
            self._outgoing.write(request)
            await asyncio.wait_for(self._read(streams), ask.read_seconds)
        except (OSError, asyncio.TimeoutError, ProtocolError) as error:
            raise ambiguous(name, error, self.reader.status or None, b"") from error
        return self.reader.answer()

    async def more(self, seconds: float) -> bytes:
        try:
            while not (part := self.reader.taken()) and not self.reader.done:
                await asyncio.wait_for(self._receive(), seconds)
        except (OSError, asyncio.TimeoutError, ProtocolError) as error:
            raise ambiguous("the stream", error, self.reader.status, b"") from error
        return part

    async def _read(self, streams: bool) -> None:
        await self._outgoing.drain()
        while not self.reader.done and not (streams and self.reader.status == 200):
            await self._receive()

    async def _receive(self) -> None:
        self.reader.feed(await self._incoming.read(RECEIVE_BYTES))
