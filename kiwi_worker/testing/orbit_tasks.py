"""The tasks of the misbehaving ORBIT server: attempts, deliveries, sessions and what became of them."""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass, field
from typing import Any, Literal

__all__ = ["Delivery", "Session", "Task", "TaskBoard", "TaskResult"]

_STALE = "stale attempt"
_RESOLVED = "duplicate result; step already resolved"
_UNKNOWN = "unknown token (execution finished or token invalid)"
_VIOLATION = "output violates the task contract"


@dataclass(eq=False)
class Session:
    """One worker's session.

    Attributes:
        session_id: what the worker sends.
        worker_id: who opened it.
        runtime: its language.
        contracts: pairs of task name and contract version.
        heard_at: monotonic time of the last contact.
        cancel: tokens to list in its next heartbeat.
    """

    session_id: str
    worker_id: str
    runtime: str
    contracts: frozenset[tuple[str, str]]
    heard_at: float = field(default_factory=time.monotonic)
    cancel: list[str] = field(default_factory=list)


@dataclass(eq=False)
class Task:
    """One step of one execution, from enqueueing to its outcome.

    Attributes:
        execution_id: the execution it belongs to; each holds one task here.
        state: `queued`, `dispatched`, `completed` or `failed`.
        attempt: the number of the current attempt, from 1.
        uncertain: whether the current attempt was delivered before and its outcome is unknown.
        token: the token of the newest delivery.
    """

    execution_id: str
    task_name: str
    contract_version: str
    input: object
    runtime: str | None = None
    timeout_ms: int | None = None
    max_attempts: int = 1
    state: Literal["queued", "dispatched", "completed", "failed"] = "queued"
    attempt: int = 1
    uncertain: bool = False
    token: str = ""

    @property
    def is_resolved(self) -> bool:
        """Whether it has its outcome."""
        return self.state in ("completed", "failed")


@dataclass(eq=False)
class Delivery:
    """One hand-over of one attempt to one session.

    Attributes:
        token: identifies it.
        task: what was handed over.
        attempt: the attempt's number then.
        session: who got it, or None once that session is over.
        deadline: monotonic time at which the attempt fails with `TIMEOUT`, or None.
    """

    token: str
    task: Task
    attempt: int
    session: Session | None
    deadline: float | None

    def assignment(self, redelivery: bool) -> dict[str, Any]:
        """The task assignment, as the page lists its fields."""
        task = self.task
        fields: dict[str, Any] = {
            "token": self.token,
            "execution_id": task.execution_id,
            "workflow": "Test",
            "workflow_version": "1.0.0",
            "step_id": "step",
            "task_name": task.task_name,
            "contract_version": task.contract_version,
            "input": task.input,
            "idempotency_key": f"{task.execution_id}/step",
            "attempt": self.attempt,
            "redelivery": redelivery,
        }
        if task.timeout_ms is not None:
            fields["timeout_ms"] = task.timeout_ms
            fields["deadline_ms"] = int(time.time() * 1000) + task.timeout_ms
        return fields


@dataclass(frozen=True)
class TaskResult:
    """One report a worker made.

    Attributes:
        call: `complete` or `fail`.
        execution_id: whose task it was for, or None for an unknown token.
        attempt: the attempt it was for, or None for an unknown token.
        body: the decoded report.
        accepted: whether it changed the step.
        reason: why not, or None.
    """

    call: Literal["complete", "fail"]
    execution_id: str | None
    attempt: int | None
    body: dict[str, Any]
    accepted: bool
    reason: str | None


