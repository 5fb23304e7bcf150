"""dramatiq on Redis."""

from __future__ import annotations

import os

import dramatiq
from counting import count
from dramatiq.brokers.redis import RedisBroker

dramatiq.set_broker(RedisBroker(url=os.environ["BENCH_REDIS"]))


@dramatiq.actor
def job(n: int) -> None:
    """The no-op job."""
    count()


def enqueue(jobs: int) -> None:
    """Queue the jobs."""
    for number in range(jobs):
        job.send(number)


COMMAND = ["-m", "dramatiq", "dramatiq_peer", "-p", "1", "-t", "8"]
