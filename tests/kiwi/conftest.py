"""A probe at work; a token endpoint, a client of it and managers that use it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from probed import Probed, probed
from token_endpoint import SECRET, Clock, TokenEndpoint

from kiwi_worker.kiwi.tokens import TokenManager
from kiwi_worker.transport import Endpoint, SeldomClient

LIMIT_SECONDS = 20.0


@pytest.fixture
def endpoint() -> Iterator[TokenEndpoint]:
    running = TokenEndpoint()
    yield running
    running.close()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def client(endpoint: TokenEndpoint) -> Iterator[SeldomClient]:
    made = SeldomClient(Endpoint(endpoint.url), user_agent="test")
    yield made
    made.close()


@pytest.fixture
def make(client: SeldomClient, clock: Clock) -> Iterator[Callable[..., TokenManager]]:
    managers: list[TokenManager] = []

    def made(**options: Any) -> TokenManager:
        known = {"service_id": "svc", "worker_id": "worker-1", "secret": lambda: SECRET, "clock": clock}
        managers.append(TokenManager(client, **{**known, **options}))
        return managers[-1]

    yield made
    for manager in managers:
        manager.close()
    for thread in threading.enumerate():
        if thread.name == "kiwi-token-refresh":
            thread.join(LIMIT_SECONDS)


@pytest.fixture
def probe() -> Iterator[Probed]:
    with probed() as running:
        yield running
