"""The core of the dev runtime with a clock turned by hand."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec

from kiwi_worker.orbit.runtime.core import RuntimeCore
from kiwi_worker.orbit.runtime.deployment import parse_deployment
from kiwi_worker.orbit.runtime.identities import ADMIN, Caller
from kiwi_worker.orbit.runtime.messages import Ack, Assignment, Registered, Registration
from kiwi_worker.orbit.runtime.model import Contract, Execution, Failure
from kiwi_worker.orbit.runtime.polls import Poll

GREETING = Contract("greeting.compose", "1.0.0")
UNDO = Contract("greeting.undo", "1.0.0")


def workflow(name: str = "Greet", **step: Any) -> dict[str, Any]:
    """A workflow as the TOML file would have it."""
    compensate = step.pop("compensate", None)
    task = {"name": "compose", "task": GREETING.task_name, "contract_version": GREETING.contract_version}
    entry: dict[str, Any] = {"name": name, "version": "1.0.0", "step": task | step}
    return entry if compensate is None else entry | {"compensate": compensate}


class Desk:
    """A core, and short names for what a test does with it."""

    def __init__(self, *workflows: dict[str, Any], session_timeout_ms: int = 30_000) -> None:
        self.deployment = parse_deployment({"workflow": list(workflows or (workflow(),))})
        self.session_timeout_ms = session_timeout_ms
        self.now = 1_000_000
        self._numbers = itertools.count(1)
        self.core = self._new_core()

    def _new_core(self) -> RuntimeCore:
        return RuntimeCore(
            self.deployment,
            session_timeout_ms=self.session_timeout_ms,
            new_id=lambda: f"id-{next(self._numbers)}",
        )

    def pass_ms(self, milliseconds: int) -> None:
        self.now += milliseconds
        self.core.advance(self.now)

    def restart(self) -> None:
        """A new core that knows what a store would have kept."""
        kept = [msgspec.json.decode(msgspec.json.encode(each), type=Execution) for each in self.executions()]
        workers = [worker for worker, _ in self.core.workers(self.now)]
        self.core = self._new_core()
        self.core.restore(kept, workers, self.now)

    def executions(self) -> list[Execution]:
        return self.core.executions(self.now)

    def register(
        self,
        worker_id: str = "w1",
        *contracts: Contract,
        runtime: str = "python",
        caller: Caller = ADMIN,
    ) -> Registered:
        request = Registration(worker_id, runtime, contracts or (GREETING, UNDO))
        return self.core.register(caller, request, self.now)

    def session(self, worker_id: str = "w1", *contracts: Contract, runtime: str = "python") -> str:
        return self.register(worker_id, *contracts, runtime=runtime).worker_session_id

    def start(self, execution_id: str = "e1", name: str = "Greet", value: Any = None) -> str:
        return self.core.start(name, value, execution_id, self.now)[0]

    def poll(self, session_id: str, wait_ms: int | None = 0, caller: Caller = ADMIN) -> Poll:
        return self.core.poll(caller, session_id, wait_ms, self.now)

    def take(self, session_id: str) -> Assignment:
        """The task that a poll must bring at once."""
        assignment = self.poll(session_id).assignment
        assert assignment is not None, "the poll brought no task"
        return assignment

    def heartbeat(self, session_id: str, caller: Caller = ADMIN) -> list[str]:
        return self.core.heartbeat(caller, session_id, self.now)

    def unregister(self, session_id: str, caller: Caller = ADMIN) -> None:
        self.core.unregister(caller, session_id, self.now)

    def complete(self, token: str, output: Any = None, caller: Caller = ADMIN) -> Ack:
        return self.core.complete(caller, token, output, self.now)

    def fail(
        self,
        token: str,
        code: str = "BUSY",
        message: str = "",
        caller: Caller = ADMIN,
        retryable: bool = True,
    ) -> Ack:
        failure = Failure(code=code, message=message)
        return self.core.fail(caller, token, failure, self.now, retryable=retryable)

    def cancel(self, execution_id: str = "e1", reason: str | None = None) -> Execution:
        return self.core.cancel(execution_id, reason, self.now)

    def status(self, execution_id: str = "e1") -> str:
        return self.execution(execution_id).status

    def execution(self, execution_id: str = "e1") -> Execution:
        return self.core.execution(execution_id, self.now)

    def error(self, execution_id: str = "e1") -> tuple[str, str]:
        error = self.execution(execution_id).error
        assert error is not None
        return error.code, error.message
