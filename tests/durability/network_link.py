"""A link between this network namespace and another one, which can be cut, slowed down and restored."""

from __future__ import annotations

import random
import secrets
import shutil
import subprocess
from types import TracebackType

import pytest

__all__ = ["Link"]

SLOW = ("tbf", "rate", "64kbit", "burst", "1600", "limit", "65536")
"""A packet of 500 bytes is a sixteenth of a second under way, and waits for those before it."""


class Link:
    """Two ends of a virtual cable; needs root.

    Attributes:
        here: the address of the end in this namespace.
        there: the address of the other end.
    """

    def __init__(self) -> None:
        if shutil.which("ip") is None or shutil.which("tc") is None:
            pytest.skip("needs iproute2")
        # The kernel takes a moment to forget a name.
        name = f"kw{secrets.token_hex(4)}"
        self._space, self._ends = name, (f"{name}a", f"{name}b")
        subnet = f"10.{random.randrange(201, 251)}.{random.randrange(256)}"
        self.here, self.there = f"{subnet}.1", f"{subnet}.2"

    def __enter__(self) -> Link:
        made = subprocess.run(
            ["ip", "netns", "add", self._space], capture_output=True, text=True, check=False
        )
        if made.returncode:
            pytest.skip(f"this machine gives no network namespaces: {made.stderr.strip()}")
        near, far = self._ends
        try:
            run("link", "add", near, "type", "veth", "peer", "name", far, "netns", self._space)
            run("addr", "add", f"{self.here}/24", "dev", near)
            run("link", "set", near, "up")
            run("-n", self._space, "addr", "add", f"{self.there}/24", "dev", far)
            run("-n", self._space, "link", "set", "lo", "up")
            self.restore()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._remove()

    def _remove(self) -> None:
        # The cable goes with the namespace that one of its ends is in, once nothing runs there.
        run("netns", "del", self._space)

    def command(self, *words: str) -> tuple[str, ...]:
        """A command that runs at the other end."""
        return ("ip", "netns", "exec", self._space, *words)

    def cut(self) -> None:
        """Nothing arrives any more, and nobody is told."""
        run("-n", self._space, "link", "set", self._ends[1], "down")

    def slow_down(self) -> None:
        """What is sent takes its time, in both directions."""
        subprocess.run(["tc", "qdisc", "replace", "dev", self._ends[0], "root", *SLOW], check=True)
        subprocess.run(
            self.command("tc", "qdisc", "replace", "dev", self._ends[1], "root", *SLOW), check=True
        )

    def restore(self) -> None:
        """As it was at first."""
        run("-n", self._space, "link", "set", self._ends[1], "up")
        for command in (
            ("tc", "qdisc", "del", "dev", self._ends[0], "root"),
            self.command("tc", "qdisc", "del", "dev", self._ends[1], "root"),
        ):
            # There is nothing to delete when it was not slow.
            subprocess.run(command, check=False, capture_output=True)


def run(*words: str) -> None:
    """Run `ip`."""
    subprocess.run(["ip", *words], check=True)
