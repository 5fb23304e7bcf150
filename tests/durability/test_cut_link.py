"""Worker and middleware in two network namespaces; their link is cut, restored, delayed, and cut again."""

from __future__ import annotations

import contextlib
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from accounting import Caller
from programs import Program, running

from kiwi_worker.client import CallError, Client
from kiwi_worker.testing.middleware import running_middleware

if sys.platform != "linux":
    pytest.skip("network namespaces are Linux's", allow_module_level=True)

from namespaces import FAR, NEAR, Network

TIME_TO_LIVE = 6.0
PULLED_SECONDS = 3.0
DOWN_SECONDS = 2.0
DELAY_SECONDS = 0.2
BACK_SECONDS = 30.0
"""A sender that got no answer pauses for twice as long each time, in TCP and in the probing of a worker."""

pytestmark = pytest.mark.timeout(150)
pytest.importorskip("uvicorn")

BODY = """
@worker.method
def work(number: int) -> int:
    time.sleep(0.02 * (number % 4))
    return number
"""


@pytest.fixture
def network() -> Iterator[Network]:
    if shutil.which("ip") is None:
        pytest.skip("needs iproute2")
    try:
        made = Network()
    except OSError as error:
        pytest.skip(f"no network namespaces with TAP devices can be made here ({error})")
    with contextlib.closing(made):
        yield made


@pytest.mark.parametrize("run_mode", ["eager", "lazy"])
def test_a_link_that_is_cut_and_delayed_and_comes_back_loses_no_call(
    tmp_path: Path, network: Network, run_mode: str
) -> None:
    with network.inside("near"), running_middleware(host=NEAR, heartbeat_delay=5) as middleware:
        settings = {
            "service_id": middleware.service_id,
            "auth_secret": middleware.worker_secret,
            "run_mode": run_mode,
            "wakeup_probe_bind": "0.0.0.0",
            "advertised_ip": FAR,
            "grace_period": 5,
        }
        command = network.command("far", sys.executable, "program.py")
        caller = Caller(middleware.client, seconds_between=0.1, time_to_live=TIME_TO_LIVE)
        client = middleware.new_client()
        with running(BODY, middleware.url, tmp_path, command=command, **settings) as program:
            wait_until_answered(client, program)
            caller.start()
            try:
                cut_delay_and_restore(network, client, program)
            finally:
                caller.stop()
            caller.settle(all_of_them=True)
            program.signal()
            assert program.end() == 0, program.errors
    caller.check(least_share=0.5)


def cut_delay_and_restore(network: Network, client: Client, program: Program) -> None:
    cable = network.cable
    # Nobody is told.
    cable.is_pulled = True
    assert_cut_for(PULLED_SECONDS, client)
    cable.is_pulled = False
    print(f"back after {wait_until_answered(client, program):.1f} s")

    cable.delay_seconds = DELAY_SECONDS
    for number in range(3):
        since = time.monotonic()
        assert client.call("work", [number], time_to_live=TIME_TO_LIVE) == number
        print(f"with a delay, answered after {time.monotonic() - since:.1f} s")
        assert time.monotonic() - since >= 2 * DELAY_SECONDS
    cable.delay_seconds = 0.0

    # The worker is told at once: its network is unreachable.
    network.set("far", "down")
    assert_cut_for(DOWN_SECONDS, client)
    network.set("far", "up")
    print(f"back after {wait_until_answered(client, program):.1f} s")


def assert_cut_for(seconds: float, client: Client) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        assert not is_answered(client)


def wait_until_answered(client: Client, program: Program) -> float:
    """How many seconds it takes until a call is answered."""
    since = time.monotonic()
    while not is_answered(client):
        assert program.popen.poll() is None, program.errors
        assert time.monotonic() - since < BACK_SECONDS, program.errors
    return time.monotonic() - since


def is_answered(client: Client) -> bool:
    try:
        return bool(client.call("work", [4], time_to_live=0.5) == 4)
    except CallError:
        return False
