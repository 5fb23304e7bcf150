"""The pytest plugin: fixtures for servers, running workers and handlers.

It is loaded in every test run where this package is installed, so that it imports nothing until a fixture is
used. A fixture of the same name in a test suite replaces the one here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from kiwi_worker.testing.environment import HandlerEnvironment
    from kiwi_worker.testing.middleware import MiddlewareProcess
    from kiwi_worker.testing.orbit_runtime import RunningRuntime
    from kiwi_worker.testing.running import WorkerRunner
    from kiwi_worker.testing.server import KiwiServer, OrbitServer


@pytest.fixture(scope="session")
def kiwi_middleware_process() -> Iterator[MiddlewareProcess]:
    """A bundled middleware as a process, one for the whole run; `kiwi_middleware` is what a test wants."""
    pytest.importorskip("starlette", reason="the bundled middleware needs kiwi-worker[middleware]")
    from kiwi_worker.testing.middleware import running_middleware

    with running_middleware() as middleware:
        yield middleware


@pytest.fixture
def kiwi_middleware(kiwi_middleware_process: MiddlewareProcess) -> Iterator[MiddlewareProcess]:
    """The bundled middleware, with a service of its own for each test; `.client` calls its workers."""
    middleware = kiwi_middleware_process.with_new_service()
    yield middleware
    middleware.close_clients()


@pytest.fixture
def kiwi_server() -> Iterator[KiwiServer]:
    """A Kiwi middleware that misbehaves when told to, in this process."""
    from kiwi_worker.testing import MisbehavingServer

    with MisbehavingServer.kiwi() as server:
        yield server


@pytest.fixture
def orbit_server() -> Iterator[OrbitServer]:
    """An ORBIT runtime that misbehaves when told to, in this process."""
    from kiwi_worker.testing import MisbehavingServer

    with MisbehavingServer.orbit() as server:
        yield server


@pytest.fixture
def orbit_runtime() -> Iterator[Callable[..., RunningRuntime]]:
    """Starts ORBIT dev runtimes as processes: `orbit_runtime(workflows)`; they end with the test.

    It takes what `kiwi_worker.testing.orbit_runtime.running_runtime` takes.
    """
    pytest.importorskip("starlette", reason="the ORBIT dev runtime needs kiwi-worker[middleware]")
    from kiwi_worker.testing.orbit_runtime import running_runtime

    with ExitStack() as stack:
        yield lambda *arguments, **options: stack.enter_context(running_runtime(*arguments, **options))


@pytest.fixture
def running_worker() -> Iterator[WorkerRunner]:
    """Starts workers against a server: `running_worker(worker, kiwi_server)`; they stop with the test."""
    from kiwi_worker.testing.running import WorkerRunner

    runner = WorkerRunner()
    yield runner
    runner.close()


@pytest.fixture
def handler_environment() -> Iterator[Callable[..., HandlerEnvironment]]:
    """Calls handlers with no server: `handler_environment(worker).call("hello", {"name": "Ada"})`.

    It takes what `kiwi_worker.testing.environment.HandlerEnvironment` takes.
    """
    from kiwi_worker.testing.environment import HandlerEnvironment

    def enter(source: Any, **options: Any) -> HandlerEnvironment:
        return stack.enter_context(HandlerEnvironment(source, **options))

    with ExitStack() as stack:
        yield enter
