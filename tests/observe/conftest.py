"""A middleware, and workers of it. The tools are those of the other tests of workers."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parents[1] / "worker"))

from worker_tools import worker_settings

from kiwi_worker import Worker
from kiwi_worker.engine import stamps
from kiwi_worker.testing import KiwiServer, MisbehavingServer


@pytest.fixture
def server() -> Iterator[KiwiServer]:
    """The middleware."""
    with MisbehavingServer.kiwi() as running:
        yield running


@pytest.fixture
def new_worker(server: KiwiServer) -> Iterator[Callable[..., Worker]]:
    """Makes workers of the server with one method `hello`; stops them when the test ends."""
    made: list[Worker] = []

    def make(**settings: Any) -> Worker:
        worker = Worker(**worker_settings(server, number=len(made) + 1, **settings))
        worker.method("hello")(lambda: "hello")
        made.append(worker)
        return worker

    yield make
    for worker in made:
        worker.stop()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is called unhealthy after a minute otherwise is so at once."""
    monkeypatch.setattr(stamps, "PATIENCE_SECONDS", 0.3)


@pytest.fixture
def suspicious(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop is called stuck soon after it ought to have turned."""
    monkeypatch.setattr(stamps, "STUCK_SECONDS", 0.3)
