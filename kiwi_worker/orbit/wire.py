"""The six calls of the protocol, whichever binding carries them, and what they bring.

A wire is one thread's; what all wires of a worker share is in `Servers` and `Credentials`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec

from kiwi_worker.errors import KiwiWorkerError

__all__ = ["Ack", "Assignment", "Credentials", "Refused", "Registered", "Servers", "Wire"]

NOT_LEADER = "NOT_LEADER"
UNKNOWN_SESSION = "UNKNOWN_SESSION"


class Assignment(msgspec.Struct):
    """One task (section "The task assignment"); `input` is JSON text, or a value that was decoded already."""

    token: str
    task_name: str
    contract_version: str
    execution_id: str = ""
    workflow: str = ""
    workflow_version: str = ""
    step_id: str = ""
    input: msgspec.Raw = msgspec.Raw(b"null")
    idempotency_key: str = ""
    attempt: int = 1
    redelivery: bool = False
    deadline_ms: int | None = None
    timeout_ms: int | None = None


class Registered(msgspec.Struct):
    """A session."""

    worker_session_id: str
    heartbeat_interval_ms: int = 5000
    session_timeout_ms: int = 30000
    warnings: list[str] = []


class Ack(msgspec.Struct):
    """What the runtime says to a result: final, whether accepted or not."""

    accepted: bool = True
    reason: str | None = None


class Refused(KiwiWorkerError):
    """The runtime, or a proxy before it, refused a call.

    Attributes:
        status: the HTTP status, or the one that stands for a gRPC status.
        code: the ORBIT error code; "" when there is none, as from a proxy.
        ours: whether the answer is the protocol's own, and not a proxy's.
        retry_seconds: how long it asked to wait; None when it did not say.
    """

    def __init__(
        self,
        call: str,
        status: int,
        code: str,
        message: str,
        *,
        ours: bool,
        retry_seconds: float | None = None,
    ) -> None:
        super().__init__(f"{call} was refused with {status} {code or 'without a code'}: {message}")
        self.status = status
        self.code = code
        self.ours = ours
        self.retry_seconds = retry_seconds

    @property
    def lost_session(self) -> bool:
        """Whether the session is unknown; a 404 without the code is a proxy's and says nothing about it."""
        return self.code == UNKNOWN_SESSION


class Wire(Protocol):
    """The calls. Each raises NotSent, Ambiguous, ProtocolError or Refused."""

    def register(self, request: dict[str, Any]) -> Registered:
        """Open a session."""

    def poll(self, session_id: str, wait_ms: int) -> Assignment | None:
        """Wait for a task."""

    def heartbeat(self, session_id: str, limit_seconds: float) -> Sequence[str]:
        """Keep the session alive; gives the tokens to cancel."""

    def result(self, route: str, body: bytes, limit_seconds: float) -> Ack:
        """Report an attempt; route is `complete` or `fail`, the body the JSON of its request."""

    def unregister(self, session_id: str) -> None:
        """Close a session."""

    def close(self) -> None:
        """Close the connections."""

    def interrupt(self) -> None:
        """End a call that another thread waits in."""


class Servers:
    """Which of several servers is used now; one that fails is left for the next, the last for the first."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._lock = threading.Lock()
        self.current = 0

    def __len__(self) -> int:
        return self._count

    def leave(self, index: int) -> None:
        """This one failed; the next is used, unless somebody moved on already."""
        with self._lock:
            if self.current == index:
                self.current = (index + 1) % self._count


class Credentials:
    """The bearer token; a file is read again when the runtime refuses it."""

    def __init__(self, read: Callable[[], str] | None) -> None:
        self._read = read
        self._lock = threading.Lock()
        self._header: str | None = None

    def header(self) -> str | None:
        """The value of the authorization header; the same object until it is refused."""
        if self._read is None:
            return None
        if self._header is None:
            with self._lock:
                self._header = self._header or f"Bearer {self._read()}"
        return self._header

    def refused(self) -> None:
        """Read it again before the next call."""
        self._header = None
