"""celery on Redis."""

from __future__ import annotations

import os

from celery import Celery
from counting import count

app = Celery("bench", broker=os.environ["BENCH_REDIS"])
app.conf.task_ignore_result = True
app.conf.worker_hijack_root_logger = False


@app.task
def job(n: int) -> None:
    """The no-op job."""
    count()


def enqueue(jobs: int) -> None:
    """Queue the jobs."""
    for number in range(jobs):
        job.delay(number)


COMMAND = ["-m", "celery", "-A", "celery_peer", "worker", "-P", "prefork", "-c", "1", "-l", "ERROR"]
