"""Many calls at once on one event loop; no thread waits with them."""

import asyncio

from kiwi_worker import Worker

worker = Worker(async_concurrency=500)


@worker.method(concurrency=100)
async def pause(seconds: float) -> float:
    await asyncio.sleep(seconds)
    return seconds


if __name__ == "__main__":
    worker.run()
