"""What waits for workers at the misbehaving Kiwi server, and who holds which lock."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

__all__ = ["Message", "MessageQueue"]


@dataclass(eq=False)
class Message:
    """One message that waits.

    Attributes:
        raw: the element of the drained array, as bytes.
        request_id: its id, or None for a raw one.
        lock_required: offered to every worker until one holds the lock, instead of to the first that drains.
        worker_id: the only worker it is for, or None for any.
        offered_to: the workers that have drained it.
    """

    raw: bytes
    request_id: str | None = None
    lock_required: bool = False
    worker_id: str | None = None
    offered_to: set[str] = field(default_factory=set)


@dataclass(eq=False)
class MessageQueue:
    """The messages that wait, oldest first, and the locks. Callers hold the server's lock."""

    locks: dict[str, str] = field(default_factory=dict)
    refused: dict[str | None, int] = field(default_factory=dict)
    _waiting: list[Message] = field(default_factory=list)
    _answered: set[str] = field(default_factory=set)

    def put(self, message: Message) -> None:
        """Let a message wait."""
        self._waiting.append(message)

    def take(self, worker_id: str) -> tuple[Message, ...]:
        """Everything that waits for this worker, in one go."""
        taken = tuple(message for message in self._waiting if self._is_for(message, worker_id))
        for message in taken:
            message.offered_to.add(worker_id)
        self._waiting = [message for message in self._waiting if self._waits_on(message)]
        return taken

    def put_back(self, messages: Iterable[Message]) -> None:
        """Hand drained messages out once more, in front, whatever becomes of them meanwhile."""
        again = [Message(message.raw, worker_id=message.worker_id) for message in messages]
        self._waiting = again + self._waiting

    def lock(self, request_id: str, worker_id: str) -> int:
        """The status of a lock request: 200 when the worker holds it now, else the refusal."""
        status = self.refused.get(request_id, self.refused.get(None))
        if status is not None:
            return status
        return 200 if self.locks.setdefault(request_id, worker_id) == worker_id else 409

    def forget(self, request_id: str) -> None:
        """Offer this message to nobody any more: it is answered."""
        self._answered.add(request_id)

    def size(self, worker_id: str | None = None) -> int:
        """How many messages wait: for this worker, or at all."""
        if worker_id is None:
            return sum(self._waits_on(message) for message in self._waiting)
        return sum(self._is_for(message, worker_id) for message in self._waiting)

    def _waits_on(self, message: Message) -> bool:
        if message.request_id in self._answered:
            return False
        return message.lock_required or not message.offered_to

    def _is_for(self, message: Message, worker_id: str) -> bool:
        return (
            message.worker_id in (None, worker_id)
            and worker_id not in message.offered_to
            and message.request_id not in self._answered
            and self.locks.get(message.request_id or "", worker_id) == worker_id
        )
