"""The misbehaving server's ORBIT side: what version 1 of the worker protocol asks of a runtime, over HTTP."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar, cast

from kiwi_worker.testing.base import MisbehavingServer
from kiwi_worker.testing.exchange import Exchange
from kiwi_worker.testing.orbit_tasks import Delivery, Session, Task, TaskBoard, TaskResult
from kiwi_worker.testing.wire import Reply, Request

__all__ = ["OrbitServer"]

_T = TypeVar("_T")
_LOOK_SECONDS = 0.05
_DEFAULT_WAIT_MS = 20000
_LONGEST_WAIT_MS = 60000
_VERSION = (("x-orbit-api-version", "orbit-api/1"),)

_ROUTES = {
    "/v1/workers/register": "register",
    "/v1/workers/poll": "poll",
    "/v1/workers/heartbeat": "heartbeat",
    "/v1/workers/unregister": "unregister",
    "/v1/tasks/complete": "complete",
    "/v1/tasks/fail": "fail",
}
_REQUIRED = {
    "register": ("worker_id", "runtime", "contracts"),
    "poll": ("worker_session_id",),
    "heartbeat": ("worker_session_id",),
    "unregister": ("worker_session_id",),
    "complete": ("token",),
    "fail": ("token", "error_code"),
}


@dataclass(kw_only=True, eq=False, repr=False)
class OrbitServer(MisbehavingServer):
    """The ORBIT runtime's worker endpoints, in memory; use it as `MisbehavingServer.orbit(…)`.

    Calls: `register`, `poll`, `heartbeat`, `complete`, `fail`, `unregister`.

    Args:
        token: the bearer token it asks for, or None for no authentication.
        session_timeout_seconds: the silence after which a session is over.
        warnings: what a registration is answered with as `warnings`.
        largest_body_bytes: larger requests are answered 413.
    """

    token: str | None = field(default=None, repr=False)
    session_timeout_seconds: float = 30.0
    warnings: tuple[str, ...] = ()
    largest_body_bytes: int = 4 * 1024 * 1024

    call_names: ClassVar[frozenset[str]] = frozenset(_ROUTES.values())

    def __post_init__(self) -> None:
        super().__post_init__()
        self._board = TaskBoard(self.session_timeout_seconds)
        self._registrations: list[dict[str, Any]] = []
        self._heartbeats: list[tuple[str, float]] = []
        self._unregistered: list[str] = []
        self._expired: set[str] = set()

    # --- what a test puts in ---

    def enqueue_task(
        self,
        task_name: str,
        version: str = "1.0.0",
        input: object = None,  # noqa: A002
        *,
        execution_id: str | None = None,
        runtime: str | None = None,
        timeout_ms: int | None = None,
        max_attempts: int = 1,
    ) -> str:
        """Let a task wait for a worker that announced this name and version.

        Args:
            task_name: the task's name.
            version: its contract version.
            input: any JSON value; None for `{}`.
            execution_id: the execution's id; None for a new one. Each execution holds one task.
            runtime: the only language it is for (`using`), or None for any.
            timeout_ms: the step's time-out; over, the attempt fails with `TIMEOUT` and is cancelled.
            max_attempts: how often a retryable failure may be tried.

        Returns:
            The execution id, which results and waits are found by.
        """
        execution_id = str(uuid.uuid4()) if execution_id is None else execution_id
        task = Task(execution_id, task_name, version, {} if input is None else input, runtime)
        task.timeout_ms, task.max_attempts = timeout_ms, max_attempts
        with self._changed:
            self._board.put(task)
            self._changed.notify_all()
        return execution_id

    def cancel(self, token: str) -> None:
        """List the token of a delivery, or all tokens of an execution, in the holder's next heartbeat.

        Raises:
            LookupError: nothing was delivered under this token or execution id.
        """
        with self._changed:
            found = [
                delivery
                for delivery in self._board.deliveries.values()
                if token in (delivery.token, delivery.task.execution_id)
            ]
            if not found:
                raise LookupError(f"nothing was delivered under the token or execution id {token!r}")
            for delivery in found:
                self._board.cancel(delivery)

    def forget_sessions(self) -> None:
        """Forget every session, as a restarted runtime does. Attempts keep their tokens, and are delivered
        again when nobody has reported them within one session time-out."""
        with self._changed:
            self._board.forget_sessions()
            self._changed.notify_all()

    def refuse_outputs(self, task_name: str) -> None:
        """Let every output of this task violate its contract."""
        with self._changed:
            self._board.refused_outputs.add(task_name)

    def change_token(self, token: str | None) -> None:
        """Ask for this bearer token from now on."""
        with self._changed:
            self.token = token

    # --- what a test looks at ---

    @property
    def results(self) -> list[TaskResult]:
        """Every report of a worker, accepted or not, in order."""
        return self._look(lambda: list(self._board.results))

    @property
    def registrations(self) -> list[dict[str, Any]]:
        """The decoded bodies of all registrations, in order."""
        return self._look(lambda: list(self._registrations))

    @property
    def heartbeats(self) -> list[tuple[str, float]]:
        """Worker id and monotonic time of every heartbeat, in order."""
        return self._look(lambda: list(self._heartbeats))

    @property
    def unregistered(self) -> list[str]:
        """The ids of the workers that unregistered a session, in order."""
        return self._look(lambda: list(self._unregistered))

    @property
    def sessions(self) -> dict[str, str]:
        """The living sessions: session id to worker id."""
        return self._look(lambda: {key: held.worker_id for key, held in self._board.sessions.items()})

    def tokens(self, execution_id: str) -> list[str]:
        """The tokens this execution's task was delivered under, in order."""
        return self._look(
            lambda: [
                token
                for token, delivery in self._board.deliveries.items()
                if delivery.task.execution_id == execution_id
            ]
        )

    def results_of(self, execution_id: str) -> list[TaskResult]:
        """Every report on this execution's task, accepted or not, in order."""
        return [result for result in self.results if result.execution_id == execution_id]

    def wait_for_token(self, execution_id: str, count: int = 1, timeout: float = 10.0) -> str:
        """Wait until this execution's task was delivered this many times; the token of the last of them.

        Raises:
            TimeoutError: it was not.
        """
        self.wait_until(
            lambda: len(self.tokens(execution_id)) >= count, timeout, f"delivery {count} of {execution_id}"
        )
        return self.tokens(execution_id)[count - 1]

    def wait_for_result(self, execution_id: str, timeout: float = 10.0) -> TaskResult:
        """Wait until this execution's task has its outcome, and return the report that brought it.

        Raises:
            TimeoutError: it got none.
        """

        def outcome() -> TaskResult | None:
            task = self._board.tasks.get(execution_id)
            final = [result for result in self.results_of(execution_id) if _is_final(result)]
            return final[-1] if task is not None and task.is_resolved and final else None

        self.wait_until(outcome, timeout, f"a result of {execution_id}")
        return cast("TaskResult", self._look(outcome))

    def assert_completed_once(
        self, execution_id: str, output: dict[str, Any] | None = None, *, timeout: float = 10.0
    ) -> TaskResult:
        """Assert that this task was completed by an attempt that was reported with one outcome; the report.

        Args:
            execution_id: the execution.
            output: the output it has to have; None for any.
            timeout: seconds to wait for it.

        Raises:
            AssertionError: it was not; the text says what was reported.
        """
        try:
            result = self.wait_for_result(execution_id, timeout)
        except TimeoutError as error:
            raise AssertionError(str(error)) from None
        same_attempt = (found for found in self.results_of(execution_id) if found.attempt == result.attempt)
        reported = {(found.call, _content(found)) for found in same_attempt}
        if result.call != "complete" or not result.accepted or len(reported) > 1:
            raise AssertionError(f"{execution_id} was not completed once: {sorted(reported)}")
        found_output = result.body.get("output")
        if output is not None and found_output != output:
            raise AssertionError(f"{execution_id} has the output {found_output!r}, not {output!r}")
        return result

    def enqueue_described(self, keywords: dict[str, Any]) -> str:
        """`enqueue_task` with these keywords, for the control path."""
        return self.enqueue_task(**keywords)

    def answers(self) -> list[dict[str, Any]]:
        """`results` as plain values, for the control path."""
        return [vars(result) for result in self.results]

    # --- the protocol ---

    def _name_of(self, request: Request) -> str | None:
        return _ROUTES.get("/" + "/".join(request.segments)) if request.method == "POST" else None

    def _perform(self, exchange: Exchange) -> Reply:
        refusal = self._refusal(exchange)
        if refusal is not None:
            return refusal
        name, request = exchange.call.name, exchange.request
        if name == "other":
            return _error(404, "NOT_FOUND", "no such endpoint")
        body = request.json_object()
        if body is None:
            return _text(400, "the body is not valid JSON")
        missing = [field for field in _REQUIRED[name] if body.get(field) is None]
        if missing:
            return _text(422, f"missing field `{missing[0]}`")
        handler: Callable[[Exchange, dict[str, Any]], Reply] = getattr(self, f"_{name}")
        return handler(exchange, body)

    def _refusal(self, exchange: Exchange) -> Reply | None:
        request = exchange.request
        if not self._is_authentic(exchange):
            refused = _error(401, "UNAUTHENTICATED", "missing or invalid credentials")
            return Reply(401, refused.body)
        if len(request.body) > self.largest_body_bytes:
            return _text(413, "length limit exceeded")
        if (request.header("content-type") or "").partition(";")[0].strip().lower() != "application/json":
            return _text(415, "Expected request with `Content-Type: application/json`")
        return None

    def _is_authentic(self, exchange: Exchange) -> bool:
        token = (exchange.request.header("authorization") or "").removeprefix("Bearer ")
        with self._changed:
            if exchange.token_expired:
                self._expired.add(token)
                return False
            return self.token is None or (token == self.token and token not in self._expired)

    def _take_back(self, reply: Reply) -> None:
        with self._changed:
            for delivery in cast("tuple[Delivery, ...]", reply.taken):
                self._board.take_back(delivery)
            self._changed.notify_all()

    def _register(self, exchange: Exchange, body: dict[str, Any]) -> Reply:
        contracts = _contracts(body["contracts"])
        worker_id = body["worker_id"]
        if not isinstance(worker_id, str) or not worker_id.strip() or not contracts:
            return _error(400, "INVALID_REQUEST", "worker_id is blank, or contracts is empty")
        if any(name.startswith("orbit.") for name, _ in contracts):
            return _error(400, "RESERVED_TASK", "names that start with `orbit.` are built-in tasks")
        exchange.call.worker_id = worker_id
        with self._changed:
            self._registrations.append(body)
            session = self._board.open_session(worker_id, str(body["runtime"]), contracts)
            self._changed.notify_all()
        timeout_ms = int(self.session_timeout_seconds * 1000)
        return _json(
            {
                "accepted": True,
                "worker_session_id": session.session_id,
                "heartbeat_interval_ms": max(500, timeout_ms // 6),
                "session_timeout_ms": timeout_ms,
                "warnings": list(self.warnings),
            }
        )

    def _poll(self, exchange: Exchange, body: dict[str, Any]) -> Reply:
        wait_ms = min(int(body.get("wait_ms") or _DEFAULT_WAIT_MS), _LONGEST_WAIT_MS)
        deadline = time.monotonic() + wait_ms / 1000
        with self._changed:
            while True:
                session = self._session(exchange, body)
                if session is None:
                    return _unknown_session()
                if exchange.is_over():
                    return Reply(204, headers=_VERSION)
                delivery = self._board.next_for(session)
                if delivery is not None:
                    self._changed.notify_all()
                    return self._assignment(delivery)
                if time.monotonic() >= deadline:
                    return Reply(204, headers=_VERSION)
                self._changed.wait(min(_LOOK_SECONDS, deadline - time.monotonic()))

    def _assignment(self, delivery: Delivery) -> Reply:
        fields = delivery.assignment(delivery.task.uncertain)
        return Reply(200, json.dumps(fields).encode(), headers=_VERSION, taken=(delivery,))

    def _heartbeat(self, exchange: Exchange, body: dict[str, Any]) -> Reply:
        with self._changed:
            session = self._session(exchange, body)
            if session is None:
                return _unknown_session()
            cancelled, session.cancel = session.cancel, []
            self._heartbeats.append((session.worker_id, time.monotonic()))
            self._changed.notify_all()
        return _json({"accepted": True, "cancel": cancelled})

    def _unregister(self, exchange: Exchange, body: dict[str, Any]) -> Reply:
        with self._changed:
            session = self._session(exchange, body)
            if session is None:
                return _error(404, "UNKNOWN_SESSION", "unknown worker session")
            self._board.end_session(session)
            self._unregistered.append(session.worker_id)
            self._changed.notify_all()
        return _json({"accepted": True})

    def _complete(self, exchange: Exchange, body: dict[str, Any]) -> Reply:
        if not isinstance(body.get("output") or {}, dict):
            return _text(422, "output: expected an object")
        return self._report(body, self._board.complete, ("token",))

    def _fail(self, exchange: Exchange, body: dict[str, Any]) -> Reply:
        return self._report(body, self._board.fail, ("token", "error_code"))

    def _report(
        self, body: dict[str, Any], take: Callable[[dict[str, Any]], TaskResult], filled: tuple[str, ...]
    ) -> Reply:
        for field_name in filled:
            if not isinstance(body[field_name], str) or not body[field_name]:
                return _error(400, "INVALID_REQUEST", f"{field_name} is empty")
        with self._changed:
            self._board.tick()
            result = take(body)
            self._changed.notify_all()
        if result.accepted:
            return _json({"accepted": True})
        return _json({"accepted": False, "reason": result.reason})

    def _session(self, exchange: Exchange, body: dict[str, Any]) -> Session | None:
        session = self._board.touch(body["worker_session_id"])
        if session is not None:
            exchange.call.worker_id = session.worker_id
        return session

    # --- inside ---

    def _look(self, read: Callable[[], _T]) -> _T:
        with self._changed:
            return read()


def _is_final(result: TaskResult) -> bool:
    return result.accepted or result.reason == "output violates the task contract"


def _content(result: TaskResult) -> str:
    return json.dumps({key: value for key, value in result.body.items() if key != "token"}, sort_keys=True)


def _contracts(listed: object) -> frozenset[tuple[str, str]]:
    if not isinstance(listed, list):
        return frozenset()
    return frozenset(
        (str(entry.get("task_name")), str(entry.get("contract_version")))
        for entry in listed
        if isinstance(entry, dict)
    )


def _json(fields: dict[str, Any]) -> Reply:
    return Reply(200, json.dumps(fields).encode(), headers=_VERSION)


def _text(status: int, text: str) -> Reply:
    return Reply(status, text.encode(), "text/plain; charset=utf-8", _VERSION)


def _error(status: int, code: str, message: str) -> Reply:
    body = json.dumps({"error": {"code": code, "message": message}}).encode()
    return Reply(status, body, headers=_VERSION)


def _unknown_session() -> Reply:
    return _error(404, "UNKNOWN_SESSION", "unknown or expired worker session; register again")
