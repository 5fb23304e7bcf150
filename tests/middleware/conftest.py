from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from kiwi_worker.testing.middleware import MiddlewareProcess, running_middleware

from .plain_worker import PlainWorker

Workers = Callable[..., PlainWorker]


@pytest.fixture(scope="module")
def shared() -> Iterator[MiddlewareProcess]:
    """One middleware for all tests of a module that need no settings; each makes a service of its own."""
    with running_middleware() as middleware:
        yield middleware


@pytest.fixture
def middleware(shared: MiddlewareProcess) -> Iterator[MiddlewareProcess]:
    """The shared middleware, with a service that no other test has."""
    view = shared.with_new_service()
    yield view
    view.close_clients()


@pytest.fixture
def workers() -> Iterator[Workers]:
    """Makes workers of a middleware: `workers(middleware)`, `workers(middleware, "w2")`."""
    made: list[PlainWorker] = []

    def make(middleware: MiddlewareProcess, worker_id: str = "w1") -> PlainWorker:
        worker = PlainWorker(middleware.url, middleware.service_id, middleware.worker_secret, worker_id)
        made.append(worker)
        return worker

    yield make
    for worker in made:
        worker.close()
