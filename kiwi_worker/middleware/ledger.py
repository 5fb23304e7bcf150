"""Delivery as pure state: who gets which call, who owns it, how it ends. No input or output, no clock.

Every method is one atomic step: it runs on one thread without giving way, changes memory, and tells `Writes`
what has to become durable before anybody is answered. Times are monotonic seconds handed in by the caller.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

from .records import Call, Ending, Feedback, Reason, Registration, Verdict
from .roster import ServiceRoster, WorkerEntry

__all__ = ["KeyReused", "Ledger", "QueueFull", "Writes"]

RECENT_FEEDBACK = 200
"""Pieces of feedback kept in memory for each open call, for a stream that is opened late."""

KEPT_FEEDBACK = 10_000
"""Pieces of feedback of one call that are made durable at most."""


class QueueFull(Exception):
    """The service has as many open calls, or the middleware as many bytes of them, as it may."""


class KeyReused(Exception):
    """The caller's idempotency key was used before, for another call."""


class Writes(Protocol):
    """What must become durable; the order of the calls is the order in which it happened."""

    def call_added(self, call: Call) -> None: ...
    def call_changed(self, call: Call) -> None: ...
    def calls_drained(self, worker_id: str, calls: list[Call]) -> None: ...
    def call_ended(self, call: Call, ending: Ending) -> None: ...
    def worker_changed(self, worker: WorkerEntry) -> None: ...
    def worker_gone(self, worker: WorkerEntry) -> None: ...


