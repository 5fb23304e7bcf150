"""`kiwi-worker run --reload`: for development, a worker that starts anew when a Python file changes."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from types import FrameType

from kiwi_worker.errors import SettingsError

__all__ = ["reload_on_change"]

_logger = logging.getLogger("kiwi_worker.cli")

_STOP = (signal.SIGTERM, signal.SIGINT)
_PATIENCE_SECONDS = 40.0


def reload_on_change(arguments: Sequence[str]) -> int:
    """Run `kiwi-worker` with these arguments, without `--reload`, anew at each change below this folder.

    Returns:
        The exit status of the last worker; a signal stops it, and then this.

    Raises:
        SettingsError: the extra is not installed.
    """
    try:
        from watchfiles import PythonFilter, watch
    except ModuleNotFoundError:
        raise SettingsError("--reload", "needs its extra: pip install 'kiwi-worker[reload]'") from None
    command = [sys.executable, "-m", "kiwi_worker", *(word for word in arguments if word != "--reload")]
    child = _Child(command)
    stopped = threading.Event()

    def stop(number: int, frame: FrameType | None) -> None:
        stopped.set()

    before = {number: signal.signal(number, stop) for number in _STOP}
    try:
        child.start()
        for _ in watch(os.getcwd(), watch_filter=PythonFilter(), stop_event=stopped, raise_interrupt=False):
            child.stop()
            print("kiwi-worker run: a file changed, starting anew", file=sys.stderr)  # noqa: T201
            child.start()
        return child.stop()
    finally:
        child.stop()
        for number, handler in before.items():
            signal.signal(number, handler)


class _Child:
    """The worker's process, in a group of its own: a Ctrl-C of the terminal must not reach it twice."""

    def __init__(self, command: list[str]) -> None:
        self._command = command
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._process = subprocess.Popen(self._command, start_new_session=True)

    def stop(self) -> int:
        process = self._process
        if process is None:
            return 0
        if process.poll() is None:
            process.terminate()
        try:
            return process.wait(_PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()
