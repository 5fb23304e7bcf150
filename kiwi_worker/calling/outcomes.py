"""What a client gets back."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

__all__ = ["Feedback", "MethodInfo", "Outcome", "Status", "WorkerInfo"]

Status = Literal["success", "failed", "error", "pending"]


class Outcome(msgspec.Struct, frozen=True):
    """How a call stands.

    Attributes:
        request_id: the call.
        status: `success`, `failed` and `error` as its worker (or, with a `reason`, the middleware) said, or
            `pending`.
        result: what the method returned, None unless it was a success.
        error_text: what went wrong, None unless something did.
        reason: None, or why the middleware ended the call itself: `expired`, `worker_died`, `cancelled`.
        state: `waiting` or `running` while it is pending.
    """

    request_id: str
    status: Status
    result: Any = None
    error_text: str | None = None
    reason: str | None = None
    state: str | None = None

    @property
    def ended(self) -> bool:
        """Whether there is nothing more to wait for."""
        return self.status != "pending"


class Feedback(msgspec.Struct, frozen=True, rename={"feedback_type": "type"}):
    """One piece of feedback from a handler; `content` is what it sent, `at` the Unix time it arrived."""

    request_id: str
    content: Any = None
    feedback_type: int = 0
    source_type: int = 1
    source_name: str = ""
    at: float = 0.0
    feedback_id: int = 0


class WorkerInfo(msgspec.Struct, frozen=True):
    """A live worker of the service."""

    worker_id: str
    run_mode: str
    methods: list[str]
    unanswered: int
    stopping: bool
    registered_at: float
    seen_seconds_ago: float
    version: str | None = None
    platform: str | None = None
    tags: dict[str, str] = {}


class MethodInfo(msgspec.Struct, frozen=True):
    """A method that live workers serve, and how many of them."""

    method: str
    workers: int
