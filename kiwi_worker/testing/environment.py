"""Calling handlers as a worker does, with a context and no server.

    from kiwi_worker.testing.environment import HandlerEnvironment

    with HandlerEnvironment(worker) as environment:
        environment.call("hello", {"name": "Ada"}).assert_success("hello Ada")

Params are checked, results encoded, and errors turned into answers by the code that does it in a worker;
plain handlers run on the thread of the test, so that a debugger and monkeypatches find them.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any

from kiwi_worker.context import ApplicationSettings, Resources
from kiwi_worker.engine.binding import Report
from kiwi_worker.engine.engine import Engine
from kiwi_worker.engine.outcomes import Ending
from kiwi_worker.engine.supervision import Crew
from kiwi_worker.engine.work import Work
from kiwi_worker.orbit import OrbitWorker
from kiwi_worker.settings.secret import Secret
from kiwi_worker.testing.desks import Answers, Desk, KiwiDesk, OrbitDesk, SentFeedback
from kiwi_worker.testing.sources import Source, worker_of
from kiwi_worker.worker import Worker

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["HandlerAnswer", "HandlerEnvironment", "RunningCall", "SentFeedback"]

WAIT_SECONDS = 10.0
_ANYTHING: Any = ...


@dataclasses.dataclass(frozen=True)
class HandlerAnswer:
    """What the caller of a handler would see.

    Attributes:
        status: of a method `success`, `error` or `failed`; of a task `completed`, `failed` or `abandoned`.
        body: all that would be sent, as a dict; empty when it was abandoned.
        result: the result or output, decoded from its JSON; None without one.
        error_text: the `error_text` or `error_message`; None without one.
        code: the `error_code` of a task; None without one.
        retryable: whether a failed task may be tried again; None otherwise.
        feedback: what the handler gave as feedback so far, in order.
    """

    status: str
    body: Mapping[str, Any]
    result: Any
    error_text: str | None
    code: str | None
    retryable: bool | None
    feedback: tuple[SentFeedback, ...]

    def assert_success(self, result: Any = _ANYTHING) -> HandlerAnswer:
        """It succeeded, with this result when one is given; compared as JSON, as a caller gets it."""
        _require(self.status in ("success", "completed"), f"{self.status}: {self._why}")
        if result is not _ANYTHING:
            _require(self.result == result, f"the result is {self.result!r}, not {result!r}")
        return self

    def assert_failed(
        self, text: str = "", *, code: str | None = None, retryable: bool | None = None
    ) -> HandlerAnswer:
        """The handler failed: it raised, or was cancelled, or passed its time limit.

        Args:
            text: what the error text has to contain.
            code: the error code of a task.
            retryable: whether the task may be tried again.
        """
        return self._assert_not_done("failed", text, code, retryable)

    def assert_error(self, text: str = "") -> HandlerAnswer:
        """The method was answered with `error`: bad parameters, an unknown method, or `MethodError`."""
        return self._assert_not_done("error", text, None, None)

    def _assert_not_done(
        self, status: str, text: str, code: str | None, retryable: bool | None
    ) -> HandlerAnswer:
        _require(self.status == status, f"the status is {self.status}, not {status}: {self._why}")
        _require(text in (self.error_text or ""), f"{text!r} is not in {self.error_text!r}")
        _require(code in (None, self.code), f"the code is {self.code}, not {code}")
        _require(retryable in (None, self.retryable), f"retryable is {self.retryable}")
        return self

    @property
    def _why(self) -> str:
        return repr(self.result) if self.error_text is None else self.error_text


class RunningCall:
    """A call that runs while the test goes on.

    Attributes:
        request_id: its request id, or token.
    """

    def __init__(self, work: Work, answers: Answers) -> None:
        self._work = work
        self._answers = answers
        self.request_id = work.key

    @property
    def done(self) -> bool:
        """Whether it was answered."""
        return self._answers.has(self.request_id)

    @property
    def feedback(self) -> tuple[SentFeedback, ...]:
        """What the handler gave as feedback so far."""
        return self._answers.feedback(self.request_id)

    def cancel(self) -> None:
        """Cancel it: the context says so, and an async handler is cancelled."""
        self._work.cancel(Ending.CANCELLED)

    def wait(self, timeout: float = WAIT_SECONDS) -> HandlerAnswer:
        """Its answer, once it is there.

        Raises:
            TimeoutError: it is not there after `timeout` seconds.
        """
        report = self._answers.wait(self.request_id, timeout)
        return _answer(report, self._answers.feedback(self.request_id))


class HandlerEnvironment:
    """Calls the handlers of a worker, or of a registry, with a context and no server.

    Handlers with `executor="process"` run on a thread here.

    Args:
        source: whose handlers.
        settings: the application settings that a registration would bring.
        resources: stand-ins for what resource hooks make. With them the worker's hooks are not run; without,
            they are run at the start and the end, as in a worker.

    Raises:
        HookError: a start hook raised (when it is entered, or first used).
    """

    def __init__(
        self,
        source: Source,
        *,
        settings: Mapping[str, str] | None = None,
        resources: Mapping[str, Any] | None = None,
    ) -> None:
        worker: Worker | OrbitWorker = worker_of(source)
        self._worker = worker
        self._own_resources = resources is not None
        self._answers = Answers()
        self._numbers = itertools.count(1)
        self._opened = self._closed = False
        self._crew = Crew(f"environment-{worker.settings.worker_id}", self._note_fatal)
        made = worker._hooks.resources if resources is None else Resources(resources)
        self._desk, self._release = _desk(worker, self._crew, made)
        self._desk.answers = self._answers
        if isinstance(self._desk, KiwiDesk):
            self._desk.application_settings = ApplicationSettings(settings)
        self._engine = Engine(
            crew=self._crew,
            binding=self._desk,
            definitions=worker._definitions(),
            limits=worker._limits()._replace(grace_period=0.0),
            around=tuple(worker._around),
            run_in_process=_never_in_a_process,
        )
        for served in self._engine.served.values():
            served.runs_in_process = False

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def open(self) -> None:
        """Run the start hooks; the first call does that, too."""
        if self._closed:
            raise RuntimeError("this handler environment was closed")
        if not self._opened:
            self._opened = True
            if not self._own_resources:
                self._worker._hooks.start(self._engine.loop.call)

    def close(self) -> None:
        """Cancel what still runs and run the stop hooks."""
        if self._closed:
            return
        self._closed = True
        started = threading.Event()
        started.set()
        hooks = self._opened and not self._own_resources
        self._engine.stop(
            hurry=lambda: True, last=self._worker._hooks.stop if hooks else lambda: None, started=started
        )
        self._release()

    def stop_worker(self) -> None:
        """From now on `context.is_stopping` is true, as when the worker shuts down."""
        self._desk.stop_now()

    def call(
        self,
        name: str | Callable[..., Any],
        params: Any = None,
        *,
        time_limit: float | None = None,
        cancelled: bool = False,
        timeout: float = WAIT_SECONDS,
        **delivery: Any,
    ) -> HandlerAnswer:
        """Call a handler and give its answer; a plain one runs on this thread.

        Args:
            name: the method or task, by name, or the function itself.
            params: the params or the input; anything that has a JSON form.
            time_limit: seconds until its caller's limit is over, beside its own. A method is answered then; a
                task only sees it in its context, since the runtime knows its own limit.
            cancelled: whether it is cancelled already when it begins.
            timeout: seconds to wait for the answer of an async handler.
            delivery: of a method `request_id` and `lock_required`; of a task `version`, `execution_id`,
                `step_id`, `attempt`, `redelivery`, `idempotency_key`, `workflow`, `workflow_version`.

        Raises:
            TimeoutError: there is no answer after `timeout` seconds.
        """
        work = self._work(name, params, time_limit, delivery)
        if cancelled:
            work.cancel(Ending.CANCELLED)
        self._engine.slots.run(work, self._desk.lane("call"))
        return RunningCall(work, self._answers).wait(timeout)

    def start(
        self,
        name: str | Callable[..., Any],
        params: Any = None,
        *,
        time_limit: float | None = None,
        **delivery: Any,
    ) -> RunningCall:
        """Call a handler on a thread of its own, and go on; takes what `call` takes."""
        work = self._work(name, params, time_limit, delivery)
        lane = self._desk.lane("call")
        self._crew.start(f"call-{next(self._numbers)}", lambda: self._engine.slots.run(work, lane))
        return RunningCall(work, self._answers)

    @property
    def background_feedback(self) -> tuple[SentFeedback, ...]:
        """Feedback from outside a request, so far."""
        return self._answers.feedback(None)

    def _work(
        self, name: str | Callable[..., Any], params: Any, time_limit: float | None, delivery: dict[str, Any]
    ) -> Work:
        self.open()
        key = self._key(name, delivery.pop("version", None))
        if isinstance(self._desk, KiwiDesk):
            work = _message(self._desk, key, params, **delivery)
        else:
            work = _attempt(self._desk, key, params, delivery)
        if time_limit is not None:
            work.outer_deadline = time.monotonic() + time_limit
        return work

    def _key(self, name: str | Callable[..., Any], version: str | None) -> Any:
        for key, definition in self._worker._definitions():
            own_version = getattr(definition, "version", None)
            if name in (definition.name, definition.function) and version in (None, own_version):
                return key
        if callable(name):
            raise LookupError(f"{name!r} is no handler of {self._worker!r}")
        # What is not known is answered as a worker would.
        return name if isinstance(self._desk, KiwiDesk) else (name, version or "")

    def _note_fatal(self, error: BaseException) -> None:
        raise error


def _desk(worker: Worker | OrbitWorker, crew: Crew, resources: Resources) -> tuple[Desk, Callable[[], None]]:
    if isinstance(worker, Worker):
        from kiwi_worker.kiwi.assembly import assemble

        settings = dataclasses.replace(worker.settings, auth_secret=Secret("none"), auth_secret_file=None)
        return assemble(settings, crew, resources, _ignore, _nothing, KiwiDesk)
    from kiwi_worker.orbit.assembly import assemble as assemble_tasks

    return assemble_tasks(worker.settings, crew, resources, _nothing, OrbitDesk)


def _message(
    desk: KiwiDesk, method: str, params: Any, request_id: str | None = None, lock_required: bool = False
) -> Work:
    return desk.work(request_id or str(uuid.uuid4()), method, params, lock_required)


def _attempt(desk: OrbitDesk, key: tuple[str, str], task_input: Any, delivery: dict[str, Any]) -> Work:
    import msgspec

    from kiwi_worker.orbit.wire import Assignment

    fields = {
        "execution_id": str(uuid.uuid4()),
        "step_id": "step",
        "idempotency_key": str(uuid.uuid4()),
        "token": str(uuid.uuid4()),
        **delivery,
    }
    given = msgspec.Raw(msgspec.json.encode({} if task_input is None else task_input))
    return desk.attempt(Assignment(task_name=key[0], contract_version=key[1], input=given, **fields))


def _answer(report: Report | None, feedback: tuple[SentFeedback, ...]) -> HandlerAnswer:
    body: dict[str, Any] = {} if report is None else json.loads(report.body)
    if report is None:
        status = "abandoned"
    else:
        status = {"complete": "completed", "fail": "failed"}.get(report.route) or body["status"]
    return HandlerAnswer(
        status,
        body,
        body.get("result", body.get("output")),
        body.get("error_text", body.get("error_message")),
        body.get("error_code"),
        body.get("retryable"),
        feedback,
    )


def _never_in_a_process(*_: Any) -> Any:
    raise AssertionError("no handler runs in a process here")


def _ignore(error: BaseException) -> None:
    """Nothing here ends a worker."""


def _nothing() -> None:
    """Nobody has to know."""


def _require(holds: bool, problem: str) -> None:
    # Not a bare assert: what a test of a user relies on holds under python -O, too.
    if not holds:
        raise AssertionError(problem)
