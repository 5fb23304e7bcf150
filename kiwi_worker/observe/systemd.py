"""Telling systemd how the service is (sd_notify): ready, stopping, and that it still turns.

Only when systemd asks for it, by the variables `NOTIFY_SOCKET` and `WATCHDOG_USEC`.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Callable, Mapping

__all__ = ["Systemd"]

_logger = logging.getLogger("kiwi_worker.observe")

SHARE = 0.4
"""After which share of the watchdog's time the next sign of life is given."""


class Systemd:
    """The service manager's ear; deaf when this process was not started by one that listens.

    Args:
        is_live: whether a sign of life may be given.
        environ: the variables; those of this process when left out.

    Attributes:
        interval_seconds: how often `tick` is to be called; None for never.
    """

    def __init__(self, is_live: Callable[[], bool], environ: Mapping[str, str] | None = None) -> None:
        environ = os.environ if environ is None else environ
        self._is_live = is_live
        self._address = environ.get("NOTIFY_SOCKET", "")
        self.interval_seconds = _watchdog_seconds(environ) if self._address else None
        self._due = 0.0
        self._held_back = False

    def ready(self) -> None:
        """The start is done."""
        self._say("READY=1")

    def stopping(self) -> None:
        """The shutdown begins."""
        self._say("STOPPING=1")

    def tick(self) -> None:
        """Give a sign of life, when one is due and it is true."""
        now = time.monotonic()
        if self.interval_seconds is None or now < self._due:
            return
        self._due = now + self.interval_seconds * 0.9
        live = self._is_live()
        if live:
            self._say("WATCHDOG=1")
        elif not self._held_back:
            _logger.critical(
                "a loop is stuck: systemd gets no sign of life any more",
                extra={"action": "watchdog_held_back"},
            )
        self._held_back = not live

    def _say(self, text: str) -> None:
        if not self._address:
            return
        # "@" stands for the zero byte of an abstract address.
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
                sock.setblocking(False)
                sock.sendto(text.encode(), address)
        except OSError as error:
            _logger.warning("systemd was not told %s: %s", text, error, extra={"action": "notify_failed"})


def _watchdog_seconds(environ: Mapping[str, str]) -> float | None:
    microseconds, process = environ.get("WATCHDOG_USEC", ""), environ.get("WATCHDOG_PID", "")
    if not microseconds.isdecimal() or not int(microseconds) or process not in ("", str(os.getpid())):
        return None
    return int(microseconds) / 1e6 * SHARE
