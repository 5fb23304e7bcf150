"""Puts the dev runtime on its ports and takes it off again."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, cast

from kiwi_worker.errors import SettingsError
from kiwi_worker.orbit.runtime.core import RuntimeCore
from kiwi_worker.orbit.runtime.deployment import deployed_lines, load_deployment
from kiwi_worker.orbit.runtime.driver import Driver
from kiwi_worker.orbit.runtime.http import HttpBinding
from kiwi_worker.orbit.runtime.identities import Credentials, load_identities
from kiwi_worker.orbit.runtime.options import RuntimeOptions
from kiwi_worker.orbit.runtime.store import MemoryStore, SqliteStore, Store
from kiwi_worker.serving import Joined, listen

try:
    import uvicorn
    from uvicorn.protocols.http.auto import AutoHTTPProtocol
except ImportError:  # pragma: no cover
    raise SettingsError(
        "orbit-runtime", "needs the extra `middleware`: pip install 'kiwi-worker[middleware]'"
    ) from None

_logger = logging.getLogger("kiwi_worker.orbit.runtime")

Say = Callable[[str], None]
"""Where the runtime says what it serves, one line at a time."""

READY = "ready"
"""The last line said at the start: every port listens."""


def run(options: RuntimeOptions, say: Say) -> None:
    """Serve until SIGINT or SIGTERM.

    Raises:
        SettingsError: if a file or an address cannot be used.
    """
    asyncio.run(_run(options, say))


async def _run(options: RuntimeOptions, say: Say) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for signal_number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(signal_number, stop.set)
    async with serving(options, say):
        await stop.wait()


@contextlib.asynccontextmanager
async def serving(options: RuntimeOptions, say: Say) -> AsyncIterator[None]:
    """Serve while the block runs; what is served, and `ready`, was said before it begins."""
    if options.grpc_addr is not None:
        # imported here: grpcio is an extra of its own; and first of all, so that nothing is served without it
        import kiwi_worker.orbit.runtime.rpc  # noqa: F401
    workflows = load_deployment(options.deploy)
    credentials = _credentials(options)
    for line in deployed_lines(workflows):
        say(line)
    core = RuntimeCore(workflows, session_timeout_ms=options.session_timeout_ms)
    async with contextlib.AsyncExitStack() as stack:
        driver = Driver(core, _store(options))
        stack.callback(driver.close)
        driver.load()
        await stack.enter_async_context(_serving_http(options, driver, credentials, say))
        if options.grpc_addr is not None:
            await stack.enter_async_context(_serving_grpc(options, driver, credentials, say))
        # stopped before the servers are, as they wait for the calls that hang in it
        stack.callback(driver.stop)
        say(READY)
        yield


def _credentials(options: RuntimeOptions) -> Credentials:
    identities = None if options.workers_file is None else load_identities(options.workers_file)
    credentials = Credentials(options.token, options.worker_token, identities)
    if options.worker_token is not None and not credentials.required:
        text = "a worker token alone guards nothing: set --token or --workers-file, or every caller is let in"
        _logger.warning(text, extra={"action": "runtime_open"})
    return credentials


def _store(options: RuntimeOptions) -> Store:
    return MemoryStore() if options.db is None else SqliteStore(options.db)


@contextlib.asynccontextmanager
async def _serving_http(
    options: RuntimeOptions, driver: Driver, credentials: Credentials, say: Say
) -> AsyncIterator[None]:
    listener = listen(options.host, options.port)
    scheme = "http" if options.tls_cert is None else "https"
    host = f"[{options.host}]" if ":" in options.host else options.host
    try:
        server = _Server(
            _uvicorn_config(options, HttpBinding(driver, credentials, max_body=options.max_body))
        )
        task = asyncio.create_task(server.serve(sockets=[listener]), name="orbit-runtime-http")
        await _started(server, task)
        say(f"serving {scheme}://{host}:{listener.getsockname()[1]}")
        try:
            yield
        finally:
            server.should_exit = True
            await task
    finally:
        listener.close()


@contextlib.asynccontextmanager
async def _serving_grpc(
    options: RuntimeOptions, driver: Driver, credentials: Credentials, say: Say
) -> AsyncIterator[None]:
    from kiwi_worker.orbit.runtime.rpc import serving_grpc

    async with serving_grpc(options, driver, credentials) as (scheme, port):
        host, _, _ = (options.grpc_addr or "").rpartition(":")
        say(f"serving {scheme}://{host}:{port}")
        yield


async def _started(server: uvicorn.Server, task: asyncio.Task[None]) -> None:
    while not server.started:
        if task.done():
            task.result()
            raise SettingsError("host", "the HTTP server did not start")
        await asyncio.sleep(0.005)


def _uvicorn_config(options: RuntimeOptions, app: HttpBinding) -> uvicorn.Config:
    config = uvicorn.Config(
        app,
        http=_Protocol,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        date_header=False,
        # longer than any handler a worker is likely to run between two calls on one connection
        timeout_keep_alive=75,
        timeout_graceful_shutdown=2,
        ssl_certfile=options.tls_cert,
        ssl_keyfile=None if options.tls_key is None else str(options.tls_key),
        ssl_ca_certs=None if options.tls_client_ca is None else str(options.tls_client_ca),
        ssl_cert_reqs=ssl.CERT_NONE if options.tls_client_ca is None else ssl.CERT_REQUIRED,
    )
    try:
        config.load()
    except (OSError, ssl.SSLError) as error:
        raise SettingsError("tls_cert", f"the TLS files cannot be used: {error}") from None
    return config


class _Server(uvicorn.Server):
    """Leaves the signals to `run`: uvicorn would raise them again before the runtime has closed its file."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class _Protocol(AutoHTTPProtocol):  # type: ignore[misc,valid-type]
    """Tells the application which names the client's certificate carries; uvicorn itself does not."""

    app_state: dict[str, Any]

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(cast("asyncio.Transport", Joined(transport)))
        tls = transport.get_extra_info("ssl_object")
        certificate = None if tls is None else tls.getpeercert()
        if certificate:
            self.app_state = {**self.app_state, "certificate_names": certificate_names(certificate)}


def certificate_names(certificate: Any) -> tuple[str, ...]:
    """The DNS names and the common names of a certificate as `ssl` describes it."""
    names = [name for kind, name in certificate.get("subjectAltName", ()) if kind == "DNS"]
    parts = [pair for part in certificate.get("subject", ()) for pair in part]
    return (*names, *(value for key, value in parts if key == "commonName"))
