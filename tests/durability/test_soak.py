"""A worker at work for a while, behind a link that breaks one request in twenty.

30 seconds in each mode; `SOAK_SECONDS` says how long instead.
"""

from __future__ import annotations

import os
import random
import time
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from accounting import Caller
from programs import running

from kiwi_worker.client import CallError, Client
from kiwi_worker.testing import FaultProxy
from kiwi_worker.testing.middleware import running_middleware

SECONDS = float(os.environ.get("SOAK_SECONDS", "30"))
TIME_TO_LIVE = 5.0
WARM_UP = 0.3
"""The share of the time in which pools, caches and windows fill."""
FEWEST_SAMPLES = 9
MOST_SAMPLES = 1000

pytestmark = pytest.mark.timeout(120 + 1.5 * SECONDS)
pytest.importorskip("uvicorn")

BODY = """
import gc
import kiwi_worker.kiwi.window as window
import kiwi_worker.kiwi.probe.reception as reception
# What they remember is bounded: let the bounds be reached while the soak warms up.
window.Window.__init__.__defaults__ = (200,)
reception.REMEMBERED_PACKETS = 200

@worker.method
def work(number: int, ctx: Context) -> int:
    if number % 5 == 0:
        ctx.feedback(f"at {number}")
    return number

@worker.method
async def measure() -> dict:
    gc.collect()
    lines = dict(line.split(":", 1) for line in open("/proc/self/status").read().splitlines())
    return {
        "blocks": sys.getallocatedblocks(),
        "threads": threading.active_count(),
        "descriptors": len(os.listdir("/proc/self/fd")),
        "resident_kib": int(lines["VmRSS"].split()[0]),
    }
"""


class Sample(NamedTuple):
    """What the worker's process holds."""

    blocks: int
    threads: int
    descriptors: int
    resident_kib: int


@pytest.mark.parametrize("run_mode", ["eager", "lazy"])
def test_a_soak_with_faults_accounts_for_every_call_and_keeps_nothing(tmp_path: Path, run_mode: str) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    with (
        running_middleware(heartbeat_delay=1) as middleware,
        FaultProxy(middleware.url, fault_rate=0.05, seed=seed, stall_seconds=0.5) as proxy,
    ):
        settings = {
            "service_id": middleware.service_id,
            "auth_secret": middleware.worker_secret,
            "run_mode": run_mode,
            "wait": 1,
            "safety_interval": 0.5,
            "when_forgotten": "stay",
            # So few that all are started while it warms up.
            "concurrency": 3,
            "reporters": 1,
        }
        caller = Caller(middleware.client, seconds_between=0.01, time_to_live=TIME_TO_LIVE)
        with running(BODY, proxy.url, tmp_path, **settings) as program:
            samples = _observed(caller, middleware.new_client(), SECONDS)
            caller.settle(all_of_them=True)
            program.signal()
            assert program.end() == 0, program.errors
        struck = len(proxy.struck)
    print(struck, samples[0], samples[-1])
    caller.check()
    assert struck > 0.02 * caller.called, "faults struck"
    _check_flat(samples, caller.called)


def _observed(caller: Caller, client: Client, seconds: float) -> list[Sample]:
    """Calls for that long; samples from after the warm-up."""
    began, samples = time.monotonic(), list[Sample]()
    caller.start()
    try:
        while (passed := time.monotonic() - began) < seconds or len(samples) < FEWEST_SAMPLES:
            caller.settle()
            sample = _sample(client)
            if sample is not None and passed > WARM_UP * seconds and len(samples) < MOST_SAMPLES:
                samples.append(sample)
            time.sleep(max(0.05, seconds / MOST_SAMPLES))
    finally:
        caller.stop()
    return samples


def _sample(client: Client) -> Sample | None:
    try:
        measured: Any = client.call("measure", time_to_live=1.0)
    except CallError:
        return None  # a fault took this call; the next one tells
    return Sample(**measured)


def _check_flat(samples: list[Sample], called: int) -> None:
    third = len(samples) // 3
    first, last = samples[:third], samples[-third:]
    low = {name: min(getattr(one, name) for one in first) for name in Sample._fields}
    end = {name: min(getattr(one, name) for one in last) for name in Sample._fields}
    # What each call left behind would be at least one block.
    assert end["blocks"] - low["blocks"] < max(1500, called // 4), (low, end)
    assert end["threads"] <= low["threads"] + 1, (low, end)
    assert end["descriptors"] <= low["descriptors"] + 2, (low, end)
    assert end["resident_kib"] - low["resident_kib"] < 8 * 1024, (low, end)
