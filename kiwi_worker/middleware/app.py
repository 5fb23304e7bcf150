"""The ASGI application: four hot routes answered at once, everything else through starlette.

A framework costs as much per request as all our own work for a message (`docs/performance.md`), so the
routes that are called for every message stand before it. All handlers have the same form, whichever way they
are reached.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable, Callable
from urllib.parse import unquote

from starlette.exceptions import HTTPException
from starlette.routing import Route, Router

from .exchange import Disconnected, Exchange, Receive, Scope, Send
from .operations import Operation
from .problems import Problem
from .store import StoreFailure

__all__ = ["Application"]

logger = logging.getLogger("kiwi_worker.middleware.app")

Handler = Callable[[Exchange], Awaitable[None]]


class Application:
    """Answers every request with what its operation's handler makes of it.

    Args:
        operations: what is served.
    """

    def __init__(self, operations: list[Operation]) -> None:
        self._exact: dict[tuple[str, bytes], Handler] = {}
        self._prefixes: list[tuple[str, bytes, tuple[str, ...], Handler]] = []
        for operation in operations:
            if operation.hot:
                self._add_hot(operation)
        self._router = Router([_route(operation) for operation in operations], redirect_slashes=False)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise NotImplementedError(f"this application serves HTTP only, not {scope['type']}")
        found = self._hot(scope["method"], scope["raw_path"])
        if found is not None:
            handler, values = found
            await serve(handler, Exchange(scope, receive, send, values))
            return
        scope["app"] = self  # makes starlette raise what it would else answer in plain text
        try:
            await self._router(scope, receive, send)
        except HTTPException as error:
            problem = _framework_problem(error, scope)
            await Exchange(scope, receive, send, {}).reply_problem(problem)

    def _add_hot(self, operation: Operation) -> None:
        start, *names = operation.path.replace("}", "").split("/{")
        if names:
            self._prefixes.append((operation.method, start.encode() + b"/", tuple(names), operation.handler))
        else:
            self._exact[operation.method, start.encode()] = operation.handler

    def _hot(self, method: str, path: bytes) -> tuple[Handler, dict[str, str]] | None:
        exact = self._exact.get((method, path))
        if exact is not None:
            return exact, {}
        for known, prefix, names, handler in self._prefixes:
            if known == method and path.startswith(prefix):
                parts = path[len(prefix) :].split(b"/")
                if len(parts) == len(names):
                    texts = (unquote(part.decode("latin-1")) for part in parts)
                    return handler, dict(zip(names, texts, strict=True))
        return None


async def serve(handler: Handler, x: Exchange) -> None:
    """Run a handler, and turn whatever it raises into one answer."""
    try:
        await handler(x)
    except Problem as problem:
        await x.reply_problem(problem)
    except Disconnected:
        if not x.started:
            await x.reply(408, headers=())  # to nobody; the server wants every request to have an answer
    except StoreFailure as failure:
        await x.reply_problem(Problem(503, "store_failed", str(failure), ((b"retry-after", b"1"),)))
    except Exception:
        logger.exception(
            "%s %s failed", x.scope["method"], x.scope["path"], extra={"action": "request_failed"}
        )
        if x.started:
            raise
        await x.reply_problem(Problem(500, "internal", "the middleware failed at this request; see its log"))


class _Endpoint:
    """A handler as starlette calls it."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await serve(self._handler, Exchange(scope, receive, send, scope["path_params"]))


def _route(operation: Operation) -> Route:
    # A worker chooses its own id, which may hold a '/', percent-encoded in a path and decoded by now.
    path = operation.path.replace("{worker_id}", "{worker_id:path}")
    route = Route(path, _Endpoint(operation.handler), methods=[operation.method])
    # An id may hold a line break as well, which a dot leaves out and a dollar passes over.
    route.path_regex = re.compile(route.path_regex.pattern, re.DOTALL)
    return route


def _framework_problem(error: HTTPException, scope: Scope) -> Problem:
    if error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "")
        text = f"{scope['path']} takes {allowed}"
        return Problem(405, "method_not_allowed", text, ((b"allow", allowed.encode()),))
    return Problem(error.status_code, "not_found", f"there is nothing at {scope['path']}; see /openapi.json")
