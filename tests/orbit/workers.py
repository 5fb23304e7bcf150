"""Workers of one task, `job` 1.0.0, for a misbehaving server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from kiwi_worker.orbit import OrbitWorker

LIMIT_SECONDS = 15
Server = Any
UNKNOWN_SESSION = b'{"error":{"code":"UNKNOWN_SESSION","message":"unknown or expired worker session"}}'
NOT_LEADER = b'{"error":{"code":"NOT_LEADER","message":"ask another"}}'


def worker_of(server: Server, /, **settings: Any) -> OrbitWorker:
    given = {"server": server.url, "worker_id": "w", "poll_wait": 1, "grace_period": 3, "concurrency": 2}
    return OrbitWorker(**{**given, **settings})


@contextmanager
def serving(server: Server, handler: Callable[..., Any], **settings: Any) -> Iterator[OrbitWorker]:
    worker = worker_of(server, **settings)
    worker.task("job", version="1.0.0")(handler)
    with worker:
        yield worker


def echo(input: dict[str, Any]) -> dict[str, Any]:
    return input
