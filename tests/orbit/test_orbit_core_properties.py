"""The core under random histories: the acceptance table holds, and every step ends resolved."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, multiple, rule

from kiwi_worker.orbit.runtime.messages import Ack, Assignment
from kiwi_worker.orbit.runtime.refusal import Refused

from .desk import UNDO, Desk, workflow

RETRY = {"attempts": 3, "initial_delay": "2s", "non_retryable": ["FATAL"]}
OUTPUT = {"type": "object", "required": ["message"], "properties": {"message": {"type": "string"}}}
WORKFLOWS = {
    "Plain": workflow("Plain"),
    "Careful": workflow(
        "Careful",
        timeout="15s",
        retry=RETRY,
        output=OUTPUT,
        compensate={"task": UNDO.task_name, "contract_version": UNDO.contract_version, "retry": RETRY},
    ),
}
UNKNOWN = "unknown token (execution finished or token invalid)"
DUPLICATE = "duplicate result; step already resolved"
STALE = "stale attempt"
VIOLATION = "output violates the task contract"
LATER = {
    # once a token got this answer, these are the only ones it may get afterwards
    "complete": {None: {DUPLICATE, UNKNOWN}, DUPLICATE: {DUPLICATE, UNKNOWN}, UNKNOWN: {UNKNOWN}},
    "fail": {
        None: {STALE, DUPLICATE, UNKNOWN},
        STALE: {STALE, DUPLICATE, UNKNOWN},
        DUPLICATE: {DUPLICATE, UNKNOWN},
        UNKNOWN: {UNKNOWN},
    },
}


@dataclass(eq=False)
class Delivery:
    """What the test itself remembers of one dispatch."""

    task: Assignment
    session: str
    ended: bool = False


class History(RuleBasedStateMachine):
    """Random workers, cancels, restarts and time against a model of the page's table."""

    sessions: Bundle[str] = Bundle("sessions")
    deliveries: Bundle[Delivery] = Bundle("deliveries")

    def __init__(self) -> None:
        super().__init__()
        self.desk = Desk(*WORKFLOWS.values(), session_timeout_ms=10_000)
        self.latest: dict[tuple[str, str], Delivery] = {}
        self.answers: dict[tuple[str, str], str | None] = {}
        self.listed: set[str] = set()
        self.tokens: set[str] = set()
        self.started = 0

    @initialize(target=deliveries)
    def begin(self) -> Any:
        return self.start_and_poll("Careful")

    @rule(target=sessions, worker_id=st.sampled_from(["a", "b"]))
    def register(self, worker_id: str) -> str:
        return self.desk.session(worker_id)

    @rule(name=st.sampled_from(sorted(WORKFLOWS)))
    def start(self, name: str) -> None:
        self.started += 1
        self.desk.start(f"e{self.started}", name)

    @rule(target=deliveries, session=sessions)
    def poll(self, session: str) -> Any:
        poll = self.on_session(self.desk.poll, session)
        return (
            multiple() if poll is None or poll.assignment is None else self.deliver(poll.assignment, session)
        )

    @rule(target=deliveries, name=st.sampled_from(sorted(WORKFLOWS)))
    def start_and_poll(self, name: str) -> Any:
        self.start(name)
        return self.poll(self.desk.session("c"))

    @rule(target=deliveries, delivery=deliveries)
    def hand_over(self, delivery: Delivery) -> Any:
        self.unregister(delivery.session)
        return self.poll(self.desk.session("d"))

    @staticmethod
    def on_session(call: Any, session: str) -> Any:
        """The answer of a session call, or None for a session that is lost."""
        try:
            return call(session)
        except Refused as refused:
            if refused.code != "UNKNOWN_SESSION":
                raise
            return None

    def deliver(self, task: Assignment, session: str) -> Delivery:
        assert task.token not in self.tokens
        self.tokens.add(task.token)
        before = self.latest.get((task.execution_id, task.step_id))
        if before is None:
            assert (task.attempt, task.redelivery) == (1, False)
        else:
            assert task.idempotency_key == before.task.idempotency_key
            assert task.attempt == before.task.attempt + (0 if task.redelivery else 1)
        assert task.attempt <= (1 if task.workflow == "Plain" else 3)
        delivery = self.latest[task.execution_id, task.step_id] = Delivery(task, session)
        return delivery

    @rule(delivery=deliveries)
    def heartbeat(self, delivery: Delivery) -> None:
        cancels = self.on_session(self.desk.heartbeat, delivery.session) or []
        assert not self.listed & set(cancels)
        assert len(cancels) == len(set(cancels))
        self.listed.update(cancels)

    @rule(session=sessions)
    def unregister(self, session: str) -> None:
        self.on_session(self.desk.unregister, session)

    @rule(delivery=deliveries, good=st.booleans())
    def complete(self, delivery: Delivery, good: bool) -> None:
        token = delivery.task.token
        expected = self.final_answer(delivery)
        violates = not good and delivery.task.workflow == "Careful" and delivery.task.step_id == "compose"
        counts = self.counts(delivery)
        ack = self.desk.complete(token, {"message": "hi"} if good else {})
        if expected is not None:
            self.answered("complete", token, ack, expected)
        elif violates:
            assert ack.reason == VIOLATION
            delivery.ended = delivery.ended or counts
        else:
            self.answered("complete", token, ack, None)

    @rule(delivery=deliveries, code=st.sampled_from(["BUSY", "FATAL"]), retryable=st.booleans())
    def fail(self, delivery: Delivery, code: str, retryable: bool) -> None:
        expected = self.final_answer(delivery)
        if expected is None and not self.counts(delivery):
            expected = STALE
        self.answered(
            "fail",
            delivery.task.token,
            self.desk.fail(delivery.task.token, code, retryable=retryable),
            expected,
        )
        delivery.ended = True if expected is None else delivery.ended

    @rule(report=st.sampled_from(["complete", "fail"]))
    def report_an_invented_token(self, report: str) -> None:
        assert getattr(self.desk, report)("invented").reason == UNKNOWN

    @rule(milliseconds=st.sampled_from([1, 2_000, 6_000, 10_001]))
    def time_passes(self, milliseconds: int) -> None:
        self.desk.pass_ms(milliseconds)

    @rule(delivery=deliveries)
    def cancel(self, delivery: Delivery) -> None:
        execution = delivery.task.execution_id
        before = self.desk.status(execution)
        after = self.desk.cancel(execution)
        assert after.status == before or (before == "RUNNING" and after.status == "CANCELLED")

    @rule()
    def restart(self) -> None:
        self.desk.restart()

    def final_answer(self, delivery: Delivery) -> str | None:
        """What the table says by the state of execution and step alone; None when the step is open."""
        execution = self.desk.execution(delivery.task.execution_id)
        if execution.status != "RUNNING":
            return UNKNOWN
        compensating = (execution.id, "compensate:compose") in self.latest or execution.compensating
        return DUPLICATE if compensating and delivery.task.step_id == "compose" else None

    def counts(self, delivery: Delivery) -> bool:
        """Whether this is the delivery of the attempt in flight, by the test's own book."""
        task = delivery.task
        timed_out = isinstance(task.deadline_ms, int) and self.desk.now >= task.deadline_ms
        return (
            self.latest[task.execution_id, task.step_id] is delivery and not delivery.ended and not timed_out
        )

    def answered(self, report: str, token: str, ack: Ack, expected: str | None) -> None:
        reason = ack.reason if isinstance(ack.reason, str) else None
        assert ack.accepted == (reason is None)
        assert reason == expected
        if (report, token) in self.answers:
            assert reason in LATER[report][self.answers[report, token]]
        self.answers[report, token] = reason

    def teardown(self) -> None:
        """Whatever happened: given a worker and time, every execution gets its outcome."""
        for _ in range(40):
            session = self.desk.session("last")
            while (task := self.desk.poll(session).assignment) is not None:
                self.desk.complete(task.token, {"message": "done"})
            self.desk.pass_ms(10_001)
        open_ones = [each.id for each in self.desk.executions() if not each.finished]
        assert open_ones == []


TestHistory = History.TestCase
TestHistory.settings = settings(max_examples=100, stateful_step_count=40, deadline=None, database=None)
