"""The client side of an ORBIT runtime, once: every call as a generator of effects, for both faces."""

from __future__ import annotations

import itertools
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar
from urllib.parse import quote

import msgspec

from kiwi_worker.calling.effects import Ask, Pause, Steps
from kiwi_worker.errors import Ambiguous, CallError, NotSent, ProtocolError
from kiwi_worker.results import encode_result
from kiwi_worker.settings import Settings, secret_reader, setting
from kiwi_worker.settings.kinds import InputFile, ListOf, Seconds, SecretText, Url
from kiwi_worker.settings.secret import MaskedUrl, Secret
from kiwi_worker.transport.answer import Answer
from kiwi_worker.transport.retry import Backoff, is_transient, retry_after_seconds

LONGEST_HANG_SECONDS = 25.0
"""How long one request may hang; longer waits are several requests, as proxies like it."""

READ_MARGIN_SECONDS = 15.0
NOT_LEADER = "NOT_LEADER"

_OPEN_STATUSES = frozenset({"PENDING", "QUEUED", "SCHEDULED", "RUNNING", "WAITING", "CANCELLING", "PAUSED"})


class OrbitCallError(CallError):
    """The runtime refused a call; `code` and `http_status` say why."""


class UnknownExecution(OrbitCallError):
    """There is no execution of this id (`UNKNOWN_EXECUTION`)."""


class UnknownWorkflow(OrbitCallError):
    """No workflow of this name is deployed (`UNKNOWN_WORKFLOW`)."""


class InvalidRequest(OrbitCallError):
    """What was sent is not valid: 400, 413, 415 or 422; the input may not fit the workflow's contract."""


class NotPermitted(OrbitCallError):
    """The token is missing, wrong (401), or may not do this (403)."""


class RuntimeFailure(OrbitCallError):
    """The runtime failed, or no server was the leader, for as long as the call was repeated (5xx)."""


_BY_CODE = {"UNKNOWN_EXECUTION": UnknownExecution, "UNKNOWN_WORKFLOW": UnknownWorkflow}


@dataclass(frozen=True)
class ExecutionError:
    """Why an execution failed. As text it reads `CODE: message`."""

    code: str
    message: str = ""
    details: Any = None

    def __str__(self) -> str:
        return f"{self.code}: {self.message}" if self.message else self.code


@dataclass(frozen=True)
class Execution:
    """An execution as the runtime shows it.

    Attributes:
        status: `RUNNING`, `COMPLETED`, `FAILED`, `CANCELLED`, or another word of the runtime's.
        output: what the workflow returned, when it completed.
        error: why it did not.
        raw: the whole answer, with whatever else the runtime tells.
    """

    id: str
    status: str
    workflow: str | None = None
    version: str | None = None
    output: Any = None
    error: ExecutionError | None = None
    raw: Any = None

    @property
    def finished(self) -> bool:
        """Whether it has its outcome."""
        return self.status not in _OPEN_STATUSES


@dataclass(frozen=True)
class RegisteredWorker:
    """A worker that has registered with the runtime; `raw` is all that the runtime tells of it."""

    worker_id: str
    runtime: str | None = None
    sdk: str | None = None
    online: bool | None = None
    raw: Any = None


@dataclass(frozen=True, repr=False, kw_only=True)
class OrbitClientSettings(Settings):
    """Where the runtime is, and with which token it is called."""

    environment_prefix: ClassVar[str] = "ORBIT_"
    warned_prefixes: ClassVar[tuple[str, ...]] = ("ORBIT_",)
    credential: ClassVar[tuple[str, str] | None] = ("token", "token_file")

    server: tuple[str, ...] = setting(
        ListOf(Url("http", "https", "grpc", "grpcs"), fewest=1),
        "the address of the runtime, or several, tried in turn",
        default=(MaskedUrl("http://127.0.0.1:7233"),),
    )
    token: Secret | None = setting(SecretText(header=True), "the bearer token for the runtime")
    token_file: str | None = setting(
        InputFile("-"),
        "the file that holds the bearer token (-: standard input)",
        note="It is read again when the runtime refuses the token.",
    )
    ca_file: str | None = setting(
        InputFile(),
        "the PEM file of the authorities that may sign the runtime's certificate",
        environment=("KIWI_CA_FILE",),
    )
    client_cert: str | None = setting(
        InputFile(),
        "the PEM file of the certificate that is shown to the runtime",
        environment=("KIWI_CLIENT_CERT",),
    )
    client_key: str | None = setting(
        InputFile(), "the PEM file of that certificate's key", environment=("KIWI_CLIENT_KEY",)
    )
    connect_timeout: float = setting(
        Seconds(0.001), "the time that opening a connection may take, in seconds", default=5
    )
    retry_limit: float = setting(
        Seconds(),
        "the time for which a call that no server answered is tried again, in seconds",
        default=10,
    )

    def _check_together(self) -> None:
        super()._check_together()
        if any(address.startswith("grpc") for address in self.server):
            self._refuse(
                "server",
                "the client speaks HTTP only: the protocol's gRPC service has no calls for executions; "
                "give the http:// or https:// address of the runtime's API port",
            )


