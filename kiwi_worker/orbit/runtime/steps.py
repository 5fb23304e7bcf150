"""The life of an attempt: queued, in flight, uncertain, failed, tried again, resolved.

The decisions of the ORBIT page's sections "Result acceptance", "Sessions, leases and liveness" and
"Cancellation". Nothing here reads a clock: the time, in Unix epoch milliseconds, is an argument.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kiwi_worker.orbit.runtime.messages import Assignment, assignment_of
from kiwi_worker.orbit.runtime.model import Event, Execution, Failure, Issued, StepDefinition, Unit, Workflow
from kiwi_worker.orbit.runtime.queue import TaskQueue, key_of
from kiwi_worker.orbit.runtime.sessions import Session, Sessions
from kiwi_worker.orbit.runtime.timers import Timers

VIOLATION_CODE = "OUTPUT_CONTRACT_VIOLATION"


def new_execution(execution_id: str, workflow: Workflow, value: Any, now_ms: int) -> Execution:
    """An execution at its start, not queued yet."""
    step = workflow.step
    unit = Unit(
        step_id=step.name,
        definition=step,
        input=value,
        idempotency_key=f"{execution_id}/{step.name}",
        scheduled_at_ms=now_ms,
    )
    return Execution(
        id=execution_id,
        workflow=workflow,
        input=value,
        created_at_ms=now_ms,
        updated_at_ms=now_ms,
        unit=unit,
        history=[Event(at_ms=now_ms, kind="ExecutionStarted")],
    )


def _compensation(execution: Execution, definition: StepDefinition, now_ms: int) -> Unit:
    unit = execution.unit
    step_id = f"compensate:{unit.step_id}"
    return Unit(
        step_id=step_id,
        definition=definition,
        input={"input": unit.input, "output": execution.output},
        idempotency_key=f"{execution.id}/{step_id}",
        scheduled_at_ms=now_ms,
    )


class Steps:
    """Moves units from one state to the next.

    Args:
        queue, sessions, timers: shared with the core.
        new_token: makes a token never used before.
        changed: told of every execution that was changed.
        finished: told of every execution that got its outcome.
    """

    def __init__(
        self,
        queue: TaskQueue,
        sessions: Sessions,
        timers: Timers,
        *,
        new_token: Callable[[], str],
        changed: Callable[[Execution], None],
        finished: Callable[[Execution], None],
    ) -> None:
        self._queue, self._sessions, self._timers = queue, sessions, timers
        self._new_token, self._changed, self._finished = new_token, changed, finished

    def schedule(self, execution: Execution, now_ms: int) -> None:
        """Queue the current attempt for its first delivery."""
        execution.unit.scheduled_at_ms = now_ms
        self.requeue(execution)
        self._note(execution, now_ms, "TaskScheduled")

    def requeue(self, execution: Execution) -> None:
        """Queue the current attempt in its old place among the others."""
        unit = execution.unit
        unit.state = "queued"
        self._queue.push(key_of(unit.definition), unit.scheduled_at_ms, execution.id)

    def dispatch(self, execution: Execution, session: Session, now_ms: int) -> Assignment:
        """Give the current attempt to a session, under a new token; its time-out starts here."""
        unit, token = execution.unit, self._new_token()
        unit.state, unit.token = "in_flight", token
        unit.tokens[token] = Issued(session.worker_id, session.id, unit.attempt)
        session.held[token] = execution.id
        self._limit(execution, now_ms)
        self._note(execution, now_ms, "TaskRedelivered" if unit.redelivery else "TaskDispatched")
        return assignment_of(execution, unit, token)

    def _limit(self, execution: Execution, now_ms: int) -> None:
        unit = execution.unit
        if unit.definition.timeout_ms is None:
            return
        unit.deadline_ms = now_ms + unit.definition.timeout_ms
        self.watch_deadline(execution)

    def watch_deadline(self, execution: Execution) -> None:
        """Fail the attempt with `TIMEOUT` when its deadline passes, whatever becomes of its session."""
        unit = execution.unit
        if unit.deadline_ms is not None:
            self._timers.at(unit.deadline_ms, lambda at_ms: self._expire(execution, unit, at_ms))

    def _expire(self, execution: Execution, unit: Unit, at_ms: int) -> None:
        if execution.finished or execution.unit is not unit or unit.deadline_ms != at_ms:
            return
        self.tell_holder_to_stop(execution)
        text = f"attempt {unit.attempt} timed out after {unit.definition.timeout_ms} ms"
        self.attempt_failed(execution, Failure(code="TIMEOUT", message=text), at_ms)

    def tell_holder_to_stop(self, execution: Execution) -> None:
        """List the token in flight in the next heartbeat of the session that holds it."""
        unit = execution.unit
        session = self._sessions.get(unit.holder)
        if session is not None and unit.token is not None:
            session.stop(unit.token)

    def uncertain(self, execution: Execution, now_ms: int) -> None:
        """The outcome of the delivery in flight is unknown: deliver the same attempt again.

        A cancelled execution is not delivered again; it ends here, as nobody is left who could answer.
        """
        unit = execution.unit
        self._release(unit)
        self._note(execution, now_ms, "TaskUncertain")
        if self._is_stopping(execution):
            self._finish(execution, "CANCELLED", now_ms)
            return
        unit.redelivery = True
        self.requeue(execution)

    def attempt_failed(
        self, execution: Execution, failure: Failure, now_ms: int, *, retryable: bool = True
    ) -> None:
        """The attempt in flight failed: try again, or fail the step."""
        unit = execution.unit
        self._note(execution, now_ms, "AttemptFailed", failure)
        self._end_attempt(execution)
        retry = unit.definition.retry
        if self._is_stopping(execution):
            self._finish(execution, "CANCELLED", now_ms)
        elif retry.allows(failure.code, retryable=retryable, attempt=unit.attempt):
            self._back_off(execution, now_ms)
        else:
            self._step_failed(execution, failure, now_ms)

    def _end_attempt(self, execution: Execution) -> None:
        unit = execution.unit
        self._queue.discard(execution.id)
        self._release(unit)
        unit.token = unit.deadline_ms = None
        unit.redelivery = False

    def _release(self, unit: Unit) -> None:
        session = self._sessions.get(unit.holder)
        if session is not None and unit.token is not None:
            session.held.pop(unit.token, None)

    def _back_off(self, execution: Execution, now_ms: int) -> None:
        unit = execution.unit
        unit.due_ms = now_ms + unit.definition.retry.delay_ms(unit.attempt)
        unit.attempt += 1
        unit.state = "backoff"
        self._changed(execution)
        self.watch_backoff(execution)

    def watch_backoff(self, execution: Execution) -> None:
        """Queue the next attempt when its delay is over."""
        unit = execution.unit
        if unit.due_ms is not None:
            self._timers.at(unit.due_ms, lambda at_ms: self._resume(execution, unit, at_ms))

    def _resume(self, execution: Execution, unit: Unit, at_ms: int) -> None:
        if not execution.finished and execution.unit is unit and unit.state == "backoff":
            unit.due_ms = None
            self.schedule(execution, at_ms)

    def _step_failed(self, execution: Execution, failure: Failure, now_ms: int) -> None:
        text = failure.message
        if failure.code != VIOLATION_CODE:
            text = f"step `{execution.unit.step_id}` failed" + (f": {text}" if text else "")
        execution.error = Failure(code=failure.code, message=text, details=failure.details)
        self._finish(execution, "FAILED", now_ms)

    def succeeded(self, execution: Execution, output: Any, now_ms: int) -> None:
        """The step is done, by whichever of its deliveries."""
        self._note(execution, now_ms, "StepCompleted")
        self._end_attempt(execution)
        if execution.compensating:
            self._finish(execution, "CANCELLED", now_ms)
            return
        execution.output = output
        if not execution.cancel_requested:
            self._finish(execution, "COMPLETED", now_ms)
        elif execution.workflow.compensate is None:
            self._finish(execution, "CANCELLED", now_ms)
        else:
            self._compensate(execution, execution.workflow.compensate, now_ms)

    def _compensate(self, execution: Execution, definition: StepDefinition, now_ms: int) -> None:
        execution.resolved_tokens = execution.unit.tokens
        execution.unit = _compensation(execution, definition, now_ms)
        execution.compensating = True
        self.schedule(execution, now_ms)

    def cancel(self, execution: Execution, reason: str | None, now_ms: int) -> None:
        """Ask an execution to stop: at once when nothing is in flight, else when that is answered or lost."""
        execution.cancel_requested, execution.cancel_reason = True, reason
        execution.note(Event(at_ms=now_ms, kind="CancelRequested", message=reason))
        self._changed(execution)
        if execution.unit.state == "in_flight":
            self.tell_holder_to_stop(execution)
        else:
            self._finish(execution, "CANCELLED", now_ms)

    @staticmethod
    def _is_stopping(execution: Execution) -> bool:
        # the compensation of a cancelled workflow is not itself cancelled: it is retried like any step
        return execution.cancel_requested and not execution.compensating

    def _finish(self, execution: Execution, status: Any, now_ms: int) -> None:
        self._queue.discard(execution.id)
        self._release(execution.unit)
        execution.unit.state = "resolved"
        execution.unit.due_ms = execution.unit.deadline_ms = None
        if status == "CANCELLED":
            execution.error = Failure(code="CANCELLED", message=execution.cancel_reason or "cancelled")
        execution.status, execution.finished_at_ms = status, now_ms
        self._note(execution, now_ms, f"Execution{status.capitalize()}")
        self._finished(execution)

    def _note(self, execution: Execution, now_ms: int, kind: str, failure: Failure | None = None) -> None:
        unit = execution.unit
        execution.note(
            Event(
                at_ms=now_ms,
                kind=kind,
                step_id=unit.step_id,
                attempt=unit.attempt,
                code=None if failure is None else failure.code,
                message=None if failure is None else failure.message,
                details=None if failure is None else failure.details,
            )
        )
        self._changed(execution)
