"""The HTTP/JSON binding (sections "HTTP conventions" and "Endpoints")."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec

from kiwi_worker.errors import Ambiguous, NotSent, ProtocolError
from kiwi_worker.orbit.wire import NOT_LEADER, Ack, Assignment, Credentials, Refused, Registered, Servers
from kiwi_worker.transport import Answer, Channel, Endpoint, retry_after_seconds

__all__ = ["HttpWire"]

READ_MARGIN_SECONDS = 15.0
SHORT_LIMIT_SECONDS = 15.0
LONGEST_WAIT_MS = 60_000

Read = TypeVar("Read")

_encode = msgspec.json.Encoder().encode
_read_registered = msgspec.json.Decoder(Registered).decode
_read_assignment = msgspec.json.Decoder(Assignment).decode
_read_ack = msgspec.json.Decoder(Ack).decode


class _Beat(msgspec.Struct):
    accepted: bool = True
    cancel: list[str] = []


class _Problem(msgspec.Struct):
    code: str
    message: str = ""


class _ErrorBody(msgspec.Struct):
    error: _Problem


_read_beat = msgspec.json.Decoder(_Beat).decode
_read_error = msgspec.json.Decoder(_ErrorBody).decode


class HttpWire:
    """The calls over kept connections, one to each server that was used.

    Args:
        endpoints: the servers, in the order they are tried.
        servers: which one is used now; shared by all wires of a worker.
        credentials: the bearer token; shared likewise.
        user_agent: the `User-Agent` of every request.
    """

    def __init__(
        self, endpoints: Sequence[Endpoint], servers: Servers, credentials: Credentials, *, user_agent: str
    ) -> None:
        self._endpoints = endpoints
        self._servers = servers
        self._credentials = credentials
        self._user_agent = user_agent
        self._lock = threading.Lock()
        self._channels: dict[int, Channel] = {}

    def register(self, request: dict[str, Any]) -> Registered:
        """POST /v1/workers/register."""
        answer = self._call("/v1/workers/register", _encode(request), SHORT_LIMIT_SECONDS)
        return self._read("register", _read_registered, answer)

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
        answer = self._call(
            "/v1/workers/heartbeat", _encode({"worker_session_id": session_id}), limit_seconds
        )
        return self._read("heartbeat", _read_beat, answer).cancel

    def result(self, route: str, body: bytes, limit_seconds: float) -> Ack:
        """POST /v1/tasks/complete or /v1/tasks/fail."""
        return self._read(route, _read_ack, self._call(f"/v1/tasks/{route}", body, limit_seconds))

    def unregister(self, session_id: str) -> None:
        """POST /v1/workers/unregister."""
        self._call("/v1/workers/unregister", _encode({"worker_session_id": session_id}), 5.0)

    def close(self) -> None:
        """Close the connections."""
        for channel in self._all():
            channel.close()

    def interrupt(self) -> None:
        """End the running call."""
        for channel in self._all():
            channel.interrupt()

    def _all(self) -> list[Channel]:
        with self._lock:
            return list(self._channels.values())

    def _channel(self, index: int) -> Channel:
        with self._lock:
            channel = self._channels.get(index)
            if channel is None:
                channel = Channel(self._endpoints[index], user_agent=self._user_agent)
                self._channels[index] = channel
            return channel

    def _call(self, path: str, body: bytes, read_timeout: float) -> Answer:
        """One call on the server used now, or on the next ones as long as nothing was asked of anybody."""
        failure: Exception | None = None
        for _ in range(len(self._servers)):
            index = self._servers.current
            try:
                answer = self._channel(index).call(
                    "POST", path, body, authorization=self._credentials.header(), read_timeout=read_timeout
                )
            except NotSent as error:
                self._servers.leave(index)
                failure = error
                continue
            except Ambiguous:
                self._servers.leave(index)
                raise
            if 200 <= answer.status < 300:
                return answer
            refused = _refusal(path, answer)
            if refused.status == 401:
                self._credentials.refused()
            if refused.code != NOT_LEADER:
                raise refused
            self._servers.leave(index)
            failure = refused
        assert failure is not None
        raise failure

    @staticmethod
    def _read(call: str, decode: Callable[[bytes], Read], answer: Answer) -> Read:
        try:
            return decode(answer.body)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            if answer.header("x-orbit-api-version") is None:
                raise Refused(
                    call, answer.status, "", "the answer is not the protocol's", ours=False
                ) from None
            raise ProtocolError(f"the answer to {call} is not what the protocol page says: {error}") from None


def _refusal(path: str, answer: Answer) -> Refused:
    code, message = "", answer.body[:200].decode("utf-8", "replace").strip()
    try:
        problem = _read_error(answer.body).error
    except (msgspec.MsgspecError, UnicodeDecodeError):
        pass  # plain text is the protocol's own for 400 and 422, and a proxy's for anything
    else:
        code, message = problem.code, problem.message
    ours = bool(code) or answer.header("x-orbit-api-version") is not None
    return Refused(path, answer.status, code, message, ours=ours, retry_seconds=retry_after_seconds(answer))
