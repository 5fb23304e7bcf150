"""How much memory this process occupies."""

from __future__ import annotations

import os
import sys

__all__ = ["resident_mib"]

MIB = 1024 * 1024


def resident_mib() -> float:
    """The resident memory in MiB; where the system does not tell it, the most it ever was."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / MIB
    except OSError:
        pass
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (MIB if sys.platform == "darwin" else 1024)
