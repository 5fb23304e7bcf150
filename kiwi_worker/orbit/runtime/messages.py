"""What the core is asked and what it answers; the same for both bindings (ORBIT page, "Endpoints")."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from kiwi_worker.orbit.runtime.model import Contract, Execution, Unit


@dataclass(frozen=True)
class Registration:
    """The body of a registration."""

    worker_id: str
    runtime: str
    contracts: tuple[Contract, ...]
    sdk: str | None = None


class Registered(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a registration."""

    accepted: bool = True
    worker_session_id: str
    heartbeat_interval_ms: int
    session_timeout_ms: int
    warnings: list[str]


class Assignment(msgspec.Struct, frozen=True, kw_only=True):
    """One delivery of a task."""

    token: str
    execution_id: str
    workflow: str
    workflow_version: str
    step_id: str
    task_name: str
    contract_version: str
    input: Any
    idempotency_key: str
    attempt: int
    redelivery: bool
    deadline_ms: int | UnsetType = UNSET
    timeout_ms: int | UnsetType = UNSET


def assignment_of(execution: Execution, unit: Unit, token: str) -> Assignment:
    """The delivery of a unit under this token."""
    definition = unit.definition
    return Assignment(
        token=token,
        execution_id=execution.id,
        workflow=execution.workflow.name,
        workflow_version=execution.workflow.version,
        step_id=unit.step_id,
        task_name=definition.contract.task_name,
        contract_version=definition.contract.contract_version,
        input=unit.input,
        idempotency_key=unit.idempotency_key,
        attempt=unit.attempt,
        redelivery=unit.redelivery,
        deadline_ms=UNSET if unit.deadline_ms is None else unit.deadline_ms,
        timeout_ms=UNSET if definition.timeout_ms is None else definition.timeout_ms,
    )


class Ack(msgspec.Struct, frozen=True):
    """The final answer to a result."""

    accepted: bool
    reason: str | UnsetType = UNSET


RECORDED = Ack(True)
VIOLATION = Ack(False, "output violates the task contract")
STALE = Ack(False, "stale attempt")
DUPLICATE = Ack(False, "duplicate result; step already resolved")
UNKNOWN_TOKEN = Ack(False, "unknown token (execution finished or token invalid)")
