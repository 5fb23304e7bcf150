"""Workers that run against a server of a test, whatever their module and the environment say."""

from __future__ import annotations

import itertools
from typing import Any, TypeVar, overload

from kiwi_worker.methods import Registry
from kiwi_worker.orbit import OrbitWorker, TaskRegistry
from kiwi_worker.settings import settings_of
from kiwi_worker.testing.kiwi_server import KiwiServer
from kiwi_worker.testing.middleware import MiddlewareProcess
from kiwi_worker.testing.orbit_runtime import RunningRuntime
from kiwi_worker.testing.orbit_server import OrbitServer
from kiwi_worker.testing.sources import worker_of
from kiwi_worker.worker import Worker

__all__ = ["WorkerRunner"]

Server = KiwiServer | MiddlewareProcess | OrbitServer | RunningRuntime
W = TypeVar("W", Worker, OrbitWorker)

_OF_THE_DEPLOYMENT = (
    *("middleware_url", "service_id", "auth_secret", "auth_secret_file", "server", "token", "token_file"),
    *("proto", "ca_file", "client_cert", "client_key", "proxy", "jwt_key", "jwks_url", "worker_id"),
    *("wakeup_probe_service_port", "wakeup_probe_bind", "advertised_ip", "advertised_port", "probe_allow"),
    *("processes", "journal", "health_port", "health_file", "metrics_port"),
)
"""Settings that say where a worker runs and not what it does: a test has its own."""

_FOR_TESTS = {"wakeup_probe_service_port": 0, "wakeup_probe_bind": "127.0.0.1", "grace_period": 5.0}


class WorkerRunner:
    """Starts workers against servers of a test, and stops them when it is closed."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._running: list[tuple[Worker | OrbitWorker, Any]] = []

    @overload
    def __call__(self, source: W, server: Server, **settings: Any) -> W: ...

    @overload
    def __call__(self, source: Registry, server: Server, **settings: Any) -> Worker: ...

    @overload
    def __call__(self, source: TaskRegistry, server: Server, **settings: Any) -> OrbitWorker: ...

    def __call__(self, source: Any, server: Server, **settings: Any) -> Any:
        """Start a worker, and give it once it is registered.

        A worker keeps its handlers, hooks, and the settings its code gives that say what it does; where the
        server is, its secrets, ids and ports are the test's, and the environment is not read. Its own
        settings are back when the test is over.

        Args:
            source: a worker, or a registry of methods or tasks to make one of.
            server: what it is to work for.
            settings: settings by keyword, which win.

        Raises:
            StartError: it could not start.
            TypeError: the server speaks the other protocol.
        """
        worker = worker_of(source)
        cls = type(worker.settings)
        kept = {key: value for key, value in worker.keywords.items() if key not in _OF_THE_DEPLOYMENT}
        given = {
            **_FOR_TESTS,
            **kept,
            "worker_id": f"test-worker-{next(self._numbers)}",
            **_connection(worker, server),
            **settings,
        }
        known = {setting.key for setting in settings_of(cls)}
        dropped = _FOR_TESTS.keys() - known
        before = worker.settings
        worker.configure(
            cls.load({key: value for key, value in given.items() if key not in dropped}, environ={})
        )
        self._running.append((worker, before))
        worker.start()
        return worker

    def close(self) -> None:
        """Stop them all, the last first."""
        while self._running:
            worker, before = self._running.pop()
            worker.stop()
            worker.configure(before)


def _connection(worker: Worker | OrbitWorker, server: Server) -> dict[str, Any]:
    if isinstance(server, KiwiServer | MiddlewareProcess) is not isinstance(worker, Worker):
        raise TypeError(f"{type(worker).__name__} and {type(server).__name__} speak different protocols")
    if isinstance(server, MiddlewareProcess):
        secret = {"service_id": server.service_id, "auth_secret": server.worker_secret}
        return {"middleware_url": server.url, **secret}
    if isinstance(server, KiwiServer):
        secret = {"service_id": server.service_id, "auth_secret": server.auth_secret}
        return {"middleware_url": server.url, **secret}
    if isinstance(server, OrbitServer) and server.token is not None:
        return {"server": server.url, "token": server.token}
    return {"server": server.url}
