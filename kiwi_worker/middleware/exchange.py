"""One HTTP request and its answer, on the bare ASGI interface."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, TypeVar
from urllib.parse import parse_qsl

import msgspec

from .problems import Problem, bad_request
from .records import encode

__all__ = ["JSON", "Departure", "Disconnected", "Exchange", "Receive", "Scope", "Send"]

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
T = TypeVar("T")

JSON = (b"content-type", b"application/json")
MAX_FIELDS = 32


class Disconnected(Exception):
    """The other side has gone; there is nobody to answer."""


class Departure:
    """Whether the other side has closed its connection before it got its answer.

    Args:
        receive: the ASGI way to learn of it.
        connection: the server's own connection, which knows a little earlier.
    """

    def __init__(self, receive: Receive, connection: Any) -> None:
        self._connection = connection
        self._task = asyncio.ensure_future(self._watch(receive))

    @property
    def happened(self) -> bool:
        """An answer that is written now is read by nobody."""
        connection = self._connection
        return self._task.done() or (connection is not None and connection.transport.is_closing())

    def tell(self, act: Callable[[], None]) -> None:
        """Do that when it happens."""
        self._task.add_done_callback(lambda _: act())

    def cancel(self) -> None:
        """Watch no longer."""
        self._task.cancel()

    async def _watch(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass


class Exchange:
    """A request being answered.

    Attributes:
        values: the variable parts of the path, percent-decoded.
    """

    __slots__ = ("_read_all", "_receive", "_send", "scope", "started", "values")

    def __init__(self, scope: Scope, receive: Receive, send: Send, values: dict[str, str]) -> None:
        self.scope = scope
        self.values = values
        self.started = False
        self._receive = receive
        self._send = send
        self._read_all = False

    def header(self, name: bytes) -> bytes | None:
        """The first header of that (lower-case) name."""
        for key, value in self.scope["headers"]:
            if key == name:
                return bytes(value)
        return None

    def query(self) -> dict[str, str]:
        """The query parameters.

        Raises:
            Problem: 400, one of them is there twice or there are too many.
        """
        text = self.scope["query_string"]
        return parse_fields(text, "query") if text else {}

    async def body(self, max_bytes: int) -> bytes:
        """The whole body.

        Raises:
            Problem: 413, it is longer than this.
            Disconnected: it did not come to its end.
        """
        parts, size = [], 0
        while True:
            event = await self._receive()
            if event["type"] == "http.disconnect":
                raise Disconnected
            part = event.get("body", b"")
            size += len(part)
            if size > max_bytes:
                raise Problem(413, "too_large", f"the body is longer than {max_bytes} bytes")
            parts.append(part)
            if not event.get("more_body", False):
                self._read_all = True
                return parts[0] if len(parts) == 1 else b"".join(parts)

    async def json(self, decoder: msgspec.json.Decoder[T], max_bytes: int) -> T:
        """The body as what the decoder makes of it.

        Raises:
            Problem: 400, it is no JSON or not of that form; the text says where.
        """
        body = await self.body(max_bytes)
        try:
            if not body.isascii():
                body.decode()  # the decoder takes parts of it as they are, and they go on to somebody else
            return decoder.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise bad_request(f"the body is not what this route takes: {error}") from None

    async def form(self, max_bytes: int = 65536) -> dict[str, str]:
        """The body as a form.

        Raises:
            Problem: 400, it is none.
        """
        kind = (self.header(b"content-type") or b"").split(b";")[0].strip().lower()
        body = await self.body(max_bytes)
        if kind != b"application/x-www-form-urlencoded":
            raise bad_request("send a form: content-type application/x-www-form-urlencoded")
        return parse_fields(bytes(body), "form")

    async def departure(self) -> Departure:
        """Watch for the other side to close its connection; cancel the watch when done with it."""
        if not self._read_all:
            await self.body(0)
        return Departure(self._receive, self.scope.get("kiwi_connection"))

    def when_unread(self, act: Callable[[], None]) -> None:
        """Do that if the other side turns out to have gone before it received the answer."""
        connection = self.scope.get("kiwi_connection")
        if connection is not None:
            connection.when_unread = act

    async def reply(
        self, status: int, body: bytes = b"", headers: tuple[tuple[bytes, bytes], ...] = (JSON,)
    ) -> None:
        """Answer, whole."""
        self.started = True
        length = (b"content-length", b"%d" % len(body))
        await self._send({"type": "http.response.start", "status": status, "headers": [*headers, length]})
        await self._send({"type": "http.response.body", "body": body})

    async def reply_json(self, value: Any, status: int = 200) -> None:
        """Answer with a plain value as JSON."""
        await self.reply(status, encode(value))

    async def reply_problem(self, problem: Problem) -> None:
        """Answer with one JSON object that says what is wrong."""
        body = encode({"error": problem.code, "message": problem.message})
        await self.reply(problem.status, body, (JSON, *problem.headers))

    async def start_stream(self, headers: tuple[tuple[bytes, bytes], ...]) -> None:
        """Begin an answer of unknown length."""
        self.started = True
        await self._send({"type": "http.response.start", "status": 200, "headers": list(headers)})

    async def send_part(self, part: bytes, *, more: bool = True) -> None:
        """A part of such an answer."""
        await self._send({"type": "http.response.body", "body": part, "more_body": more})


@functools.lru_cache(256)
def _parse_pairs(text: bytes) -> tuple[tuple[str, str], ...]:
    return tuple(
        parse_qsl(text.decode("ascii"), keep_blank_values=True, max_num_fields=MAX_FIELDS, errors="strict")
    )


def parse_fields(text: bytes, what: str) -> dict[str, str]:
    """Form-encoded fields, each at most once.

    Raises:
        Problem: 400.
    """
    try:
        pairs = _parse_pairs(text) if len(text) < 64 else _parse_pairs.__wrapped__(text)
    except ValueError:
        raise bad_request(f"the {what} is not form-encoded, or has more than {MAX_FIELDS} fields") from None
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise bad_request(f"a field stands twice in the {what}")
    return fields