@dataclass(frozen=True)
class ServerAsk(Ask):
    """An `Ask` of one of the servers, by its place in the setting."""

    server: int = 0


class Calls:
    """Knows the routes, which server to ask next, and what an answer means; carries nothing out itself.

    Every call may be sent again without harm: an execution is started under an id that is made here.

    Args:
        settings: the servers and the token.
        clock: monotonic seconds.
    """

    def __init__(self, settings: OrbitClientSettings, clock: Callable[[], float] = time.monotonic) -> None:
        self._servers = len(settings.server)
        self._retry_limit_seconds = settings.retry_limit
        self._token = secret_reader(settings)
        self._authorization: str | None = None
        self._server = 0
        self._clock = clock

    def start(self, workflow: str, value: object, execution_id: str | None) -> Steps[str]:
        """Start an execution; its id."""
        wanted = str(uuid.uuid4()) if execution_id is None else execution_id
        body = {
            "workflow": workflow,
            "input": msgspec.Raw(encode_result(value, called="input")),
            "execution_id": wanted,
        }
        answer = yield from self._call(Ask("POST", "/v1/executions", msgspec.json.encode(body)))
        return str(_object(answer).get("execution_id", wanted))

    def wait(self, execution_id: str, timeout_seconds: float | None) -> Steps[Execution]:
        """Wait for an execution; as it stands when the time is over."""
        until = None if timeout_seconds is None else self._clock() + timeout_seconds
        backoff = Backoff(0.2, 5.0)
        while True:
            hang = self._hang(until)
            asked = self._clock()
            path = f"{_path(execution_id)}/wait?timeout_ms={round(hang * 1000)}"
            answer = yield from self._call(Ask("GET", path, read_seconds=hang + READ_MARGIN_SECONDS))
            execution = _execution(answer)
            if execution.finished or (until is not None and self._clock() >= until):
                return execution
            # a runtime that does not hang as long as it was asked to must not be asked in a circle
            if self._clock() - asked < hang / 2:
                yield Pause(min(backoff.next(), self._hang(until)))

    def _hang(self, until: float | None) -> float:
        longest = LONGEST_HANG_SECONDS
        return longest if until is None else min(longest, max(0.0, until - self._clock()))

    def fetch(self, execution_id: str) -> Steps[Execution]:
        """An execution as it stands."""
        return _execution((yield from self._call(Ask("GET", _path(execution_id)))))

    def cancel(self, execution_id: str, reason: str | None) -> Steps[Execution]:
        """Ask an execution to stop; as it stands then."""
        body = msgspec.json.encode({} if reason is None else {"reason": reason})
        return _execution((yield from self._call(Ask("POST", f"{_path(execution_id)}/cancel", body))))

    def workers(self) -> Steps[list[RegisteredWorker]]:
        """Every worker that has registered."""
        answer = yield from self._call(Ask("GET", "/v1/workers"))
        content = _decoded(answer)
        listed = content.get("workers") if isinstance(content, dict) else content
        if not isinstance(listed, list):
            raise _not_the_protocol(answer)
        return [_worker(each, answer) for each in listed]

    def _call(self, ask: Ask) -> Steps[Answer]:
        """Ask one server after the other, for a limited time, until one gives a final answer."""
        until = self._clock() + self._retry_limit_seconds
        backoff = Backoff(0.2, 5.0)
        for attempt in itertools.count():
            last = self._clock() >= until and attempt + 1 >= self._servers
            try:
                answer = yield from self._authorized(ask)
            except (NotSent, Ambiguous):
                if last:
                    raise
                wanted = None
            else:
                if last or not is_transient(answer.status):
                    return _checked(answer)
                wanted = retry_after_seconds(answer)
            self._server = (self._server + 1) % self._servers
            if (attempt + 1) % self._servers == 0:
                yield Pause(backoff.next() if wanted is None else min(wanted, self._retry_limit_seconds))
        raise AssertionError("the count has no end")

    def _authorized(self, ask: Ask) -> Steps[Answer]:
        """With the token; one that is refused is read again, and the request repeated once if it changed."""
        used = self._bearer(fresh=False)
        answer: Answer = yield self._addressed(ask, used)
        if answer.status == 401 and self._bearer(fresh=True) != used:
            answer = yield self._addressed(ask, self._authorization)
        return answer

    def _addressed(self, ask: Ask, authorization: str | None) -> ServerAsk:
        return ServerAsk(
            ask.method,
            ask.target,
            ask.body,
            read_seconds=ask.read_seconds,
            authorization=authorization,
            server=self._server,
        )

    def _bearer(self, *, fresh: bool) -> str | None:
        if self._token is not None and (fresh or self._authorization is None):
            self._authorization = f"Bearer {self._token()}"
        return self._authorization


