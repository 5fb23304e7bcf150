"""The dev runtime without network, clock or file: every decision of the ORBIT page is taken here.

Every call takes the time, in Unix epoch milliseconds, and first lets happen what was due before it. What a
driver has to carry out afterwards is collected in `take_answered` and `take_changed`.
"""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from kiwi_worker.orbit.runtime import messages
from kiwi_worker.orbit.runtime.identities import Caller
from kiwi_worker.orbit.runtime.messages import Ack, Registered, Registration
from kiwi_worker.orbit.runtime.model import Event, Execution, Failure, Issued, WorkerRecord, Workflow
from kiwi_worker.orbit.runtime.polls import Poll, wait_of
from kiwi_worker.orbit.runtime.queue import TaskQueue
from kiwi_worker.orbit.runtime.refusal import (
    Refused,
    invalid_request,
    not_leader,
    unknown_execution,
    unknown_session,
    unknown_session_at_unregister,
    unknown_workflow,
)
from kiwi_worker.orbit.runtime.schema import Mismatch, conform, type_name
from kiwi_worker.orbit.runtime.sessions import Session, Sessions, keys_of
from kiwi_worker.orbit.runtime.steps import VIOLATION_CODE, Steps, new_execution
from kiwi_worker.orbit.runtime.timers import Timers

FINISHED_LIMIT = 10_000
"""Finished executions kept for reading; the oldest go first."""

SHORTEST_HEARTBEAT_MS = 500


def _new_id() -> str:
    return str(uuid.uuid4())


