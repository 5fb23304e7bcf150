"""No process of ours is left behind when the one that started it is gone."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence

__all__ = ["end_with_parent", "ending_with_us"]

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


def ending_with_us(arguments: Sequence[str]) -> list[str]:
    """A command that runs Python with these arguments, and gets SIGTERM when this process ends.

    On Linux. It has to be started by the main thread: the kernel takes a thread for the parent.
    """
    return [sys.executable, "-m", "kiwi_worker.orphans", str(os.getpid()), *arguments]


def _main(parent: str, *arguments: str) -> None:
    end_with_parent(int(parent), signal.SIGTERM)
    os.execv(sys.executable, [sys.executable, *arguments])


if __name__ == "__main__":
    _main(*sys.argv[1:])
