"""The HTTP/JSON binding: an ASGI application around the driver.

Order of the checks: credentials, path, content type, size, JSON, fields. Whatever comes after the credentials
and the path carries `x-orbit-api-version`; what comes before does not, as in the page's transcript.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, unquote

import msgspec

from kiwi_worker.orbit.runtime.bodies import Body, failure_of, parse_body, registration_of
from kiwi_worker.orbit.runtime.driver import Driver
from kiwi_worker.orbit.runtime.identities import Caller, Credentials
from kiwi_worker.orbit.runtime.refusal import Malformed, Refused, internal, invalid_request
from kiwi_worker.orbit.runtime.views import execution_summary, execution_view, worker_view

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

API_VERSION = "orbit-api/1"
DEFAULT_MAX_BODY = 4 * 1024 * 1024

_logger = logging.getLogger("kiwi_worker.orbit.runtime")


@dataclass(frozen=True)
class Reply:
    """What goes back: a status, and a body of JSON, of text, or none."""

    status: int
    content: bytes = b""
    content_type: str | None = None
    allow: str | None = None

    def headers(self, *, api_version: bool) -> list[tuple[bytes, bytes]]:
        """The header lines, in the order the transcript shows."""
        pairs = [
            ("content-type", self.content_type),
            ("x-orbit-api-version", API_VERSION if api_version else None),
            ("allow", self.allow),
            # a 204 has no body and says nothing about its length (RFC 9110, 8.6)
            ("content-length", None if self.status == 204 else str(len(self.content))),
        ]
        return [(name.encode(), value.encode()) for name, value in pairs if value is not None]


NO_TASK = Reply(204)


def json_reply(value: Any, status: int = 200) -> Reply:
    """A body of JSON."""
    return Reply(status, msgspec.json.encode(value), "application/json")


def refused_reply(refused: Refused) -> Reply:
    """The error object of the page."""
    return json_reply({"error": {"code": refused.code, "message": refused.message}}, refused.status)


def malformed_reply(malformed: Malformed) -> Reply:
    """The plain text of 400, 413, 415 and 422."""
    return Reply(malformed.status, malformed.text.encode(), "text/plain; charset=utf-8")


class Request:
    """One request, as far as it was read."""

    def __init__(self, scope: Scope, receive: Receive, max_body: int) -> None:
        self.method: str = scope["method"]
        self.path = unquote(scope.get("raw_path", scope["path"].encode()).decode("latin-1").split("?")[0])
        self.query = parse_qs(scope["query_string"].decode("latin-1"))
        self.certificate_names: tuple[str, ...] | None = scope.get("state", {}).get("certificate_names")
        self._raw_path: bytes = scope.get("raw_path") or scope["path"].encode()
        self._headers = {name.decode().lower(): value.decode("latin-1") for name, value in scope["headers"]}
        self._receive, self._max_body = receive, max_body

    def header(self, name: str) -> str | None:
        """A header's value, or None."""
        return self._headers.get(name)

    def segments(self) -> list[str]:
        """The path, cut at its slashes and then unquoted, so that an id may hold an escaped slash."""
        return [
            unquote(part) for part in self._raw_path.decode("latin-1").split("?")[0].strip("/").split("/")
        ]

    async def body(self, *, may_be_empty: bool = False) -> Body:
        """The JSON object of the body.

        Raises:
            Malformed: 415, 413, 400 or 422.
        """
        if may_be_empty and self._length() == 0 and "transfer-encoding" not in self._headers:
            return Body({})
        if not _is_json(self.header("content-type")):
            raise Malformed(415, "the request needs the header `content-type: application/json`")
        return parse_body(await self._content())

    def _length(self) -> int:
        text = self._headers.get("content-length", "0")
        return int(text) if text.isdigit() else 0

    async def _content(self) -> bytes:
        content = bytearray()
        more = self._length() <= self._max_body
        while more:
            message = await self._receive()
            content += message.get("body", b"")
            more = message.get("more_body", False) and len(content) <= self._max_body
        if max(len(content), self._length()) > self._max_body:
            raise Malformed(413, f"the request is larger than {self._max_body} bytes")
        return bytes(content)

    async def gone(self) -> None:
        """Return when the client has closed the connection."""
        while (await self._receive())["type"] != "http.disconnect":
            pass


def _is_json(content_type: str | None) -> bool:
    return (content_type or "").split(";")[0].strip().lower() == "application/json"


Handler = Callable[[Caller, Request], Awaitable[Reply]]


