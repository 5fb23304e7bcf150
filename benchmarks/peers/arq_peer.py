"""arq on Redis."""

from __future__ import annotations

import asyncio
import os
from typing import Any

from arq import create_pool
from arq.connections import RedisSettings
from counting import count

SETTINGS = RedisSettings.from_dsn(os.environ["BENCH_REDIS"])


async def job(ctx: dict[str, Any], n: int) -> None:
    """The no-op job."""
    count()


class WorkerSettings:
    """What arq runs."""

    functions = [job]
    redis_settings = SETTINGS
    max_jobs = 50
    poll_delay = 0.01
    keep_result = 0


def enqueue(jobs: int) -> None:
    """Queue the jobs."""

    async def run() -> None:
        pool = await create_pool(SETTINGS)
        for number in range(jobs):
            await pool.enqueue_job("job", number)
        await pool.aclose()

    asyncio.run(run())


COMMAND = ["-m", "arq", "arq_peer.WorkerSettings"]
