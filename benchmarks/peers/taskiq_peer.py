"""taskiq on Redis."""

from __future__ import annotations

import asyncio
import os

from counting import count
from taskiq_redis import ListQueueBroker, RedisAsyncResultBackend

URL = os.environ["BENCH_REDIS"]
broker = ListQueueBroker(URL)
if os.environ.get("BENCH_RESULTS"):
    broker = broker.with_result_backend(RedisAsyncResultBackend(URL))


@broker.task
async def job(n: int) -> int:
    """The no-op job."""
    count()
    return n


def enqueue(jobs: int) -> None:
    """Queue the jobs."""

    async def run() -> None:
        await broker.startup()
        for number in range(jobs):
            await job.kiq(number)
        await broker.shutdown()

    asyncio.run(run())


async def acall(n: int) -> int:
    """One call and its result."""
    task = await job.kiq(n)
    return (await task.wait_result(check_interval=0.001, timeout=30)).return_value


COMMAND = ["-m", "taskiq", "worker", "taskiq_peer:broker", "--workers", "1", "--log-level", "ERROR"]
