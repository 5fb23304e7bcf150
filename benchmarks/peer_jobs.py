"""No-op jobs through a peer: `python peer_jobs.py NAME JOBS`, with BENCH_REDIS set."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PEERS = Path(__file__).parent / "peers"


def main(name: str, jobs: int) -> None:
    """Queue the jobs, start one worker process, wait for its figures, print them."""
    sys.path.insert(0, str(PEERS))
    peer = importlib.import_module(f"{name}_peer")
    _flush(os.environ["BENCH_REDIS"])
    peer.enqueue(jobs)
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "figures.json"
        environment = {**os.environ, "BENCH_COUNT": str(jobs), "BENCH_RESULT": str(result)}
        worker = subprocess.Popen(
            [sys.executable, *peer.COMMAND],
            cwd=PEERS,
            env={**environment, "PYTHONPATH": str(PEERS)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            print(_figures(result, worker))
        finally:
            os.killpg(worker.pid, signal.SIGKILL)
            worker.wait()


def _flush(url: str) -> None:
    import redis

    with redis.Redis.from_url(url) as client:
        client.flushall()


def _figures(result: Path, worker: subprocess.Popen[bytes]) -> str:
    until = time.monotonic() + 240
    while not (result.exists() and result.read_text()):
        if worker.poll() is not None or time.monotonic() > until:
            raise SystemExit(f"the worker ended with {worker.poll()} before its jobs were done")
        time.sleep(0.02)
    return result.read_text()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
