"""A middleware that misbehaves, and workers of it. The tools are those of the other tests of workers."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

for folder in ("worker", "misbehaving"):
    sys.path.append(str(Path(__file__).parents[1] / folder))

from worker_tools import worker_settings  # noqa: E402

from kiwi_worker import Worker  # noqa: E402
from kiwi_worker.testing import KiwiServer, MisbehavingServer, OrbitServer  # noqa: E402


@pytest.fixture
def server() -> Iterator[KiwiServer]:
    """The middleware; the worker has to keep to the protocol page."""
    with MisbehavingServer.kiwi() as running:
        yield running
        running.assert_protocol_kept()


@pytest.fixture
def orbit() -> Iterator[OrbitServer]:
    """The ORBIT runtime, with short sessions."""
    with MisbehavingServer.orbit(session_timeout_seconds=3) as running:
        yield running


@pytest.fixture
def new_worker() -> Iterator[Callable[..., Worker]]:
    """Makes workers: `new_worker(server, run_mode="eager")`; stops them when the test ends."""
    made: list[Worker] = []

    def make(server: KiwiServer | str, **settings: Any) -> Worker:
        made.append(Worker(**worker_settings(server, number=len(made) + 1, **settings)))
        return made[-1]

    yield make
    for worker in made:
        worker.stop()
