"""Health in a file, for probes that can run a command or read a file and nothing else.

The file is replaced as a whole, never written into, and only when something changed or it grows old: it says
itself until when it can be believed, so that the file of a process that died, or does not turn, is not.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections.abc import Callable
from typing import Any

__all__ = ["GOOD_SECONDS", "HealthFile", "read_health_file"]

_logger = logging.getLogger("kiwi_worker.observe")

LOOK_SECONDS = 5.0
"""How often it is looked whether something changed."""
WRITE_SECONDS = 20.0
"""How often it is written although nothing did."""
GOOD_SECONDS = 45.0
"""How long what it says can be believed."""
STOP_SECONDS = 2.0


class HealthFile:
    """Keeps a file up to date until it is closed, which removes it.

    Args:
        name: of its thread.
        path: of the file.
        summarize: gives what it says; see `kiwi_worker.observe.health.summary`.
    """

    def __init__(self, name: str, path: str, summarize: Callable[[], dict[str, Any]]) -> None:
        self._path = path
        self._summarize = summarize
        self._changed = threading.Condition()
        self._closed = False
        self._nudged = False
        self._failing = False
        self._written: tuple[float, Any] = (0.0, None)
        self._look()
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    def nudge(self) -> None:
        """Something changed: look now."""
        with self._changed:
            self._nudged = True
            self._changed.notify()

    def close(self) -> None:
        """Stop, and remove the file: who does not run has no health."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join(STOP_SECONDS)
        try:
            if _process_of(self._path) == os.getpid():
                os.unlink(self._path)
        except OSError:
            pass  # somebody was quicker

    def _serve(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._nudged, LOOK_SECONDS)
                self._nudged = False
                if self._closed:
                    return
            self._look()

    def _look(self) -> None:
        try:
            said = self._summarize()
            essence = [
                (one["live"], one["ready"], one["healthy"], tuple(one["reasons"])) for one in said["workers"]
            ]
            written_at, before = self._written
            if essence != before or time.monotonic() - written_at >= WRITE_SECONDS:
                self._write(said)
                self._written = (time.monotonic(), essence)
            self._failing = False
        except Exception as error:  # noqa: BLE001 - a full disk, say, must not end it: the next look may do
            level = logging.DEBUG if self._failing else logging.ERROR
            self._failing = True
            _logger.log(
                level,
                "the health file cannot be written: %s: %s",
                type(error).__name__,
                error,
                extra={"action": "health_file_failed"},
            )

    def _write(self, said: dict[str, Any]) -> None:
        about = {"process_id": os.getpid(), "written_at": round(time.time(), 3), "good_seconds": GOOD_SECONDS}
        beside = f"{self._path}.{os.getpid()}.new"
        with open(beside, "w", encoding="utf-8") as file:
            json.dump({**said, **about}, file)
        os.replace(beside, self._path)


def _process_of(path: str) -> int | None:
    try:
        with open(path, encoding="utf-8") as file:
            return int(json.load(file)["process_id"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def read_health_file(path: str) -> dict[str, Any]:
    """What the file says.

    Raises:
        OSError: it is not there, or cannot be read.
        ValueError: it is no health file, or too old to be believed; the text says which.
    """
    with open(path, encoding="utf-8") as file:
        try:
            said = json.load(file)
            age = time.time() - said["written_at"]
            good = float(said["good_seconds"])
        except (ValueError, KeyError, TypeError):
            raise ValueError(f"{path} is no health file") from None
    # A clock that was set back makes files of the future: how old they are nobody knows.
    if abs(age) > good:
        raise ValueError(
            f"the health file was last written {age:.0f} s ago: its worker is gone, or does not turn"
        )
    return dict(said)
