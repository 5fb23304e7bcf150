"""Calls through the bundled middleware to a worker, each a process of its own.

    python kiwi_calls.py MODE CALLERS CALLS [IDLE_SECONDS]

With callers: so many threads share the calls; calls per second and latency. With idle seconds: the latency of
the first call after as long a silence.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from latency import print_figures

from kiwi_worker import Worker
from kiwi_worker.testing.middleware import MiddlewareProcess, running_middleware


def serve() -> None:
    """The worker process."""
    worker = Worker(wakeup_probe_service_port=0, heartbeat_delay=5)

    @worker.method
    def job(n: int) -> int:
        return n

    worker.run()


@contextmanager
def worker_of(middleware: MiddlewareProcess, mode: str) -> Iterator[None]:
    """A worker process of this middleware, registered."""
    environment = {
        **os.environ,
        "KIWI_MIDDLEWARE_URL": middleware.url,
        "KIWI_SERVICE_ID": middleware.service_id,
        "KIWI_AUTH_SECRET": middleware.worker_secret,
        "KIWI_RUN_MODE": mode,
    }
    process = subprocess.Popen([sys.executable, __file__, "serve"], env=environment)
    try:
        yield
    finally:
        process.terminate()
        process.wait(30)


def main(mode: str, callers: int, calls: int, idle_seconds: float) -> None:
    """Start everything, call, print the figures."""
    with running_middleware() as middleware, worker_of(middleware, mode):
        # A client is kept by one thread; its first call waits until the worker is there.
        def caller() -> Callable[[int], object]:
            client = middleware.new_client()
            return lambda n: client.call("job", {"n": n}, timeout=30)

        print_figures(caller, callers, calls, idle_seconds)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve()
    else:
        idle = float(sys.argv[4]) if len(sys.argv) > 4 else 0.0
        main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), idle)
