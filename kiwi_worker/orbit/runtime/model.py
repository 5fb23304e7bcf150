"""The records of the dev runtime: what is deployed, and what runs.

Records are msgspec structs so that the store can write and read them as they are.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

Backoff = Literal["fixed", "linear", "exponential"]
"""How the delay grows: the same each time, times the retry's number, or doubled each time."""

LONGEST_DELAY_MS = 3_600_000
HISTORY_LIMIT = 500
"""Events kept of one execution, so that a client that repeats stale results cannot fill the memory."""


class Contract(msgspec.Struct, frozen=True, order=True):
    """A task and one version of its contract, as a worker announces it."""

    task_name: str
    contract_version: str


class RetryPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """When a failed attempt is tried again. `attempts` counts the first one; delays are in milliseconds."""

    attempts: int = 1
    backoff: Backoff = "fixed"
    initial_delay_ms: int = 0
    non_retryable: tuple[str, ...] = ()

    def allows(self, code: str, *, retryable: bool, attempt: int) -> bool:
        """Whether a failure of `attempt` (1-based) with `code` is followed by another attempt."""
        return retryable and code not in self.non_retryable and attempt < self.attempts

    def delay_ms(self, attempt: int) -> int:
        """The pause after `attempt` (1-based) failed, in milliseconds, an hour at most."""
        return min(self.initial_delay_ms * self._factor(attempt), LONGEST_DELAY_MS)

    def _factor(self, attempt: int) -> int:
        if self.backoff == "linear":
            return attempt
        # the exponent is held small: a large one would cost more than the cap it runs into
        return 1 << min(attempt - 1, 40) if self.backoff == "exponential" else 1


class StepDefinition(msgspec.Struct, frozen=True, kw_only=True):
    """The one step of a workflow, or its compensation. `using` is the runtime asked for, lower case."""

    name: str
    contract: Contract
    using: str | None = None
    timeout_ms: int | None = None
    retry: RetryPolicy = RetryPolicy()
    input_schema: dict[str, Any] = {}
    output_schema: dict[str, Any] = {}


class Workflow(msgspec.Struct, frozen=True, kw_only=True):
    """A one-step workflow."""

    name: str
    version: str
    step: StepDefinition
    compensate: StepDefinition | None = None


class Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line of an execution's history."""

    at_ms: int
    kind: str
    step_id: str | None = None
    attempt: int | None = None
    code: str | None = None
    message: str | None = None
    details: Any = None


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """Why an attempt or an execution failed."""

    code: str
    message: str = ""
    details: Any = None


class Issued(msgspec.Struct, frozen=True):
    """To whom a token was issued, and for which attempt."""

    worker_id: str
    session_id: str
    attempt: int


UnitState = Literal["queued", "in_flight", "backoff", "resolved"]


class Unit(msgspec.Struct, kw_only=True):
    """A step or its compensation, on its way to an outcome.

    `token` is the latest delivery of the current attempt. It stays while that is queued for redelivery:
    a failure of that delivery then still counts. All tokens ever issued are in `tokens`.
    """

    step_id: str
    definition: StepDefinition
    input: Any
    idempotency_key: str
    scheduled_at_ms: int
    state: UnitState = "queued"
    attempt: int = 1
    redelivery: bool = False
    token: str | None = None
    deadline_ms: int | None = None
    due_ms: int | None = None
    tokens: dict[str, Issued] = {}

    @property
    def holder(self) -> str | None:
        """The session whose attempt is in flight, or None."""
        if self.state != "in_flight" or self.token is None:
            return None
        return self.tokens[self.token].session_id


Status = Literal["RUNNING", "COMPLETED", "FAILED", "CANCELLED"]


class Execution(msgspec.Struct, kw_only=True):
    """One run of a workflow, with the definition it was started from.

    `unit` is what runs now; `resolved_tokens` are those of the step, once its compensation runs.
    """

    id: str
    workflow: Workflow
    input: Any
    created_at_ms: int
    updated_at_ms: int
    unit: Unit
    status: Status = "RUNNING"
    cancel_requested: bool = False
    cancel_reason: str | None = None
    compensating: bool = False
    resolved_tokens: dict[str, Issued] = {}
    output: Any = None
    error: Failure | None = None
    finished_at_ms: int | None = None
    history: list[Event] = []

    @property
    def finished(self) -> bool:
        """Whether it has its outcome."""
        return self.status != "RUNNING"

    def note(self, event: Event) -> None:
        """Add an event to the history; the oldest go when there are too many."""
        self.history.append(event)
        self.updated_at_ms = event.at_ms
        if len(self.history) > HISTORY_LIMIT:
            del self.history[: len(self.history) - HISTORY_LIMIT]


class WorkerRecord(msgspec.Struct, kw_only=True):
    """What is known of a worker id that has registered at least once."""

    worker_id: str
    runtime: str
    sdk: str | None
    contracts: tuple[Contract, ...]
    last_contact_ms: int
