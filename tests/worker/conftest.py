"""A misbehaving middleware, and workers against it that leave no thread behind."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from worker_tools import eventually, worker_settings

from kiwi_worker import Worker
from kiwi_worker.testing import KiwiServer, MisbehavingServer


@pytest.fixture
def server() -> Iterator[KiwiServer]:
    """The middleware; `violations` have to be empty when the test ends."""
    with MisbehavingServer.kiwi() as running:
        yield running
        running.assert_protocol_kept()


@pytest.fixture
def lax_server() -> Iterator[KiwiServer]:
    """The middleware, for tests that have it hand out what is against the page."""
    with MisbehavingServer.kiwi() as running:
        yield running


@pytest.fixture
def new_worker() -> Iterator[Callable[..., Worker]]:
    """Makes workers of a server: `new_worker(server, run_mode="eager")`; stops them when the test ends."""
    made: list[Worker] = []

    def make(server: KiwiServer | str, **settings: Any) -> Worker:
        made.append(Worker(**worker_settings(server, number=len(made) + 1, **settings)))
        return made[-1]

    before = set(threading.enumerate())
    yield make
    for worker in made:
        worker.stop()
    eventually(lambda: not _left(made, before), lambda: f"threads were left: {_left(made, before)}")


def _left(made: list[Worker], before: set[threading.Thread]) -> list[str]:
    names = tuple(f"{worker.settings.worker_id}-" for worker in made)
    return [
        thread.name
        for thread in threading.enumerate()
        if thread not in before and thread.name.startswith(names)
    ]