class RuntimeCore:
    """The state machine.

    Args:
        workflows: what is deployed, by name.
        session_timeout_ms: silence after which a worker counts as lost.
        new_id: makes session ids, tokens and execution ids.
    """

    def __init__(
        self,
        workflows: Mapping[str, Workflow],
        *,
        session_timeout_ms: int = 30_000,
        new_id: Callable[[], str] = _new_id,
    ) -> None:
        self.workflows = dict(workflows)
        self.session_timeout_ms = session_timeout_ms
        self.leader = True
        self._new_id = new_id
        self._sessions, self._queue, self._timers = Sessions(), TaskQueue(), Timers()
        self._executions: dict[str, Execution] = {}
        self._tokens: dict[str, str] = {}
        self._polls: dict[Poll, None] = {}
        self._finished: deque[str] = deque()
        self._answered: list[Poll] = []
        self._changed: dict[str, Execution | None] = {}
        self._steps = Steps(
            self._queue,
            self._sessions,
            self._timers,
            new_token=new_id,
            changed=self._on_changed,
            finished=self._on_finished,
        )

    # what the driver carries out

    def take_answered(self) -> list[Poll]:
        """Polls that ended since the last call."""
        answered, self._answered = self._answered, []
        return answered

    def take_changed(self) -> dict[str, Execution | None]:
        """Executions that changed since the last call, by id; None for one that is no longer kept."""
        changed, self._changed = self._changed, {}
        return changed

    def next_event_ms(self) -> int | None:
        """When `advance` has something to do next, or None."""
        return self._timers.next_ms()

    def advance(self, now_ms: int) -> None:
        """Let everything happen that is due: sessions, deadlines, retries, polls."""
        while (due := self._timers.pop_due(now_ms)) is not None:
            at_ms, ring = due
            ring(at_ms)
            self._serve(at_ms)
        self._serve(now_ms)

    def restore(self, executions: Iterable[Execution], workers: Iterable[WorkerRecord], now_ms: int) -> None:
        """Begin with what an earlier process left: no sessions, but all tokens.

        Attempts in flight are left alone for one session time-out; then those that nobody reported are
        delivered again, even if their deadline passed while no runtime was there to see it.
        """
        self._sessions.workers.update({worker.worker_id: worker for worker in workers})
        for execution in sorted(executions, key=lambda each: each.unit.scheduled_at_ms):
            self._executions[execution.id] = execution
            if execution.finished:
                self._finished.append(execution.id)
            else:
                self._resume(execution, now_ms)

    def _resume(self, execution: Execution, now_ms: int) -> None:
        unit = execution.unit
        self._tokens.update(dict.fromkeys((*execution.resolved_tokens, *unit.tokens), execution.id))
        if unit.state == "queued":
            self._steps.requeue(execution)
        elif unit.state == "backoff":
            self._steps.watch_backoff(execution)
        else:
            grace_ms = now_ms + self.session_timeout_ms
            token = unit.token
            self._timers.at(grace_ms, lambda at_ms: self._grace_over(execution, token, at_ms))
        if unit.deadline_ms is not None and unit.deadline_ms <= now_ms:
            unit.deadline_ms = None
        self._steps.watch_deadline(execution)

    def _grace_over(self, execution: Execution, token: str | None, at_ms: int) -> None:
        if execution.unit.state == "in_flight" and execution.unit.token == token:
            self._steps.uncertain(execution, at_ms)

    # sessions

    def register(self, caller: Caller, request: Registration, now_ms: int) -> Registered:
        """Open a session.

        Raises:
            Refused: 400 for a blank id, no contracts or a reserved task; 403 for an identity's rules.
        """
        self._begin(now_ms)
        self._check_registration(caller, request)
        session = Session(
            self._new_id(),
            request.worker_id,
            keys_of(request.contracts, request.runtime),
            last_contact_ms=now_ms,
        )
        self._sessions.open(session, _worker_record(request, now_ms))
        self._watch(session)
        return Registered(
            worker_session_id=session.id,
            heartbeat_interval_ms=max(self.session_timeout_ms // 6, SHORTEST_HEARTBEAT_MS),
            session_timeout_ms=self.session_timeout_ms,
            warnings=self._warnings(request),
        )

    def _check_registration(self, caller: Caller, request: Registration) -> None:
        if not request.worker_id.strip():
            raise invalid_request("worker_id must not be blank")
        if not request.contracts:
            raise invalid_request("contracts must not be empty")
        names = [contract.task_name for contract in request.contracts]
        if caller.identity is not None:
            caller.identity.check_registration(request.worker_id, request.runtime, names)
        for name in names:
            self._check_not_reserved(name)

    def _check_not_reserved(self, task_name: str) -> None:
        if task_name.startswith("orbit."):
            raise Refused(400, "RESERVED_TASK", f"task `{task_name}` is built in; workers may not serve it")
        if task_name in self.workflows:
            raise Refused(400, "RESERVED_TASK", f"`{task_name}` names a workflow; workers may not serve it")

    def _warnings(self, request: Registration) -> list[str]:
        steps = [step for each in self.workflows.values() for step in (each.step, each.compensate) if step]
        used = {step.contract for step in steps}
        return [
            f"no registered workflow uses task `{contract.task_name}` version `{contract.contract_version}`"
            for contract in request.contracts
            if contract not in used
        ]

    def _watch(self, session: Session) -> None:
        at_ms = session.last_contact_ms + self.session_timeout_ms + 1
        self._timers.at(at_ms, lambda now_ms: self._check_silence(session, now_ms))

    def _check_silence(self, session: Session, now_ms: int) -> None:
        if self._sessions.get(session.id) is not session:
            return
        if now_ms - session.last_contact_ms <= self.session_timeout_ms:
            self._watch(session)
        else:
            self._close(session, now_ms)

    def _close(self, session: Session, now_ms: int) -> None:
        self._sessions.close(session)
        for execution_id in list(session.held.values()):
            self._steps.uncertain(self._executions[execution_id], now_ms)
        for poll in [each for each in self._polls if each.session_id == session.id]:
            poll.refused = unknown_session()
            self._end(poll)

    def _session(
        self, caller: Caller, session_id: str, now_ms: int, refused: Callable[[], Refused]
    ) -> Session:
        session = self._sessions.get(session_id)
        if session is None:
            raise refused()
        caller.check_session(session.worker_id)
        self._sessions.touch(session, now_ms)
        return session

    def heartbeat(self, caller: Caller, session_id: str, now_ms: int) -> list[str]:
        """Keep a session alive; returns the tokens it should stop, each once.

        Raises:
            Refused: 404 for an unknown session, 403 for somebody else's.
        """
        self._begin(now_ms)
        return self._session(caller, session_id, now_ms, unknown_session).take_cancels()

    def unregister(self, caller: Caller, session_id: str, now_ms: int) -> None:
        """Close a session; what it holds is delivered again right away.

        Raises:
            Refused: 404 for an unknown session, 403 for somebody else's.
        """
        self._begin(now_ms)
        self._close(self._session(caller, session_id, now_ms, unknown_session_at_unregister), now_ms)
        self._serve(now_ms)

    # polls

    def poll(self, caller: Caller, session_id: str, wait_ms: int | None, now_ms: int) -> Poll:
        """Ask for a task. The poll may be `done` at once; else it is among `take_answered` later.

        Raises:
            Refused: 404 for an unknown session, 403 for somebody else's.
        """
        self._begin(now_ms)
        session = self._session(caller, session_id, now_ms, unknown_session)
        poll = Poll(session_id, now_ms + wait_of(wait_ms))
        self._polls[poll] = None
        self._offer(poll, session, now_ms)
        if not poll.done:
            self._timers.at(poll.ends_ms, lambda at_ms: self._end(poll))
        return poll

    def withdraw(self, poll: Poll) -> None:
        """The client of a waiting poll is gone: give it nothing."""
        self._polls.pop(poll, None)

    def end_polls(self) -> None:
        """End every waiting poll without a task; the runtime is stopping."""
        for poll in list(self._polls):
            self._end(poll)

    def _serve(self, now_ms: int) -> None:
        for key in self._queue.take_fresh():
            for poll in self._polls:
                session = self._sessions.get(poll.session_id)
                if session is not None and key in session.keys:
                    self._offer(poll, session, now_ms)
                    break

    def _offer(self, poll: Poll, session: Session, now_ms: int) -> None:
        execution_id = self._queue.take(session.keys)
        if execution_id is not None:
            poll.assignment = self._steps.dispatch(self._executions[execution_id], session, now_ms)
            self._tokens[poll.assignment.token] = execution_id
            self._end(poll)
        elif poll.ends_ms <= now_ms:
            self._end(poll)

    def _end(self, poll: Poll) -> None:
        if poll in self._polls:
            del self._polls[poll]
            poll.done = True
            self._answered.append(poll)

    # results

    def complete(self, caller: Caller, token: str, output: Any, now_ms: int) -> Ack:
        """Take a success.

        Raises:
            Refused: 400 for an empty token, 403 for a token of another identity.
        """
        self._begin(now_ms)
        if not token:
            raise invalid_request("token must not be empty", code_in_metadata=False)
        execution, refusal = self._reported(caller, token, now_ms)
        if execution is None:
            return refusal
        ack = self._take_output(execution, token, {} if output is None else output, now_ms)
        self._serve(now_ms)
        return ack

    def _take_output(self, execution: Execution, token: str, output: Any, now_ms: int) -> Ack:
        definition = execution.unit.definition
        try:
            completed = _conforming_object(output, definition.output_schema)
        except Mismatch as mismatch:
            task = definition.contract.task_name
            text = f"worker output for `{task}` does not match its contract at {mismatch}"
            self._take_failure(
                execution, token, Failure(code=VIOLATION_CODE, message=text), now_ms, retryable=False
            )
            return messages.VIOLATION
        self._steps.succeeded(execution, completed, now_ms)
        return messages.RECORDED

    def fail(
        self, caller: Caller, token: str, failure: Failure, now_ms: int, *, retryable: bool = True
    ) -> Ack:
        """Take a failure.

        Raises:
            Refused: 400 for an empty code, 403 for a token of another identity.
        """
        self._begin(now_ms)
        if not failure.code:
            raise invalid_request("error_code must not be empty", code_in_metadata=False)
        execution, refusal = self._reported(caller, token, now_ms)
        if execution is None:
            return refusal
        ack = self._take_failure(execution, token, failure, now_ms, retryable=retryable)
        self._serve(now_ms)
        return ack

    def _take_failure(
        self, execution: Execution, token: str, failure: Failure, now_ms: int, *, retryable: bool
    ) -> Ack:
        if execution.unit.token == token:
            self._steps.attempt_failed(execution, failure, now_ms, retryable=retryable)
            return messages.RECORDED
        self._ignored(execution, token, "StaleFailureIgnored", failure, now_ms)
        return messages.STALE

    def _reported(self, caller: Caller, token: str, now_ms: int) -> tuple[Execution | None, Ack]:
        """The execution whose step a result may still change; else None, and the answer to the result."""
        execution = self._executions.get(self._tokens.get(token, ""))
        if execution is None:
            return None, messages.UNKNOWN_TOKEN
        unit = execution.unit
        issued = unit.tokens.get(token) or execution.resolved_tokens[token]
        caller.check_token(issued.worker_id)
        self._heard(issued, token, now_ms)
        if token in unit.tokens:
            return execution, messages.RECORDED
        self._ignored(execution, token, "StaleResultIgnored", None, now_ms)
        return None, messages.DUPLICATE

    def _heard(self, issued: Issued, token: str, now_ms: int) -> None:
        session = self._sessions.get(issued.session_id)
        if session is not None:
            self._sessions.touch(session, now_ms)
            session.answered(token)

    def _ignored(
        self, execution: Execution, token: str, kind: str, failure: Failure | None, now_ms: int
    ) -> None:
        issued = execution.unit.tokens.get(token) or execution.resolved_tokens[token]
        code, message = (failure.code, failure.message) if failure else (None, None)
        execution.note(Event(at_ms=now_ms, kind=kind, attempt=issued.attempt, code=code, message=message))
        self._on_changed(execution)

    # executions

    def start(self, workflow: str, value: Any, execution_id: str | None, now_ms: int) -> tuple[str, bool]:
        """Start an execution, unless one of that id exists; returns its id and whether it was created.

        Raises:
            Refused: 404 for an unknown workflow, 400 for a blank id or an input that breaks the contract.
        """
        self._begin(now_ms)
        if execution_id is not None and not execution_id.strip():
            raise invalid_request("execution_id must not be blank")
        if execution_id in self._executions:
            return execution_id, False
        definition = self.workflows.get(workflow)
        if definition is None:
            raise unknown_workflow(workflow)
        execution = new_execution(
            execution_id or self._new_id(), definition, _input(definition, value), now_ms
        )
        self._executions[execution.id] = execution
        self._steps.schedule(execution, now_ms)
        self._serve(now_ms)
        return execution.id, True

    def execution(self, execution_id: str, now_ms: int) -> Execution:
        """One execution.

        Raises:
            Refused: 404 if there is none of that id.
        """
        self._begin(now_ms)
        if execution_id not in self._executions:
            raise unknown_execution(execution_id)
        return self._executions[execution_id]

    def executions(self, now_ms: int) -> list[Execution]:
        """All executions kept, in the order they were started."""
        self._begin(now_ms)
        return list(self._executions.values())

    def cancel(self, execution_id: str, reason: str | None, now_ms: int) -> Execution:
        """Ask an execution to stop; without effect on one that is finished or was asked already.

        Raises:
            Refused: 404 if there is none of that id.
        """
        execution = self.execution(execution_id, now_ms)
        if not execution.finished and not execution.cancel_requested:
            self._steps.cancel(execution, reason, now_ms)
        return execution

    def workers(self, now_ms: int) -> list[tuple[WorkerRecord, list[Session]]]:
        """Every worker that has registered, with its live sessions."""
        self._begin(now_ms)
        return [(each, self._sessions.of_worker(each.worker_id)) for each in self._sessions.workers.values()]

    def worker(self, worker_id: str) -> WorkerRecord:
        """What is known of a registered worker id."""
        return self._sessions.workers[worker_id]

    def _begin(self, now_ms: int) -> None:
        if not self.leader:
            raise not_leader()
        self.advance(now_ms)

    def _on_changed(self, execution: Execution) -> None:
        self._changed[execution.id] = execution

    def _on_finished(self, execution: Execution) -> None:
        for token in (*execution.resolved_tokens, *execution.unit.tokens):
            self._tokens.pop(token, None)
        self._finished.append(execution.id)
        if len(self._finished) > FINISHED_LIMIT:
            oldest = self._finished.popleft()
            del self._executions[oldest]
            self._changed[oldest] = None


def _worker_record(request: Registration, now_ms: int) -> WorkerRecord:
    return WorkerRecord(
        worker_id=request.worker_id,
        runtime=request.runtime,
        sdk=request.sdk,
        contracts=request.contracts,
        last_contact_ms=now_ms,
    )


def _input(workflow: Workflow, value: Any) -> Any:
    try:
        return conform({} if value is None else value, workflow.step.input_schema)
    except Mismatch as mismatch:
        text = f"input for workflow `{workflow.name}` does not match its contract at {mismatch}"
        raise invalid_request(text) from None


def _conforming_object(output: Any, schema: Mapping[str, Any]) -> Any:
    # the page wants an object even where the contract does not say so
    if not isinstance(output, dict):
        raise Mismatch("$", f"expected Object, found {type_name(output)}")
    return conform(output, schema)