@dataclass(eq=False)
class TaskBoard:
    """All tasks, deliveries and sessions of one server. Callers hold the server's lock.

    Args:
        session_timeout_seconds: the silence after which a session is over.
    """

    session_timeout_seconds: float
    sessions: dict[str, Session] = field(default_factory=dict)
    tasks: dict[str, Task] = field(default_factory=dict)
    deliveries: dict[str, Delivery] = field(default_factory=dict)
    results: list[TaskResult] = field(default_factory=list)
    refused_outputs: set[str] = field(default_factory=set)
    _queued: dict[str, Task] = field(default_factory=dict)
    _in_flight: dict[str, Delivery] = field(default_factory=dict)
    _orphans_until: float | None = None

    def put(self, task: Task) -> None:
        """Schedule a task."""
        self.tasks[task.execution_id] = task
        self._schedule(task)

    def open_session(self, worker_id: str, runtime: str, contracts: frozenset[tuple[str, str]]) -> Session:
        """Open a session; every registration opens a new one."""
        session = Session(str(uuid.uuid4()), worker_id, runtime.lower(), contracts)
        self.sessions[session.session_id] = session
        return session

    def touch(self, session_id: object) -> Session | None:
        """The living session of this id, marked as heard of now, or None."""
        self.tick()
        session = self.sessions.get(session_id) if isinstance(session_id, str) else None
        if session is not None:
            session.heard_at = time.monotonic()
        return session

    def end_session(self, session: Session) -> None:
        """End a session; what it holds is delivered again to others."""
        self.sessions.pop(session.session_id, None)
        for delivery in list(self._in_flight.values()):
            if delivery.session is session:
                delivery.session = None
                self._make_uncertain(delivery)

    def forget_sessions(self) -> None:
        """What a restart does: no session is known; attempts wait one session time-out for their reports."""
        self.sessions.clear()
        for delivery in self._in_flight.values():
            delivery.session = None
        self._orphans_until = time.monotonic() + self.session_timeout_seconds

    def next_for(self, session: Session) -> Delivery | None:
        """Hand the oldest matching task to this session, under a new token, or None."""
        task = next((task for task in self._queued.values() if _matches(task, session)), None)
        return None if task is None else self._dispatch(task, session)

    def take_back(self, delivery: Delivery) -> None:
        """Deliver this attempt again, as if its delivery had been lost."""
        self._make_uncertain(delivery)

    def complete(self, body: dict[str, Any]) -> TaskResult:
        """Take a success: for any token of an unresolved step."""
        delivery = self.deliveries.get(body["token"])
        if delivery is None:
            return self._record("complete", None, body, _UNKNOWN)
        self._heard(delivery)
        task = delivery.task
        if task.is_resolved:
            return self._record("complete", delivery, body, _RESOLVED)
        self._queued.pop(task.execution_id, None)
        violates = task.task_name in self.refused_outputs
        task.state = "failed" if violates else "completed"
        return self._record("complete", delivery, body, _VIOLATION if violates else None)

    def fail(self, body: dict[str, Any]) -> TaskResult:
        """Take a failure: only for the delivery in flight."""
        delivery = self.deliveries.get(body["token"])
        if delivery is None:
            return self._record("fail", None, body, _UNKNOWN)
        self._heard(delivery)
        if delivery.task.is_resolved:
            return self._record("fail", delivery, body, _RESOLVED)
        if not self._is_in_flight(delivery):
            return self._record("fail", delivery, body, _STALE)
        self._end_attempt(delivery.task, retryable=body.get("retryable", True) is not False)
        return self._record("fail", delivery, body, None)

    def cancel(self, delivery: Delivery) -> None:
        """List this delivery's token in the next heartbeat of the session that holds it."""
        if delivery.session is not None and delivery.token not in delivery.session.cancel:
            delivery.session.cancel.append(delivery.token)

    def tick(self) -> None:
        """Do what time has made due: silent sessions, forgotten attempts, deadlines."""
        now = time.monotonic()
        for session in list(self.sessions.values()):
            if now - session.heard_at > self.session_timeout_seconds:
                self.end_session(session)
        for delivery in list(self._in_flight.values()):
            self._look_at(delivery, now)
        if self._orphans_until is not None and now >= self._orphans_until:
            self._orphans_until = None

    def _look_at(self, delivery: Delivery, now: float) -> None:
        if not self._is_in_flight(delivery):
            del self._in_flight[delivery.token]
        elif delivery.deadline is not None and now >= delivery.deadline:
            self.cancel(delivery)
            self._end_attempt(delivery.task, retryable=True)
        elif delivery.session is None and self._orphans_until is not None and now >= self._orphans_until:
            self._make_uncertain(delivery)

    def _schedule(self, task: Task) -> None:
        task.state = "queued"
        self._queued[task.execution_id] = task

    def _dispatch(self, task: Task, session: Session) -> Delivery:
        deadline = None if task.timeout_ms is None else time.monotonic() + task.timeout_ms / 1000
        delivery = Delivery(str(uuid.uuid4()), task, task.attempt, session, deadline)
        self.deliveries[delivery.token] = self._in_flight[delivery.token] = delivery
        del self._queued[task.execution_id]
        task.state = "dispatched"
        task.token = delivery.token
        return delivery

    def _is_in_flight(self, delivery: Delivery) -> bool:
        return delivery.task.state == "dispatched" and delivery.task.token == delivery.token

    def _make_uncertain(self, delivery: Delivery) -> None:
        if self._is_in_flight(delivery):
            delivery.task.uncertain = True
            self._schedule(delivery.task)

    def _end_attempt(self, task: Task, *, retryable: bool) -> None:
        if not retryable or task.attempt >= task.max_attempts:
            task.state = "failed"
            return
        task.attempt += 1
        task.uncertain = False
        self._schedule(task)

    def _heard(self, delivery: Delivery) -> None:
        if delivery.session is not None:
            delivery.session.heard_at = time.monotonic()

    def _record(
        self,
        call: Literal["complete", "fail"],
        delivery: Delivery | None,
        body: dict[str, Any],
        reason: str | None,
    ) -> TaskResult:
        execution_id = None if delivery is None else delivery.task.execution_id
        attempt = None if delivery is None else delivery.attempt
        result = TaskResult(call, execution_id, attempt, body, reason is None, reason)
        self.results.append(result)
        return result


def _matches(task: Task, session: Session) -> bool:
    return (task.task_name, task.contract_version) in session.contracts and task.runtime in (
        None,
        "any",
        session.runtime,
    )
