"""What the test tools take handlers from."""

from __future__ import annotations

from typing import Any

from kiwi_worker.methods import Registry
from kiwi_worker.orbit import OrbitWorker, TaskRegistry
from kiwi_worker.worker import Worker

__all__ = ["Source", "worker_of"]

Source = Worker | OrbitWorker | Registry | TaskRegistry


def worker_of(source: Source) -> Any:
    """The worker itself, or one made for a registry."""
    if isinstance(source, Worker | OrbitWorker):
        return source
    if isinstance(source, TaskRegistry):
        tasks = OrbitWorker()
        tasks.include(source)
        return tasks
    worker = Worker()
    worker.include(source)
    return worker