class Ledger:
    """All open calls and all known workers.

    Args:
        writes: what must become durable.
        wake: called for a worker whose inbox has something new.
        queue_length: the open calls one service may have.
        max_queue_bytes: the bytes of params that all open calls together may hold.
    """

    def __init__(
        self,
        writes: Writes,
        wake: Callable[[WorkerEntry, Call], None],
        *,
        queue_length: int,
        max_queue_bytes: int,
    ) -> None:
        self.calls: dict[str, Call] = {}
        self.keys: dict[tuple[str, str], tuple[str, str | None]] = {}
        self._rosters: dict[str, ServiceRoster] = {}
        self._deadlines: dict[int, set[str]] = {}
        self._writes = writes
        self._wake = wake
        self._queue_length = queue_length
        self._max_queue_bytes = max_queue_bytes
        self._bytes = 0
        self._turn = 0

    def roster(self, service_id: str) -> ServiceRoster:
        """The workers and waiting calls of a service."""
        roster = self._rosters.get(service_id)
        if roster is None:
            roster = self._rosters[service_id] = ServiceRoster(service_id)
        return roster

    def worker(self, service_id: str, worker_id: str) -> WorkerEntry | None:
        """A worker that is registered and not dead, or None."""
        return self.roster(service_id).workers.get(worker_id)

    def workers(self) -> Iterator[WorkerEntry]:
        """Every worker that is registered and not dead."""
        for roster in self._rosters.values():
            yield from roster.workers.values()

    # -- callers

    def enqueue(self, call: Call) -> str:
        """Accept a call and hand it on; the request id of an earlier one when its idempotency key was used.

        Raises:
            QueueFull: there is no room.
            KeyReused: the key belongs to a call with another method or other params.
        """
        if call.idempotency_key is not None:
            known = self.keys.get((call.service_id, call.idempotency_key))
            if known is not None:
                if known[1] != call.fingerprint:
                    raise KeyReused
                return known[0]
        roster = self.roster(call.service_id)
        if roster.open_calls >= self._queue_length or self._bytes >= self._max_queue_bytes:
            raise QueueFull
        self._writes.call_added(call)
        self._keep(call)
        self._dispatch(call)
        return call.request_id

    def cancel(self, service_id: str, request_id: str) -> Verdict:
        """End an open call because its caller says so; an answer that comes later is refused."""
        call = self.calls.get(request_id)
        if call is None or call.service_id != service_id:
            return Verdict.unknown
        self._end(call, Reason.cancelled, "cancelled by the caller")
        return Verdict.done

    # -- workers

    def register(self, registration: Registration, now: float) -> WorkerEntry:
        """A worker process started. What an earlier process of the same id left behind is its own again."""
        entry = WorkerEntry(registration=registration, registered_at=time.time(), seen_at=now)
        roster = self.roster(entry.service_id)
        before = roster.workers.get(entry.worker_id)
        roster.workers[entry.worker_id] = entry
        roster.known_methods |= entry.methods
        roster.joined_at = now
        self._writes.worker_changed(entry)
        if before is not None:
            self._inherit(before, entry)
        self._adopt(roster, entry)
        return entry

    def restore_worker(
        self, registration: Registration, registered_at: float, now: float, *, leaving: bool
    ) -> None:
        """A worker that the database knows; its heartbeats count from now."""
        roster = self.roster(registration.service_id)
        roster.known_methods.update(registration.methods)
        roster.joined_at = now
        roster.workers[registration.worker_id] = WorkerEntry(
            registration=registration, registered_at=registered_at, seen_at=now, leaving=leaving
        )

    def restore_call(self, call: Call) -> None:
        """An open call that the database knows: with its worker when it was drained, else dispatched anew."""
        self._keep(call)
        if not call.drained:
            call.worker_id = None
            self._dispatch(call)
            return
        worker = self.worker(call.service_id, call.worker_id or "")
        if worker is None:
            self._died(call)
        else:
            worker.holding[call.seq] = call

    def take_all(self, worker: WorkerEntry) -> list[Call]:
        """The atomic drain: everything in the worker's inbox, which is empty afterwards."""
        taken = list(worker.inbox.values())
        worker.inbox.clear()
        held = [call for call in taken if not call.lock_required]
        for call in held:
            self._hold(worker, call)
        if held:
            self._writes.calls_drained(worker.worker_id, held)
        return taken

    def put_back(self, worker: WorkerEntry, calls: Iterable[Call]) -> None:
        """Undo a drain whose answer could not be written."""
        for call in calls:
            if self.calls.get(call.request_id) is not call:
                continue
            if call.lock_required and call.worker_id is None:
                self._offer(worker, call)
            elif worker.holding.pop(call.seq, None) is not None:
                self._release(call)
                if worker.leaving:
                    self._dispatch(call)
                else:
                    self._give(worker, call)

    def try_lock(self, worker: WorkerEntry, request_id: str) -> Verdict:
        """One worker gets the lock; the owner gets it again as often as it asks."""
        call = self.calls.get(request_id)
        if call is None or call.service_id != worker.service_id:
            return Verdict.unknown
        if call.drained:
            return Verdict.done if call.worker_id == worker.worker_id else Verdict.taken
        if not call.lock_required or not (call.stray or call.method in worker.methods):
            return Verdict.not_given
        roster = self.roster(call.service_id)
        roster.unclaimed.pop(call.seq, None)
        for other in roster.workers.values():
            other.inbox.pop(call.seq, None)
        self._hold(worker, call)
        self._writes.call_changed(call)
        return Verdict.done

    def answer(
        self,
        service_id: str,
        worker_id: str,
        request_id: str,
        *,
        status: str,
        error_text: str | None,
        result: bytes | None,
    ) -> Verdict:
        """The first accepted answer ends the call; only a worker that it was given to may answer."""
        call = self.calls.get(request_id)
        if call is None or call.service_id != service_id:
            return Verdict.unknown
        if not call.was_given_to(worker_id):
            return Verdict.taken if call.lock_required and call.drained else Verdict.not_given
        self._finish(call, status, error_text, result, None, worker_id)
        return Verdict.done

    def remember_feedback(
        self, service_id: str, worker_id: str, feedback: Feedback, *, persist: bool
    ) -> Verdict:
        """Keep the newest feedback of an open call for streams that are opened late."""
        call = self.calls.get(feedback.request_id)
        if call is None or call.service_id != service_id:
            return Verdict.unknown
        if not call.was_given_to(worker_id):
            return Verdict.not_given
        if persist and call.kept_feedback >= KEPT_FEEDBACK:
            return Verdict.full
        call.kept_feedback += persist
        if call.recent_feedback is None:
            call.recent_feedback = deque(maxlen=RECENT_FEEDBACK)
        call.recent_feedback.append(feedback)
        return Verdict.done

    def leave(self, worker: WorkerEntry) -> None:
        """A worker said that it stops: it gets nothing new, and what it never drained goes to others."""
        worker.leaving = True
        self._writes.worker_changed(worker)
        self._empty(worker)

    # -- time

    def expire(self, now: float) -> None:
        """End every call whose time to live is over."""
        for second in [s for s in self._deadlines if s <= now]:
            for request_id in [r for r in self._deadlines[second] if self.calls[r].deadline <= now]:
                call = self.calls[request_id]
                self._end(call, Reason.expired, self._why_expired(call))

    def bury(self, now: float, silent_seconds: float) -> list[WorkerEntry]:
        """Forget the workers that were not heard of for so long; their calls go on or end."""
        dead = [w for w in self.workers() if now - w.seen_at > silent_seconds]
        for worker in dead:
            del self.roster(worker.service_id).workers[worker.worker_id]
            self._writes.worker_gone(worker)
        for worker in dead:
            self._empty(worker)
            for call in list(worker.holding.values()):
                self._lost(worker, call)
        return dead

    def place_strays(self, now: float, delay_seconds: float) -> None:
        """Give calls to a method that nobody ever had to some live worker, whose answer names the known ones.

        It waits a little first, counted from the newest registration: services do not start all at once.
        """
        for roster in self._rosters.values():
            if now - roster.joined_at >= delay_seconds:
                for call in [c for c in roster.strays() if now - c.accepted_at >= delay_seconds]:
                    self._place_stray(roster, call)

    # -- inside

    def _keep(self, call: Call) -> None:
        self.calls[call.request_id] = call
        if call.idempotency_key is not None:
            self.keys[call.service_id, call.idempotency_key] = (call.request_id, call.fingerprint)
        self.roster(call.service_id).open_calls += 1
        self._bytes += len(call.params)
        self._deadlines.setdefault(int(call.deadline), set()).add(call.request_id)

    def _dispatch(self, call: Call) -> None:
        roster = self.roster(call.service_id)
        if call.lock_required:
            roster.unclaimed[call.seq] = call
            for worker in roster.serving(call.method):
                self._offer(worker, call)
            return
        best = roster.best_for(call.method)
        if best is None:
            roster.unassigned[call.seq] = call
        else:
            self._give(best, call)

    def _place_stray(self, roster: ServiceRoster, call: Call) -> None:
        worker = roster.best_of_all()
        if worker is None:
            return
        if call.lock_required:
            call.stray = True
            self._offer(worker, call)
        else:
            del roster.unassigned[call.seq]
            self._give(worker, call)

    def _give(self, worker: WorkerEntry, call: Call) -> None:
        call.worker_id = worker.worker_id
        self._turn += 1
        worker.given_at = self._turn
        self._offer(worker, call)

    def _offer(self, worker: WorkerEntry, call: Call) -> None:
        worker.inbox[call.seq] = call
        self._wake(worker, call)

    def _hold(self, worker: WorkerEntry, call: Call) -> None:
        call.worker_id = worker.worker_id
        call.drained = True
        worker.holding[call.seq] = call

    def _release(self, call: Call) -> None:
        call.worker_id = None
        call.drained = False
        self._writes.call_changed(call)

    def _inherit(self, before: WorkerEntry, entry: WorkerEntry) -> None:
        if entry.forgets:
            for call in list(before.holding.values()):
                self._lost(before, call)
        else:
            entry.holding = before.holding
        self._empty(before)

    def _adopt(self, roster: ServiceRoster, entry: WorkerEntry) -> None:
        for call in [c for c in roster.unassigned.values() if c.method in entry.methods]:
            del roster.unassigned[call.seq]
            self._dispatch(call)
        for call in [c for c in roster.unclaimed.values() if c.method in entry.methods]:
            self._offer(entry, call)

    def _empty(self, worker: WorkerEntry) -> None:
        undrained = [call for call in worker.inbox.values() if not call.lock_required]
        worker.inbox.clear()
        for call in undrained:
            call.worker_id = None
            self._dispatch(call)

    def _lost(self, worker: WorkerEntry, call: Call) -> None:
        worker.holding.pop(call.seq, None)
        if call.method not in worker.idempotent:
            self._died(call)
            return
        call.earlier = (*call.earlier, worker.worker_id)
        self._release(call)
        self._dispatch(call)

    def _died(self, call: Call) -> None:
        text = (
            f"the worker {call.worker_id} died after it had taken this request, which may or may not have run"
        )
        self._end(call, Reason.worker_died, text)

    def _why_expired(self, call: Call) -> str:
        if call.drained:
            return f"no answer within its time to live; the worker {call.worker_id} had taken it"
        if call.worker_id is not None:
            return f"no answer within its time to live; it waited for the worker {call.worker_id}"
        if next(self.roster(call.service_id).serving(call.method), None) is None:
            return f"no answer within its time to live; no live worker of {call.service_id} has this method"
        return "no answer within its time to live; no worker claimed its lock"

    def _end(self, call: Call, reason: Reason, error_text: str) -> None:
        self._finish(call, "error", error_text, None, reason.value, call.worker_id if call.drained else None)

    def _finish(
        self,
        call: Call,
        status: str,
        error_text: str | None,
        result: bytes | None,
        reason: str | None,
        worker_id: str | None,
    ) -> None:
        self._forget(call)
        ending = Ending(
            request_id=call.request_id,
            service_id=call.service_id,
            method=call.method,
            status=status,
            error_text=error_text,
            result=result,
            reason=reason,
            worker_id=worker_id,
            finished_at=time.time(),
            idempotency_key=call.idempotency_key,
        )
        self._writes.call_ended(call, ending)

    def _forget(self, call: Call) -> None:
        del self.calls[call.request_id]
        roster = self.roster(call.service_id)
        roster.open_calls -= 1
        self._bytes -= len(call.params)
        self._forget_deadline(call)
        roster.unassigned.pop(call.seq, None)
        if roster.unclaimed.pop(call.seq, None) is not None:
            for worker in roster.workers.values():
                worker.inbox.pop(call.seq, None)
        elif call.worker_id is not None and (owner := roster.workers.get(call.worker_id)) is not None:
            owner.inbox.pop(call.seq, None)
            owner.holding.pop(call.seq, None)

    def _forget_deadline(self, call: Call) -> None:
        due = self._deadlines[int(call.deadline)]
        due.discard(call.request_id)
        if not due:
            del self._deadlines[int(call.deadline)]
