"""The settings of one of several worker processes."""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar

from .worker import WorkerSettings

__all__ = ["for_process"]

W = TypeVar("W", bound=WorkerSettings)

_PORTS = ("wakeup_probe_service_port", "advertised_port", "health_port", "metrics_port")
_FILES = ("journal", "health_file")


def for_process(settings: W, number: int) -> W:
    """The settings of worker process `number`, counted from 1 to `settings.processes`.

    `<worker_id>-<number>`; every fixed port is `number - 1` higher (0, any free port, stays 0); the paths of
    journal and health file end in `.<number>`; `processes` is 1. A worker of one process is left as it is.

    Raises:
        ValueError: there is no such process.
    """
    if not 1 <= number <= settings.processes:
        raise ValueError(f"process {number} of {settings.processes}")
    if settings.processes == 1:
        return settings
    changes: dict[str, Any] = {"worker_id": f"{settings.worker_id}-{number}", "processes": 1}
    for key in _PORTS:
        if getattr(settings, key, None):
            changes[key] = getattr(settings, key) + number - 1
    for key in _FILES:
        if getattr(settings, key):
            changes[key] = f"{getattr(settings, key)}.{number}"
    return dataclasses.replace(settings, **changes)