def _path(execution_id: str) -> str:
    return f"/v1/executions/{quote(execution_id, safe='')}"


def _checked(answer: Answer) -> Answer:
    if 200 <= answer.status < 300:
        return answer
    code, message = _refusal(answer)
    text = f"the runtime answered {answer.status}" + (f" {code}" if code else "") + f": {message}"
    raise _kind(answer.status, code)(text, http_status=answer.status, code=code)


def _refusal(answer: Answer) -> tuple[str | None, str]:
    try:
        error = msgspec.json.decode(answer.body, type=dict[str, Any])["error"]
        return str(error["code"]), str(error["message"])
    except (msgspec.DecodeError, RecursionError, KeyError, TypeError):
        # a plain-text 400 or 422 describes the problem itself
        return None, answer.body[:500].decode("utf-8", "replace").strip() or "without a text"


def _kind(status: int, code: str | None) -> type[OrbitCallError]:
    if code in _BY_CODE:
        return _BY_CODE[code]
    if status in (401, 403):
        return NotPermitted
    if status in (400, 413, 415, 422):
        return InvalidRequest
    return RuntimeFailure if status >= 500 else OrbitCallError


def _decoded(answer: Answer) -> Any:
    try:
        return msgspec.json.decode(answer.body)
    except (msgspec.DecodeError, RecursionError):
        raise _not_the_protocol(answer) from None


def _object(answer: Answer) -> dict[str, Any]:
    content = _decoded(answer)
    if not isinstance(content, dict):
        raise _not_the_protocol(answer)
    return content


def _not_the_protocol(answer: Answer) -> ProtocolError:
    return ProtocolError(f"the answer ({answer.status}) is not a runtime's; check the address in `server`")


def _execution(answer: Answer) -> Execution:
    content = _object(answer)
    if not isinstance(content.get("id"), str) or not isinstance(content.get("status"), str):
        raise _not_the_protocol(answer)
    return Execution(
        id=content["id"],
        status=content["status"],
        workflow=content.get("workflow"),
        version=content.get("version"),
        output=content.get("output"),
        error=_error(content.get("error")),
        raw=content,
    )


def _error(found: Any) -> ExecutionError | None:
    # the page shows the error as text only, so both an object and a text are read
    if isinstance(found, dict):
        return ExecutionError(
            str(found.get("code", "")), str(found.get("message") or ""), found.get("details")
        )
    if isinstance(found, str) and found:
        code, _, message = found.partition(": ")
        return ExecutionError(code, message)
    return None


def _worker(found: Any, answer: Answer) -> RegisteredWorker:
    if not isinstance(found, dict) or not isinstance(found.get("worker_id"), str):
        raise _not_the_protocol(answer)
    known = {name: found.get(name) for name in ("runtime", "sdk", "online")}
    return RegisteredWorker(found["worker_id"], raw=found, **known)
