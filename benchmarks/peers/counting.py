"""What the no-op job of every peer does: count, and write the figures when the last one ran.

The CPU is that of all processes of the worker's process group, so that a parent counts as well as its child.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

COUNT = int(os.environ.get("BENCH_COUNT", "0"))
WARM = 100
TICKS = os.sysconf("SC_CLK_TCK")

_done = 0
_since = 0.0
_cpu = 0.0


def group_cpu_seconds() -> float:
    """User and system time of this process group, seconds."""
    group, total = os.getpgrp(), 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[2]) == group:
            total += int(fields[11]) + int(fields[12])
    return total / TICKS


def count() -> None:
    """One job ran."""
    global _done, _since, _cpu
    _done += 1
    if _done == WARM:
        _since, _cpu = time.perf_counter(), group_cpu_seconds()
    elif _done == COUNT:
        seconds, cpu, jobs = time.perf_counter() - _since, group_cpu_seconds() - _cpu, COUNT - WARM
        figures = {"per_second": jobs / seconds, "cpu_us": cpu / jobs * 1e6}
        Path(os.environ["BENCH_RESULT"]).write_text(json.dumps(figures))
