"""The HTTP/JSON binding (sections "HTTP conventions" and "Endpoints")."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec

from kiwi_worker.errors import ProtocolError, TransportError
from kiwi_worker.orbit.servers import Servers
from kiwi_worker.orbit.wire import (
    LONGEST_WAIT_MS,
    READ_MARGIN_SECONDS,
    Ack,
    Assignment,
    BrokenOff,
    Refused,
    Registered,
)
from kiwi_worker.transport import Answer, Channel, Endpoint, retry_after_seconds

__all__ = ["HttpWire"]

CONNECT_SECONDS = 5.0
VERSION_HEADER = "x-orbit-api-version"

Read = TypeVar("Read")


class _Beat(msgspec.Struct):
    accepted: bool = True
    cancel: list[str] | None = None


class _Ack(msgspec.Struct):
    accepted: bool | None = None
    reason: str | None = None


class _Problem(msgspec.Struct):
    code: str
    message: str = ""


class _ErrorBody(msgspec.Struct):
    error: _Problem


_encode = msgspec.json.Encoder().encode
# Not strict, since the proto3 JSON mapping allows 64-bit integers to be strings.
_read_registered = msgspec.json.Decoder(Registered, strict=False).decode
_read_assignment = msgspec.json.Decoder(Assignment, strict=False).decode
_read_ack = msgspec.json.Decoder(_Ack).decode
_read_beat = msgspec.json.Decoder(_Beat).decode
_read_error = msgspec.json.Decoder(_ErrorBody).decode


class HttpWire:
    """The calls over kept connections, one to each server that was used.

    Args:
        endpoints: the servers, in the order they are tried.
        servers: which one is used now; shared by all wires of a worker.
        user_agent: the `User-Agent` of every request.
        connect_seconds: how long opening a connection may take, for each address of a server.
    """

    def __init__(
        self,
        endpoints: Sequence[Endpoint],
        servers: Servers,
        *,
        user_agent: str,
        connect_seconds: float = CONNECT_SECONDS,
    ) -> None:
        self._endpoints = endpoints
        self._servers = servers
        self._user_agent = user_agent
        self._connect_seconds = connect_seconds
        self._lock = threading.Lock()
        self._channels: dict[int, Channel] = {}
        self._broken_off = False

    def register(self, request: dict[str, Any], limit_seconds: float) -> Registered:
        """POST /v1/workers/register."""
        answer = self._call("/v1/workers/register", _encode(request), limit_seconds)
        registered = self._read("register", _read_registered, answer)
        if not registered.worker_session_id:
            raise ProtocolError("the registration brought no session id")
        return registered

    def poll(self, session_id: str, wait_ms: int) -> Assignment | None:
        """POST /v1/workers/poll; 204 is no task."""
        wait_ms = min(wait_ms, LONGEST_WAIT_MS)
        body = _encode({"worker_session_id": session_id, "wait_ms": wait_ms})
        answer = self._call("/v1/workers/poll", body, wait_ms / 1000 + READ_MARGIN_SECONDS)
        if answer.status == 204:
            return None
        return self._read("poll", _read_assignment, answer)

    def heartbeat(self, session_id: str, limit_seconds: float) -> Sequence[str]:
        """POST /v1/workers/heartbeat."""
        # A host name has two addresses at most in practice, and each may take its time to connect.
        left = max(limit_seconds / 2, limit_seconds - 2 * self._connect_seconds)
        answer = self._call("/v1/workers/heartbeat", _encode({"worker_session_id": session_id}), left)
        return self._read("heartbeat", _read_beat, answer).cancel or ()

    def result(self, route: str, body: bytes, limit_seconds: float) -> Ack:
        """POST /v1/tasks/complete or /v1/tasks/fail."""
        answer = self._call(f"/v1/tasks/{route}", body, limit_seconds)
        ack = self._read(route, _read_ack, answer)
        if ack.accepted is None and answer.header(VERSION_HEADER) is None:
            raise _not_the_protocols(route, answer)
        return Ack(ack.accepted is True, ack.reason or "")

    def unregister(self, session_id: str, limit_seconds: float) -> None:
        """POST /v1/workers/unregister."""
        self._call("/v1/workers/unregister", _encode({"worker_session_id": session_id}), limit_seconds)

    def close(self) -> None:
        """Close the connections."""
        for channel in self._all():
            channel.close()

    def interrupt(self) -> None:
        """End the running call, or the next."""
        self._broken_off = True
        for channel in self._all():
            channel.interrupt()

    def _all(self) -> list[Channel]:
        with self._lock:
            return list(self._channels.values())

    def _channel(self, index: int) -> Channel:
        channel = self._channels.get(index)
        if channel is None:
            channel = Channel(
                self._endpoints[index], user_agent=self._user_agent, connect_timeout=self._connect_seconds
            )
            with self._lock:
                self._channels[index] = channel
        return channel

    def _call(self, path: str, body: bytes, read_timeout: float) -> Answer:
        return self._servers.call(lambda index: self._ask(index, path, body, read_timeout), read_timeout)

    def _ask(self, index: int, path: str, body: bytes, read_timeout: float) -> Answer:
        channel = self._channel(index)
        # After the channel is there: `interrupt` sets the flag first, then goes through the channels.
        if self._broken_off:
            raise self._break_off()
        try:
            answer = channel.call(
                "POST",
                path,
                body,
                authorization=self._servers.credentials.header(),
                read_timeout=read_timeout,
            )
        except TransportError:
            if self._broken_off:
                raise self._break_off() from None
            raise
        if 200 <= answer.status < 300:
            return answer
        raise _refusal(path, answer)

    def _break_off(self) -> BrokenOff:
        self._broken_off = False
        return BrokenOff("the call was broken off")

    @staticmethod
    def _read(call: str, decode: Callable[[bytes], Read], answer: Answer) -> Read:
        try:
            return decode(answer.body)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            if answer.header(VERSION_HEADER) is None:
                raise _not_the_protocols(call, answer) from None
            raise ProtocolError(f"the answer to {call} is not what the protocol page says: {error}") from None


def _not_the_protocols(call: str, answer: Answer) -> Refused:
    return Refused(call, answer.status, "", "the answer is not the protocol's", ours=False)


def _refusal(path: str, answer: Answer) -> Refused:
    code, message = "", answer.body[:200].decode("utf-8", "replace").strip()
    try:
        problem = _read_error(answer.body).error
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        pass  # plain text is the protocol's own for 400 and 422, and a proxy's for anything
    else:
        code, message = problem.code, problem.message
    ours = bool(code) or answer.header(VERSION_HEADER) is not None or _is_plain_refusal(answer)
    return Refused(path, answer.status, code, message, ours=ours, retry_seconds=retry_after_seconds(answer))


def _is_plain_refusal(answer: Answer) -> bool:
    """Whether it is the plain text with which the page has a bad body answered; proxies write HTML."""
    kind = answer.header("content-type") or ""
    return answer.status in (400, 422) and kind.lower().startswith("text/plain")
