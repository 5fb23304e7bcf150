"""Put ordinary Python functions behind a middleware.

    from kiwi_worker import Worker

    worker = Worker()

    @worker.method
    def hello(name: str = "world") -> str:
        return f"hello {name}"

    worker.run()

Importing this package loads no HTTP library and no event loop; each name below is loaded when first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kiwi_worker._version import __version__

if TYPE_CHECKING:
    from kiwi_worker.context import Context as Context
    from kiwi_worker.errors import KiwiWorkerError as KiwiWorkerError
    from kiwi_worker.errors import MethodError as MethodError
    from kiwi_worker.errors import MethodFailed as MethodFailed
    from kiwi_worker.methods import Registry as Registry
    from kiwi_worker.running import run as run
    from kiwi_worker.worker import Worker as Worker

__all__ = [
    "Context",
    "KiwiWorkerError",
    "MethodError",
    "MethodFailed",
    "Registry",
    "Worker",
    "__version__",
    "run",
]

_HOMES = {
    "Context": "context",
    "KiwiWorkerError": "errors",
    "MethodError": "errors",
    "MethodFailed": "errors",
    "Registry": "methods",
    "Worker": "worker",
    "run": "running",
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
