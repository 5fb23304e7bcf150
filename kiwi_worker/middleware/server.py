"""The middleware as a process: uvicorn with httptools and uvloop, chosen by measurement."""

from __future__ import annotations

import contextlib
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import uvicorn

from ..errors import SettingsError
from ..serving import listen
from .app import Application
from .authentication import Authentication
from .client_side import ClientSide
from .connection import Connection
from .exchange import Exchange
from .hub import Hub
from .openapi import description
from .operations import operations
from .records import encode
from .settings import MiddlewareSettings
from .stores.sqlite import SqliteStore
from .tokens import TokenAuthority
from .worker_side import WorkerSide

__all__ = ["serve"]

IDLE_CONNECTION_SECONDS = 75
"""How long a connection may lie idle; workers keep theirs over quiet times."""

SWITCH_SECONDS = 0.0005

GRACE_SECONDS = 10
"""How long answers that are under way may take at shutdown."""


def serve(settings: MiddlewareSettings, on_ready: Callable[[str], None]) -> None:
    """Run until SIGINT or SIGTERM; `on_ready` gets the address once connections are accepted.

    Raises:
        SettingsError: the address or the database cannot be used.
    """
    listener = listen(settings.host, settings.port)
    switch_interval = sys.getswitchinterval()
    # The event loop must not wait five milliseconds whenever the writer thread is at work.
    sys.setswitchinterval(SWITCH_SECONDS)
    try:
        server = _Server(settings, listener, on_ready)
        server.run([listener])
        if server.failure is not None:
            raise server.failure
    finally:
        sys.setswitchinterval(switch_interval)
        listener.close()


class _Server(uvicorn.Server):
    """uvicorn, with our order of start and stop and without its logging and signal habits."""

    def __init__(
        self, settings: MiddlewareSettings, listener: socket.socket, on_ready: Callable[[str], None]
    ) -> None:
        config = uvicorn.Config(
            self._application,
            http=Connection,
            ws="none",
            interface="asgi3",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=IDLE_CONNECTION_SECONDS,
            timeout_graceful_shutdown=GRACE_SECONDS,
        )
        super().__init__(config)
        self.failure: Exception | None = None
        self._hub = Hub(SqliteStore(settings), settings)
        self._on_ready = on_ready
        self._address = _address(listener)

    async def _application(self, scope: Any, receive: Any, send: Any) -> None:
        await self._serving(scope, receive, send)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        try:
            await self._hub.open()
        except SettingsError as error:
            self.failure = error
            self.should_exit = True
            return
        self._serving = await build(self._hub)
        await super().startup(sockets)
        self._on_ready(self._address)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._hub.end_waits()
        await super().shutdown(sockets)
        await self._hub.close()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {
            number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)
        }
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


async def build(hub: Hub) -> Application:
    """The application on an opened hub."""
    tokens = TokenAuthority(await hub.store.signing_key(), hub.settings)

    async def openapi(x: Exchange) -> None:
        await x.reply(200, described)

    async def health(x: Exchange) -> None:
        facts = hub.store.facts()
        await x.reply_json(
            {"ready": facts["failure"] is None, **facts}, 200 if facts["failure"] is None else 503
        )

    served = operations(
        Authentication(hub.store, tokens), WorkerSide(hub, tokens), ClientSide(hub, tokens), openapi, health
    )
    described = encode(description(served))
    return Application(served)


def _address(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
