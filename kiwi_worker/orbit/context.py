"""What the handler of a task may ask and do."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from kiwi_worker.context import ApplicationSettings, Context, Resources, SendFeedback

if TYPE_CHECKING:
    from kiwi_worker.engine.work import Work
    from kiwi_worker.orbit.wire import Assignment

__all__ = ["TaskContext"]

_logger = logging.getLogger("kiwi_worker.orbit")

_OWN = (
    "execution_id",
    "workflow",
    "workflow_version",
    "step_id",
    "attempt",
    "idempotency_key",
    "redelivery",
    "deadline_ms",
)


class TaskContext(Context):
    """The context of one attempt (section "The task assignment").

    It is a `Context`, too, so that one function can be a method and a task: `request_id` is the token,
    `settings` is empty, and feedback, which this protocol does not have, goes to the debug log.

    Attributes:
        execution_id: the workflow execution.
        workflow, workflow_version: what is executed.
        step_id: the unit being executed.
        attempt: from 1; a redelivery keeps the number.
        idempotency_key: stable over retries and redeliveries.
        redelivery: whether the outcome of an earlier delivery of this attempt is unknown.
        deadline_ms: the runtime's deadline in Unix milliseconds; None without one.
    """

    def __init__(
        self, work: Work, assignment: Assignment, *, resources: Resources, stopping: Callable[[], bool]
    ) -> None:
        super().__init__(
            work,
            request_id=assignment.token,
            settings=ApplicationSettings(),
            resources=resources,
            stopping=stopping,
            send_feedback=_drop_feedback,
        )
        self.execution_id = assignment.execution_id
        self.workflow = assignment.workflow
        self.workflow_version = assignment.workflow_version
        self.step_id = assignment.step_id
        self.attempt = assignment.attempt
        self.idempotency_key = assignment.idempotency_key
        self.redelivery = assignment.redelivery
        self.deadline_ms = assignment.deadline_ms

    def _facts(self) -> dict[str, Any]:
        """What another process makes the same context of."""
        return {name: getattr(self, name) for name in _OWN} | {"token": self.request_id}

    @classmethod
    def _made_of(
        cls,
        work: Work,
        facts: Mapping[str, Any],
        *,
        resources: Resources,
        stopping: Callable[[], bool],
        send_feedback: SendFeedback,
    ) -> TaskContext:
        """The context that `_facts` were taken from, for the work in a handler process."""
        from kiwi_worker.orbit.wire import Assignment

        assignment = Assignment(task_name=work.name, contract_version="", **facts)
        return cls(work, assignment, resources=resources, stopping=stopping)

    def remaining_ms(self) -> int | None:
        """Milliseconds until the attempt times out, 0 when it has; None without a time-out."""
        seconds = self.remaining_seconds()
        return None if seconds is None else int(seconds * 1000)

    def log(self, message: str, *args: Any, level: int = logging.INFO) -> None:
        """Log with the execution, the step and the attempt attached."""
        extra = {"execution_id": self.execution_id, "step_id": self.step_id, "attempt": self.attempt}
        self.logger.log(level, message, *args, extra=extra)


def _drop_feedback(context: Context, content: Any, feedback_type: int | None, persist: bool) -> None:
    _logger.debug("feedback dropped: this protocol has none", extra={"action": "feedback_dropped"})
