"""huey on Redis."""

from __future__ import annotations

import os

from counting import count
from huey import RedisHuey

huey = RedisHuey("bench", url=os.environ["BENCH_REDIS"], results=bool(os.environ.get("BENCH_RESULTS")))


@huey.task()
def job(n: int) -> int:
    """The no-op job."""
    count()
    return n


def enqueue(jobs: int) -> None:
    """Queue the jobs."""
    for number in range(jobs):
        job(number)


def call(n: int) -> int:
    """One call and its result."""
    return job(n).get(blocking=True, timeout=30, backoff=1.0, max_delay=0.001)


COMMAND = ["-m", "huey.bin.huey_consumer", "huey_peer.huey", "-w", "8", "-k", "thread", "-d", "0.001", "-q"]
