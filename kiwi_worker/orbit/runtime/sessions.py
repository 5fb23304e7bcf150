"""Worker sessions: who is connected, and which attempts each one holds."""

from __future__ import annotations

from dataclasses import dataclass, field

from kiwi_worker.orbit.runtime.model import Contract, WorkerRecord
from kiwi_worker.orbit.runtime.queue import TaskKey


@dataclass(eq=False)
class Session:
    """One registration that is alive.

    Attributes:
        keys: the tasks it takes.
        held: the tokens it polled and that are still in flight, each with its execution.
    """

    id: str
    worker_id: str
    keys: frozenset[TaskKey]
    last_contact_ms: int
    held: dict[str, str] = field(default_factory=dict)
    _cancels: list[str] = field(default_factory=list)
    _told: set[str] = field(default_factory=set)

    def stop(self, token: str) -> None:
        """List the token in the next heartbeat; once, however often this is called."""
        if token not in self._told:
            self._told.add(token)
            self._cancels.append(token)

    def answered(self, token: str) -> None:
        """It reported this token, so it holds it no longer and needs not be told to stop."""
        if token in self._cancels:
            self._cancels.remove(token)

    def take_cancels(self) -> list[str]:
        """The tokens to list now; each is given once."""
        cancels, self._cancels = self._cancels, []
        return cancels


def keys_of(contracts: tuple[Contract, ...], runtime: str) -> frozenset[TaskKey]:
    """What a session with these contracts takes: steps without `using`, and those that name its runtime."""
    pairs = [(contract.task_name, contract.contract_version) for contract in contracts]
    return frozenset(TaskKey(*pair, using) for pair in pairs for using in ("", runtime.lower()))


class Sessions:
    """All live sessions, and all workers ever registered."""

    def __init__(self) -> None:
        self._sessions: dict[str, Session] = {}
        self.workers: dict[str, WorkerRecord] = {}

    def open(self, session: Session, worker: WorkerRecord) -> None:
        """Add a session; several may have the same worker id."""
        self._sessions[session.id] = session
        self.workers[worker.worker_id] = worker

    def get(self, session_id: str | None) -> Session | None:
        """The live session of this id, or None."""
        return None if session_id is None else self._sessions.get(session_id)

    def close(self, session: Session) -> None:
        """Forget a session."""
        self._sessions.pop(session.id, None)

    def touch(self, session: Session, now_ms: int) -> None:
        """The runtime heard from it."""
        session.last_contact_ms = now_ms
        self.workers[session.worker_id].last_contact_ms = now_ms

    def of_worker(self, worker_id: str) -> list[Session]:
        """The live sessions of a worker id."""
        return [session for session in self._sessions.values() if session.worker_id == worker_id]
