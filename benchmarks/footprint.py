"""What a process costs before it does anything: `python footprint.py import MODULE` or `idle SECONDS`.

An idle worker takes its middleware from the environment.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from pathlib import Path


def resident_mib() -> float:
    """Resident memory of this process."""
    line = next(
        line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS")
    )
    return int(line.split()[1]) / 1024


def import_time(module: str) -> None:
    """Print how long an import takes."""
    since = time.perf_counter()
    importlib.import_module(module)
    print(json.dumps({"import_ms": (time.perf_counter() - since) * 1e3, "resident_mib": resident_mib()}))


def idle(seconds: float) -> None:
    """Print what an eager worker costs that waits for work, everything it needs loaded."""
    from kiwi_worker import Worker

    worker = Worker(run_mode="eager")

    @worker.method
    def hello(name: str, n: int = 0) -> str:
        return "hello " + name

    with worker:
        time.sleep(2)
        before = time.process_time()
        time.sleep(seconds)
        cpu = time.process_time() - before
        print(json.dumps({"cpu_ms_in_30_s": cpu * 1e3 * 30 / seconds, "resident_mib": resident_mib()}))
        sys.stdout.flush()


if __name__ == "__main__":
    if sys.argv[1] == "import":
        import_time(sys.argv[2])
    else:
        idle(float(sys.argv[2]))
