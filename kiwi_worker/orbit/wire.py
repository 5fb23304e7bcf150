"""The six calls of the protocol, whichever binding carries them, and what they bring.

A wire is one thread's. Nothing above this module knows whether it is HTTP or gRPC.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from kiwi_worker.errors import KiwiWorkerError, RegistrationError, TransportError

__all__ = ["Ack", "Assignment", "BrokenOff", "Refused", "Registered", "Wire", "WrongProto"]

NOT_LEADER = "NOT_LEADER"
UNKNOWN_SESSION = "UNKNOWN_SESSION"

LONGEST_WAIT_MS = 60_000
"""The page caps a longer wait; so does every wire, since the read time-out hangs on it."""
READ_MARGIN_SECONDS = 15.0
"""How much longer than its wait a poll may take, as with the official SDKs."""
REGISTER_SECONDS = 15.0


class Assignment(msgspec.Struct):
    """One task (section "The task assignment"); `input` is JSON text."""

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
    """A session (section "Register a worker")."""

    worker_session_id: str
    heartbeat_interval_ms: int = 5000
    session_timeout_ms: int = 30000
    warnings: list[str] | None = None


class Ack(msgspec.Struct):
    """What the runtime says to a result: final, whether accepted or not (section "Result acceptance")."""

    accepted: bool
    reason: str = ""


class BrokenOff(TransportError):
    """The call was ended by `interrupt`, by us."""


class WrongProto(RegistrationError):
    """An answer over gRPC that only makes sense when the field numbers are wrong; no repetition helps."""

    def __init__(self, seen: str) -> None:
        super().__init__(
            f"proto: {seen}: its field numbers are not the runtime's; give the runtime's own worker.proto"
        )


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
    """The calls. Each raises a TransportError, ProtocolError or Refused; over gRPC also WrongProto."""

    def register(self, request: dict[str, Any], limit_seconds: float) -> Registered:
        """Open a session."""

    def poll(self, session_id: str, wait_ms: int) -> Assignment | None:
        """Wait for a task."""

    def heartbeat(self, session_id: str, limit_seconds: float) -> Sequence[str]:
        """Keep the session alive; gives the tokens to cancel. The limit counts connecting, too."""

    def result(self, route: str, body: bytes, limit_seconds: float) -> Ack:
        """Report an attempt; route is `complete` or `fail`, the body the JSON of its request."""

    def unregister(self, session_id: str, limit_seconds: float) -> None:
        """Close a session."""

    def close(self) -> None:
        """Close the connections that are this wire's own."""

    def interrupt(self) -> None:
        """From another thread: end the running call now, or without one, the next; it raises BrokenOff."""
