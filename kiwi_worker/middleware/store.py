"""What a store of the middleware can do: atomic operations, each durable when it returns.

The middleware never edits rows. It asks for one of these steps, and a store carries it out as a whole or not
at all, against every other step, from wherever it comes. What happens through one step and concerns somebody
who waits (a call for a worker, an ending for a caller, feedback for a stream) is told to a `Listener`.
"""

from __future__ import annotations

from typing import Any, Protocol

import msgspec

from .records import Call, Ending, Feedback, Registration, Verdict
from .roster import WorkerEntry

__all__ = ["Listener", "SecretRecord", "Store", "StoreFailure"]


class StoreFailure(Exception):
    """The store cannot make anything durable at the moment."""


class SecretRecord(msgspec.Struct, kw_only=True, frozen=True):
    """A secret as it is kept: never itself, only its salted hash."""

    secret_id: str
    service_id: str
    role: str
    salt: bytes
    digest: bytes
    created_at: float


class Listener(Protocol):
    """Who is told what happened; called on the event loop, must not block."""

    def worker_has_work(self, worker: WorkerEntry, call: Call) -> None:
        """A call was put into this worker's inbox."""

    def worker_stops(self, worker: WorkerEntry) -> None:
        """This worker gets nothing more: its open waits end."""

    def call_ended(self, ending: Ending) -> None:
        """A call has its ending, and the ending is durable."""

    def feedback_came(self, feedback: Feedback) -> None:
        """A worker sent feedback for a call."""


class Store(Protocol):
    """The atomic operations. All raise `StoreFailure` when nothing can be made durable."""

    async def open(self, listener: Listener) -> None:
        """Make ready; calls and workers of an earlier run are there again."""

    async def close(self) -> None:
        """Make durable what is under way, and let go."""

    # services, secrets, settings

    async def signing_key(self) -> str:
        """The key of all tokens, made at the first start and kept."""
        ...

    async def secrets(self, service_id: str) -> list[SecretRecord]:
        """The secrets of a service; none when there is no such service."""
        ...

    async def application_settings(self, service_id: str) -> dict[str, str]:
        """The settings that a registration is answered with."""
        ...

    # workers

    async def worker(self, service_id: str, worker_id: str) -> WorkerEntry | None:
        """A worker that is registered and not dead; also counts as having heard of it."""
        ...

    async def workers(self, service_id: str) -> list[WorkerEntry]:
        """The workers of a service that are registered and not dead."""
        ...

    async def register(self, registration: Registration) -> None:
        """A worker process started."""

    async def leave(self, worker: WorkerEntry) -> None:
        """A worker said that it stops."""

    async def take_all(self, worker: WorkerEntry) -> list[Call]:
        """The atomic drain of a worker's inbox."""
        ...

    async def put_back(self, worker: WorkerEntry, calls: list[Call]) -> None:
        """Undo a drain whose answer could not be written."""

    async def try_lock(self, worker: WorkerEntry, request_id: str) -> Verdict:
        """Give the lock to this worker if nobody else owns it."""
        ...

    async def put_answer(
        self,
        service_id: str,
        worker_id: str,
        request_id: str,
        *,
        status: str,
        error_text: str | None,
        result: bytes | None,
    ) -> Verdict:
        """End a call with a worker's answer if it has no ending yet."""
        ...

    async def add_feedback(
        self, service_id: str, worker_id: str, feedback: Feedback, *, persist: bool
    ) -> Verdict:
        """Pass on a piece of feedback, and keep it when the worker asks for that."""
        ...

    # callers

    async def enqueue(self, call: Call) -> str:
        """Accept a call; its request id, or an earlier one's when the idempotency key was used before."""
        ...

    async def fetch(self, service_id: str, request_id: str) -> Call | Ending | None:
        """An open call, or how it ended, or None when there is none (any more)."""
        ...

    async def cancel(self, service_id: str, request_id: str) -> Verdict:
        """End a call because its caller says so."""
        ...

    async def feedback(self, call: Call | Ending, after: int) -> list[Feedback]:
        """What is known of a call's feedback, in order, from the number after this one on."""
        ...

    # time

    async def sweep(self) -> None:
        """Expire calls, bury dead workers, drop old results; called about every half second."""

    def facts(self) -> dict[str, Any]:
        """Counts for health and people: open calls, workers, whether writing works."""
        ...