class HttpBinding:
    """The ASGI application.

    Args:
        driver: the runtime.
        credentials: what is accepted.
        max_body: the largest request body, in bytes.
    """

    def __init__(self, driver: Driver, credentials: Credentials, *, max_body: int = DEFAULT_MAX_BODY) -> None:
        self._driver, self._credentials, self._max_body = driver, credentials, max_body
        self._routes: dict[str, dict[str, Handler]] = {
            "/v1/workers/register": {"POST": self._register},
            "/v1/workers/poll": {"POST": self._poll},
            "/v1/workers/heartbeat": {"POST": self._heartbeat},
            "/v1/workers/unregister": {"POST": self._unregister},
            "/v1/tasks/complete": {"POST": self._complete},
            "/v1/tasks/fail": {"POST": self._fail},
            "/v1/workers": {"GET": self._workers},
            "/v1/executions": {"GET": self._executions, "POST": self._start},
            "/v1/executions/*": {"GET": self._execution},
            "/v1/executions/*/wait": {"GET": self._wait},
            "/v1/executions/*/cancel": {"POST": self._cancel},
            "/v1/dev/leader": {"POST": self._set_leader},
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            raise RuntimeError(f"this application serves HTTP only, not {scope['type']}")
        request = Request(scope, receive, self._max_body)
        reply, authenticated = await self._answer(request)
        if reply is not None:
            await _send(send, reply, authenticated)
            extra = {"action": "request_answered", "status": reply.status}
            _logger.info("%s %s %d", request.method, request.path, reply.status, extra=extra)

    async def _answer(self, request: Request) -> tuple[Reply | None, bool]:
        try:
            caller = self._credentials.caller(request.header("authorization"), request.certificate_names)
            caller.check_path(request.path)
        except Refused as refused:
            return refused_reply(refused), False
        return await self._carry_out(caller, request), True

    async def _carry_out(self, caller: Caller, request: Request) -> Reply | None:
        try:
            return await self._handler(request)(caller, request)
        except Refused as refused:
            return refused_reply(refused)
        except Malformed as malformed:
            return malformed_reply(malformed)
        except Gone:
            return None
        except Exception as error:  # noqa: BLE001 - whatever it is, the client is told in the page's form
            return refused_reply(internal(error))

    def _handler(self, request: Request) -> Handler:
        segments = request.segments()
        if segments[:2] == ["v1", "executions"] and len(segments) > 2:
            segments[2] = "*"
        methods = self._routes.get("/" + "/".join(segments))
        if methods is None:
            raise Refused(404, "NOT_FOUND", f"there is no endpoint {request.path}")
        return methods.get(request.method) or _wrong_method(methods)

    async def _register(self, caller: Caller, request: Request) -> Reply:
        return json_reply(self._driver.register(caller, registration_of(await request.body())))

    async def _poll(self, caller: Caller, request: Request) -> Reply:
        body = await request.body()
        session_id, wait_ms = body.required("worker_session_id", str), body.optional("wait_ms", int)
        assignment = await _unless_gone(request, self._driver.poll(caller, session_id, wait_ms))
        return NO_TASK if assignment is None else json_reply(assignment)

    async def _heartbeat(self, caller: Caller, request: Request) -> Reply:
        session_id = (await request.body()).required("worker_session_id", str)
        return json_reply({"accepted": True, "cancel": self._driver.heartbeat(caller, session_id)})

    async def _unregister(self, caller: Caller, request: Request) -> Reply:
        self._driver.unregister(caller, (await request.body()).required("worker_session_id", str))
        return json_reply({"accepted": True})

    async def _complete(self, caller: Caller, request: Request) -> Reply:
        body = await request.body()
        return json_reply(self._driver.complete(caller, body.required("token", str), body.anything("output")))

    async def _fail(self, caller: Caller, request: Request) -> Reply:
        body = await request.body()
        token, retryable = body.required("token", str), body.optional("retryable", bool, True)
        return json_reply(self._driver.fail(caller, token, failure_of(body), retryable=retryable))

    async def _workers(self, caller: Caller, request: Request) -> Reply:
        return json_reply({"workers": [worker_view(*pair) for pair in self._driver.workers()]})

    async def _executions(self, caller: Caller, request: Request) -> Reply:
        return json_reply({"executions": [execution_summary(each) for each in self._driver.executions()]})

    async def _start(self, caller: Caller, request: Request) -> Reply:
        body = await request.body()
        execution_id, created = self._driver.start(
            body.required("workflow", str), body.anything("input"), body.optional("execution_id", str)
        )
        return json_reply({"execution_id": execution_id, "created": created})

    async def _execution(self, caller: Caller, request: Request) -> Reply:
        return json_reply(execution_view(self._driver.execution(request.segments()[2])))

    async def _wait(self, caller: Caller, request: Request) -> Reply:
        timeout_ms = _milliseconds(request.query.get("timeout_ms", [None])[-1])
        waiting = self._driver.wait(request.segments()[2], timeout_ms)
        return json_reply(execution_view(await _unless_gone(request, waiting)))

    async def _cancel(self, caller: Caller, request: Request) -> Reply:
        body = await request.body(may_be_empty=True)
        execution = self._driver.cancel(request.segments()[2], body.optional("reason", str))
        return json_reply(execution_view(execution))

    async def _set_leader(self, caller: Caller, request: Request) -> Reply:
        leader = (await request.body()).required("leader", bool)
        self._driver.set_leader(leader)
        return json_reply({"leader": leader})


class Gone(Exception):
    """The client closed the connection while its call was waiting."""


async def _unless_gone(request: Request, waiting: Any) -> Any:
    call = asyncio.ensure_future(waiting)
    watch = asyncio.ensure_future(request.gone())
    try:
        await asyncio.wait([call, watch], return_when=asyncio.FIRST_COMPLETED)
        if not call.done():
            raise Gone
        return call.result()
    finally:
        for task in (call, watch):
            task.cancel()
        await asyncio.gather(call, watch, return_exceptions=True)


def _wrong_method(methods: dict[str, Handler]) -> Handler:
    async def refuse(caller: Caller, request: Request) -> Reply:
        text = f"{request.method} is not allowed here"
        reply = refused_reply(Refused(405, "METHOD_NOT_ALLOWED", text))
        return Reply(reply.status, reply.content, reply.content_type, allow=", ".join(methods))

    return refuse


def _milliseconds(text: str | None) -> int | None:
    if text is not None and not text.isdecimal():
        raise invalid_request("timeout_ms must be a number of milliseconds")
    return None if text is None else int(text)


async def _send(send: Send, reply: Reply, authenticated: bool) -> None:
    headers = reply.headers(api_version=authenticated)
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    await send({"type": "http.response.body", "body": reply.content})
