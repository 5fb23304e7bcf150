"""A TCP proxy in front of a real server: links that are cut, late, slow, silent, or broken at random."""

from __future__ import annotations

import random
import socket
import threading
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Literal
from urllib.parse import urlsplit

from kiwi_worker.testing.link import Link, LinkFault, LinkRules, StruckFault
from kiwi_worker.testing.listener import Listener

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["FaultProxy"]

_CONNECT_SECONDS = 5.0
_ALL_FAULTS: tuple[LinkFault, ...] = ("drop_request", "drop_answer", "partial_answer", "stall")


class FaultProxy:
    """A TCP proxy; use it as a context manager and give workers its `url`.

    It knows no protocol. What it calls a request is what a client sends after it was last answered, which is
    right for HTTP/1.1 and near enough for gRPC.

    Args:
        target: the real server: an address such as `http://127.0.0.1:8420`, or a host and port.
        host: the address to listen on.
        port: the port; 0 for any free one.
        delay_seconds: how late every piece of data arrives, in each direction.
        bytes_per_second: the speed of each direction of a connection; None for no limit.
        idle_seconds: drop connections over which nothing went for so long; None to keep them.
        fault_rate: the chance, 0 to 1, that a fault strikes.
        per: what the chance is drawn for: each `request`, or each `connection` once.
        faults: the faults to choose from: `drop_request` (the connection is cut and the server never sees the
            request), `drop_answer` (the server sees it, its answer is cut off), `partial_answer` (a part of
            the answer passes first), `stall` (the answer comes, late), `half_open` (nothing passes any more
            and nobody is told, until the client leaves).
        stall_seconds: how long a `stall` is.
        seed: makes chance repeatable, as far as the order of requests is; None for real chance.
    """

    def __init__(
        self,
        target: str | tuple[str, int],
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        delay_seconds: float = 0.0,
        bytes_per_second: float | None = None,
        idle_seconds: float | None = None,
        fault_rate: float = 0.0,
        per: Literal["request", "connection"] = "request",
        faults: Sequence[LinkFault] = _ALL_FAULTS,
        stall_seconds: float = 1.0,
        seed: int | None = None,
    ) -> None:
        self._target, self._scheme, self._path = _target(target)
        self._listener = Listener(self._serve, host, port, name="fault-proxy")
        self._random = random.Random(seed)
        self._faults = tuple(faults)
        self._lock = threading.Lock()
        self._links: set[Link] = set()
        self._struck: list[StruckFault] = []
        self._is_cut = False
        self._is_ending = False
        self.fault_rate = fault_rate
        self.per = per
        self.rules = LinkRules(delay_seconds, bytes_per_second, idle_seconds, stall_seconds)

    # --- life ---

    @property
    def address(self) -> tuple[str, int]:
        """Host and real port."""
        return self._listener.address

    @property
    def url(self) -> str:
        """The target's address with the proxy's host and port in it."""
        host, port = self.address
        return f"{self._scheme}://{f'[{host}]' if ':' in host else host}:{port}{self._path}"

    def start(self) -> None:
        """Listen and pass on.

        Raises:
            OSError: the address cannot be bound.
        """
        self._is_ending = False
        self._listener.start()

    def stop(self) -> None:
        """Drop every connection, close every socket, end every thread."""
        self._refuse()
        self.rules.passing.set()
        self._end_links(reset=False)
        self._listener.end_connections(wait=True)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # --- the whole link ---

    def cut(self, how: Literal["reset", "close", "silent"] = "reset") -> None:
        """Cut the link for everybody, until `restore`.

        Args:
            how: `reset`: open connections are reset, new ones refused, as when the server's process dies.
                `close`: the same with orderly ends. `silent`: nothing passes and nobody is told, as when a
                cable is pulled; what was sent meanwhile arrives after `restore`. New connections are accepted
                and silent too.
        """
        if how == "silent":
            self.rules.passing.clear()
            return
        self._is_cut = True
        self._refuse()
        self._end_links(reset=how == "reset")

    def restore(self) -> None:
        """Undo `cut`.

        Raises:
            OSError: the port was taken by somebody else meanwhile.
        """
        self.rules.passing.set()
        if self._is_cut:
            self._is_cut = False
            self.start()

    def drop_connections(self, *, reset: bool = True) -> None:
        """Drop the connections that are open now; new ones are served."""
        self._end_links(reset=reset)

    def delay(self, seconds: float) -> None:
        """Let every piece of data arrive so late from now on, in each direction; 0 for at once."""
        self.rules.delay_seconds = seconds

    def throttle(self, bytes_per_second: float | None) -> None:
        """Pass so many bytes per second from now on, for each direction of a connection; None for all."""
        self.rules.bytes_per_second = bytes_per_second

    def half_open(self) -> None:
        """Let the connections that are open now pass nothing ever again, and tell nobody; new ones work."""
        for link in self._held_links():
            link.go_silent()

    # --- what a test looks at ---

    @property
    def struck(self) -> list[StruckFault]:
        """The random faults that struck, in order."""
        with self._lock:
            return list(self._struck)

    @property
    def open_connections(self) -> int:
        """How many connections of clients are open now."""
        return self._listener.connections

    # --- inside ---

    def _serve(self, sock: socket.socket, number: int) -> None:
        try:
            upstream = socket.create_connection(self._target, _CONNECT_SECONDS)
        except OSError:
            sock.close()
            return
        upstream.settimeout(None)
        link = Link(sock, upstream, number, self.rules, lambda is_first: self._draw(number, is_first))
        with self._lock:
            self._links.add(link)
            is_late = self._is_ending
        if is_late:
            link.end(reset=True)
        try:
            link.run()
        finally:
            with self._lock:
                self._links.discard(link)

    def _draw(self, number: int, is_first: bool) -> LinkFault | None:
        """The fault that strikes the request that begins now, if one does."""
        with self._lock:
            if self.per == "connection" and not is_first:
                return None
            if not self._faults or self._random.random() >= self.fault_rate:
                return None
            fault = self._random.choice(self._faults)
            self._struck.append(StruckFault(fault, number))
            return fault

    def _refuse(self) -> None:
        with self._lock:
            # Seen by connections that were accepted and are not among the links yet.
            self._is_ending = True
        self._listener.stop_listening()

    def _end_links(self, *, reset: bool) -> None:
        for link in self._held_links():
            link.end(reset=reset)

    def _held_links(self) -> list[Link]:
        with self._lock:
            return list(self._links)


def _target(target: str | tuple[str, int]) -> tuple[tuple[str, int], str, str]:
    """Host and port, scheme, and path of what is in front."""
    if not isinstance(target, str):
        return target, "http", ""
    parts = urlsplit(target)
    if not parts.hostname:
        raise ValueError(f"{target!r} is no address: use http://host:port, or a pair of host and port")
    port = parts.port or (443 if parts.scheme in ("https", "grpcs") else 80)
    return (parts.hostname, port), parts.scheme, parts.path
