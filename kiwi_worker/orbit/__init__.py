"""The ORBIT worker protocol v1.

from kiwi_worker.orbit import OrbitWorker

worker = OrbitWorker()

@worker.task("payments.charge", version="1.0.0")
def charge(input: dict, ctx) -> dict:
    return {"charged": input["amount"]}

worker.run()
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kiwi_worker.orbit.client import AsyncClient as AsyncClient
    from kiwi_worker.orbit.client import Client as Client
    from kiwi_worker.orbit.context import TaskContext as TaskContext
    from kiwi_worker.orbit.tasks import TaskError as TaskError
    from kiwi_worker.orbit.tasks import TaskRegistry as TaskRegistry
    from kiwi_worker.orbit.worker import OrbitWorker as OrbitWorker

__all__ = ["AsyncClient", "Client", "OrbitWorker", "TaskContext", "TaskError", "TaskRegistry"]

_HOMES = {
    "AsyncClient": "client",
    "Client": "client",
    "OrbitWorker": "worker",
    "TaskContext": "context",
    "TaskError": "tasks",
    "TaskRegistry": "tasks",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = globals()[name] = getattr(import_module(f"{__name__}.{home}"), name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
