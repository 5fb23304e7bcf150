"""Executions and workers as the HTTP API shows them."""

from __future__ import annotations

from typing import Any

from kiwi_worker.orbit.runtime.model import Execution, WorkerRecord
from kiwi_worker.orbit.runtime.sessions import Session


def execution_summary(execution: Execution) -> dict[str, Any]:
    """One line of the list of executions."""
    return {
        "id": execution.id,
        "workflow": execution.workflow.name,
        "version": execution.workflow.version,
        "created_at_ms": execution.created_at_ms,
        "status": execution.status,
    }


def execution_view(execution: Execution) -> dict[str, Any]:
    """An execution with all that is known of it. The order of the fields is the transcript's."""
    return {
        "id": execution.id,
        "workflow": execution.workflow.name,
        "version": execution.workflow.version,
        "input": execution.input,
        "created_at_ms": execution.created_at_ms,
        "status": execution.status,
        "cancel_requested": execution.cancel_requested,
        "updated_at_ms": execution.updated_at_ms,
        "finished_at_ms": execution.finished_at_ms,
        "output": execution.output,
        "error": execution.error,
        "history": execution.history,
    }


def worker_view(worker: WorkerRecord, sessions: list[Session]) -> dict[str, Any]:
    """A worker that has registered at least once."""
    return {
        "worker_id": worker.worker_id,
        "runtime": worker.runtime,
        "sdk": worker.sdk,
        "contracts": worker.contracts,
        "last_contact_ms": worker.last_contact_ms,
        "online": bool(sessions),
        "sessions": len(sessions),
        "in_flight": sum(len(session.held) for session in sessions),
    }
