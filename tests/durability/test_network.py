"""Middleware and worker in two network namespaces, whose link is cut, slowed down and restored."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from accounting import Caller
from network_link import Link
from programs import eventually, running

from kiwi_worker.testing.middleware import running_middleware

pytest.importorskip("uvicorn")
pytestmark = pytest.mark.timeout(150)

TIME_TO_LIVE = 15.0
CUT_SECONDS = 4.0
BODY = """
@worker.method
def work(number: int) -> int:
    return number
"""


@pytest.fixture
def link() -> Iterator[Link]:
    with Link() as made:
        yield made


@pytest.mark.parametrize("run_mode", ["eager", "lazy"])
def test_a_link_that_is_cut_slow_and_restored_costs_no_call(
    link: Link, tmp_path: Path, run_mode: str
) -> None:
    with running_middleware(host=link.here, heartbeat_delay=5) as middleware:
        caller = Caller(middleware.client, seconds_between=0.02, time_to_live=TIME_TO_LIVE)

        def succeed(more: int) -> None:
            """Wait until so many more calls, made from now on, have succeeded."""
            wanted = caller.called
            before = caller.endings["success"]

            def done() -> bool:
                caller.settle()
                return caller.endings["success"] >= before + more and caller.oldest >= wanted

            eventually(done, f"{caller.endings} of {caller.called}, {caller.wrong}")

        settings = {
            "service_id": middleware.service_id,
            "auth_secret": middleware.worker_secret,
            "run_mode": run_mode,
            "wait": 5,
            "wakeup_probe_bind": "0.0.0.0",
            "safety_interval": 2,
            "grace_period": 10,
        }
        command = link.command(sys.executable, "program.py")
        with running(BODY, middleware.url, tmp_path, command=command, **settings) as program:
            caller.start()
            try:
                succeed(50)
                link.cut()
                _wait_until_nothing_ends(caller)
                link.restore()
                succeed(50)
                link.slow_down()
                succeed(20)
                link.restore()
                succeed(50)
            finally:
                caller.stop()
            caller.settle(all_of_them=True)
            assert [worker.worker_id for worker in middleware.client.workers()] == ["w"]
            program.signal()
            assert program.end() == 0, program.errors
    print(caller.called, caller.endings)
    assert caller.wrong == []
    assert sum(caller.endings.values()) == caller.called
    assert caller.endings["success"] > 0.8 * caller.called, caller.endings


def _wait_until_nothing_ends(caller: Caller) -> None:
    """Until the cut has been felt for a while: calls are made, and none ends."""
    ended, since = -1, time.monotonic()

    def quiet() -> bool:
        nonlocal ended, since
        caller.settle()
        now = sum(caller.endings.values())
        if now != ended:
            ended, since = now, time.monotonic()
        return time.monotonic() - since > CUT_SECONDS

    eventually(quiet)
