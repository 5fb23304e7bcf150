"""Calls through a peer that keeps results: `python peer_calls.py huey|taskiq CALLERS CALLS [IDLE_SECONDS]`.

Both look for a result every millisecond here, far more often than they do by default.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from latency import print_figures

PEERS = Path(__file__).parent / "peers"


def blocking_caller(peer: Any) -> Callable[[], Callable[[int], object]]:
    """Callers of a peer with a blocking call."""
    return lambda: peer.call


def looping_caller(peer: Any) -> Callable[[], Callable[[int], object]]:
    """Callers of an asyncio peer: all calls run on one loop, as its users do it."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    asyncio.run_coroutine_threadsafe(peer.broker.startup(), loop).result()
    return lambda: lambda n: asyncio.run_coroutine_threadsafe(peer.acall(n), loop).result()


def main(name: str, callers: int, calls: int, idle_seconds: float) -> None:
    """Start the worker, call, print the figures."""
    import redis

    os.environ["BENCH_RESULTS"] = "1"
    with redis.Redis.from_url(os.environ["BENCH_REDIS"]) as client:
        client.flushall()
    sys.path.insert(0, str(PEERS))
    peer = importlib.import_module(f"{name}_peer")
    worker = subprocess.Popen(
        [sys.executable, *peer.COMMAND],
        cwd=PEERS,
        env={**os.environ, "PYTHONPATH": str(PEERS)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        make = looping_caller(peer) if hasattr(peer, "acall") else blocking_caller(peer)
        print_figures(make, callers, calls, idle_seconds)
    finally:
        os.killpg(worker.pid, signal.SIGKILL)
        worker.wait()
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    idle = float(sys.argv[4]) if len(sys.argv) > 4 else 0.0
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), idle)
