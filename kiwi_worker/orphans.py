"""No process of ours is left behind when the one that started it is gone."""

from __future__ import annotations

import os
import signal
import sys

__all__ = ["end_with_parent"]

_PR_SET_PDEATHSIG = 1


def end_with_parent(parent: int, number: int) -> None:
    """Let the kernel send this process a signal when its parent ends, however that goes.

    Only Linux can do that, and `exec` undoes it not; elsewhere a pipe from the parent has to tell.

    Args:
        parent: the process id of the parent; when it is gone already the signal comes at once.
        number: the signal.
    """
    if sys.platform == "linux":
        # Loaded here: it is worth a megabyte that other processes can do without.
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:
        signal.raise_signal(number)
