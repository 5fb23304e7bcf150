"""The part of the misbehaving server that knows no protocol: connections, calls, faults, waiting."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar

from kiwi_worker.testing.calls import Call, CallLog, Outcome
from kiwi_worker.testing.control import answer_control
from kiwi_worker.testing.exchange import Exchange
from kiwi_worker.testing.faults import Fault
from kiwi_worker.testing.listener import Listener
from kiwi_worker.testing.schedule import ArmedFault, FaultSchedule, Times
from kiwi_worker.testing.wire import BadRequest, Line, Reply, Request

if TYPE_CHECKING:
    from typing_extensions import Self

    from kiwi_worker.testing.kiwi_server import KiwiServer
    from kiwi_worker.testing.orbit_server import OrbitServer

__all__ = ["MisbehavingServer"]

_HANDS_OUT = frozenset({"drain", "poll"})


@dataclass(kw_only=True, eq=False, repr=False)
class MisbehavingServer:
    """An HTTP/1.1 server that answers a worker rightly until it is told to do it wrongly.

    `MisbehavingServer.kiwi(…)` and `MisbehavingServer.orbit(…)` make the two kinds; each is a context manager
    that listens inside the block and has closed every socket and ended every thread after it.

    Args:
        host: the address to listen on.
        port: the port; 0 for any free one.
        prefix: a path in front of every path of the protocol, such as `/gateway`.
        seed: makes faults by probability repeatable.
        keep_alive_seconds: close connections that are idle for longer, without a word; None to keep them.
        ssl_context: serve TLS with this server-side context.
    """

    host: str = "127.0.0.1"
    port: int = 0
    prefix: str = ""
    seed: int | None = None
    keep_alive_seconds: float | None = None
    ssl_context: ssl.SSLContext | None = None

    call_names: ClassVar[frozenset[str]] = frozenset()
    """The names that `fault` and `calls` know."""

    kiwi: ClassVar[type[KiwiServer]]
    """The server side of the Kiwi worker protocol."""

    orbit: ClassVar[type[OrbitServer]]
    """The server side of the ORBIT worker protocol, over HTTP."""

    def __post_init__(self) -> None:
        self._changed = threading.Condition()
        self._closing = threading.Event()
        self._log = CallLog(self._changed)
        self._schedule = FaultSchedule(self._changed, self.call_names, self.seed)
        self._listener = Listener(
            self._serve, self.host, self.port, name="misbehaving-server", ssl_context=self.ssl_context
        )

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.url}>"

    # --- life ---

    @property
    def url(self) -> str:
        """The base address a worker is given: scheme, host, port and prefix."""
        host, port = self._listener.address
        scheme = "http" if self.ssl_context is None else "https"
        return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}{self.prefix}"

    @property
    def address(self) -> tuple[str, int]:
        """Host and real port."""
        return self._listener.address

    def start(self) -> None:
        """Listen and serve. After a `stop` it serves on the same port again and remembers everything.

        Raises:
            OSError: the address cannot be bound.
        """
        self._closing.clear()
        self._listener.start()

    def stop(self) -> None:
        """Refuse new connections, break off the open ones, and end all threads."""
        self._closing.set()
        with self._changed:
            self._changed.notify_all()
        self._listener.stop()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # --- faults ---

    def fault(
        self,
        call: str,
        fault: Fault,
        *,
        times: Times = None,
        probability: float | None = None,
        after: bool | None = None,
        idle_too: bool = False,
        where: Callable[[Call], bool] | None = None,
    ) -> ArmedFault:
        """Arm a fault. Faults on the same call strike in the order they were armed, one a call.

        Args:
            call: a name out of `call_names`, a path pattern (`/worker/lock_request/*`), or `*`.
            fault: what goes wrong.
            times: how many calls it strikes, or `"always"`. Default: once; with a probability, always.
            probability: the chance that it strikes a call; default: it does.
            after: strike after the server acted (its answer is lost, late or spoiled: an answer recorded, a
                lock taken, messages handed out) instead of before (nothing has happened on the server).
                Default: the fault's own first moment.
            idle_too: strike also a drain or poll that has nothing to hand out. Only matters for faults that
                strike after the server acted: by default those wait for one that carries work.
            where: strike only calls of which this says True.

        Returns:
            The armed fault: `struck` counts, `disarm()` ends it.

        Raises:
            ValueError: no such call; a moment this fault does not know; a wrong count or probability.
        """
        return self._schedule.arm(
            call,
            fault,
            times=times,
            probability=probability,
            after=after,
            idle_too=idle_too,
            where=where,
        )

    def clear_faults(self) -> None:
        """Behave from now on. What has struck already goes on (a stall, a half-open connection)."""
        self._schedule.clear()

    @property
    def armed_faults(self) -> list[ArmedFault]:
        """The faults that can still strike, in order."""
        return self._schedule.all()

    # --- what was seen ---

    @property
    def calls(self) -> list[Call]:
        """Every request so far, in the order they were read."""
        return self._log.all()

    def calls_named(self, name: str) -> list[Call]:
        """Every request of this name so far."""
        return self._log.all(name)

    @property
    def open_connections(self) -> int:
        """How many connections are open now."""
        return self._listener.connections

    def wait_until(self, condition: Callable[[], object], timeout: float = 10.0, what: str = "") -> None:
        """Wait until `condition()` is true; it is looked at whenever something happened on the server.

        Args:
            condition: called with the server's lock held: no network, no waiting in it.
            timeout: seconds.
            what: said in the error: what did not come.

        Raises:
            TimeoutError: it did not become true; the text lists the last calls.
        """
        deadline = time.monotonic() + timeout
        with self._changed:
            while not condition():
                left = deadline - time.monotonic()
                if left <= 0:
                    missing = what or "the condition"
                    raise TimeoutError(f"{missing} did not come in {timeout:g} s; {self._story()}")
                self._changed.wait(min(left, 0.05))

    def wait_for_calls(
        self,
        name: str,
        count: int = 1,
        timeout: float = 10.0,
        *,
        where: Callable[[Call], bool] | None = None,
        ended: bool = True,
    ) -> list[Call]:
        """Wait for calls of this name, and return all of them.

        Args:
            name: the call's name.
            count: how many there have to be, counted from the server's start.
            timeout: seconds.
            where: count only those of which this says True.
            ended: count only those that have ended (a hanging drain has not).

        Raises:
            TimeoutError: they did not come.
        """

        def found() -> list[Call]:
            calls = self._log.all(name, where)
            return [call for call in calls if call.outcome != "pending"] if ended else calls

        self.wait_until(lambda: len(found()) >= count, timeout, f"{count} x {name}")
        return found()

    def _story(self) -> str:
        recent = [
            f"{call.name} -> {call.status or call.outcome}" + (f" [{call.fault}]" if call.fault else "")
            for call in self.calls[-10:]
        ]
        return f"last calls: {', '.join(recent)}" if recent else "there was no call at all"

    # --- serving ---

    def _name_of(self, request: Request) -> str | None:
        """The name of the call, or None when the protocol has none such."""
        raise NotImplementedError

    def _perform(self, exchange: Exchange) -> Reply:
        """Do what is asked and return the true answer."""
        raise NotImplementedError

    def _take_back(self, reply: Reply) -> None:
        """Put what `reply.taken` lists back, for the next to ask."""

    def enqueue_described(self, keywords: dict[str, Any]) -> str:
        """Enqueue what these keywords describe, for the control path; its id."""
        raise NotImplementedError

    def answers(self) -> list[dict[str, Any]]:
        """What workers have answered, for the control path."""
        raise NotImplementedError

    def _control(self, request: Request) -> Reply | None:
        """The answer of a control path, or None when it is none."""
        return answer_control(self, request) if request.path.startswith("/_") else None

    def _serve(self, sock: socket.socket, number: int) -> None:
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            line = Line(sock, number, self.keep_alive_seconds)
        except OSError:
            sock.close()
            return
        try:
            while self._serve_next(line):
                pass
        except (OSError, BadRequest):
            pass
        finally:
            line.close()

    def _serve_next(self, line: Line) -> bool:
        """Serve one request; whether the connection may serve another."""
        request = line.read_request()
        if request is None or self._closing.is_set():
            return False
        control = self._control(request)
        if control is not None:
            line.send(control.head(time.time()) + control.payload())
            return not request.wants_close
        return self._serve_call(line, replace(request, prefix=self.prefix))

    def _call_name(self, request: Request) -> str:
        is_ours = request.target.startswith(f"{self.prefix}/")
        return (self._name_of(request) if is_ours else None) or "other"

    def _serve_call(self, line: Line, request: Request) -> bool:
        call = self._log.open(self._call_name(request), request, line.number)
        exchange = Exchange(
            line, request, call, perform=self._perform, take_back=self._take_back, closing=self._closing
        )
        outcome: Outcome = "gone"
        try:
            self._answer(exchange)
            outcome = "answered"
        finally:
            self._log.close(call, outcome)
        return exchange.keep

    def _answer(self, exchange: Exchange) -> None:
        armed = self._schedule.take(exchange.call, "before")
        if armed is None:
            reply = exchange.act()
            idle = exchange.call.name in _HANDS_OUT and not reply.taken
            armed = self._schedule.take(exchange.call, "after", idle=idle)
        if armed is None:
            exchange.answer(exchange.act())
        else:
            exchange.call.fault = armed.fault
            armed.fault.strike(exchange)
