"""Every operation of the middleware, once: what routes it, documents it and says who may call it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from .authentication import Authentication
from .client_side import MAX_KEY_LENGTH, ClientSide
from .exchange import Exchange
from .records import LARGEST_NUMBER
from .worker_side import WorkerSide

__all__ = ["Operation", "Parameter", "operations"]


@dataclass(frozen=True)
class Parameter:
    """A query parameter or header of an operation; its limits are keywords of JSON schema."""

    name: str
    meaning: str
    kind: str = "number"
    where: str = "query"
    limits: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True)
class Operation:
    """One method on one path.

    `hot` ones are answered before the framework. `role` is the token's, None for anonymous. `answers` maps
    each status to its meaning and, where it has a body of its own, the name of the body's schema. `streams`
    says that a caller may have events instead.
    """

    method: str
    path: str
    handler: Callable[[Exchange], Awaitable[None]]
    summary: str
    role: str | None
    answers: dict[int, tuple[str, str | None]]
    body: str | None = None
    parameters: tuple[Parameter, ...] = ()
    hot: bool = False
    form: bool = False
    streams: bool = False


NOT_NEGATIVE = (("minimum", 0),)
WAIT = Parameter("wait", "seconds to hang for it", limits=NOT_NEGATIVE)
LAST_EVENT_ID = Parameter(
    "Last-Event-ID",
    "the last event that was seen",
    "integer",
    "header",
    limits=(("minimum", 0), ("maximum", LARGEST_NUMBER)),
)
CALL_PARAMETERS = (
    Parameter(
        "wait", "seconds to wait for the answer, 30 unless given; 0 answers 202 at once", limits=NOT_NEGATIVE
    ),
    Parameter(
        "ttl",
        "time to live in seconds: without an answer by then the call ends as an error",
        limits=NOT_NEGATIVE,
    ),
    Parameter(
        "lock", "true: offer it to every worker with this method, and let one of them claim it", "boolean"
    ),
    Parameter(
        "idempotency_key",
        "the same key again is the same call; also as header Idempotency-Key",
        "string",
        limits=(("minLength", 1), ("maxLength", MAX_KEY_LENGTH)),
    ),
)
ENDED = ("how it ended", "Ending")
PENDING = ("it has not ended yet", "Pending")
EVENTS = "; with Accept: text/event-stream an event stream of accepted, feedback and answer events"


def operations(
    authentication: Authentication,
    worker: WorkerSide,
    client: ClientSide,
    openapi: Callable[[Exchange], Awaitable[None]],
    health: Callable[[Exchange], Awaitable[None]],
) -> list[Operation]:
    """What is served, in the order of the pages."""
    return [
        *_worker_operations(authentication, worker),
        *_client_operations(authentication, client),
        Operation("GET", "/openapi.json", openapi, "This description", None, {200: ("it", None)}),
        Operation(
            "GET",
            "/health",
            health,
            "Whether calls are accepted",
            None,
            {200: ("they are", "Health"), 503: ("they are not", "Health")},
        ),
    ]


def _worker_operations(authentication: Authentication, worker: WorkerSide) -> list[Operation]:
    return [
        Operation(
            "POST",
            "/worker/auth_token",
            authentication.worker_token,
            "A token for a worker",
            None,
            {200: ("the token", "Token"), 400: _problem("a field is missing"), 401: _problem("refused")},
            body="WorkerTokenForm",
            form=True,
        ),
        Operation(
            "POST",
            "/worker/registration",
            worker.registration,
            "A worker process started",
            "worker",
            {
                200: ("the application settings", "ApplicationSettings"),
                400: _problem("a field is wrong"),
                403: _problem("not the token's worker"),
            },
            body="Registration",
        ),
        Operation(
            "GET",
            "/worker/messages",
            worker.messages,
            "The atomic drain",
            "worker",
            {
                200: ("everything there is", "Messages"),
                400: _problem("wait is wrong"),
                404: _problem("not registered"),
            },
            parameters=(WAIT,),
            hot=True,
        ),
        Operation(
            "PUT",
            "/worker/lock_request/{request_id}",
            worker.lock_request,
            "Claim a request",
            "worker",
            {
                204: ("it is yours", None),
                403: _problem("it was not offered to you"),
                404: _problem("unknown"),
                409: _problem("another worker owns it, or it has ended"),
            },
            hot=True,
        ),
        Operation(
            "POST",
            "/worker/response",
            worker.response,
            "Answer a request",
            "worker",
            {
                200: ("accepted", None),
                400: _problem("not a response"),
                403: _problem("it was not given to you"),
                404: _problem("unknown"),
                409: _problem("it has its ending already"),
                413: _problem("too large"),
            },
            body="Response",
            hot=True,
        ),
        Operation(
            "POST",
            "/worker/feedback",
            worker.feedback,
            "Feedback of a handler",
            "worker",
            {
                200: ("passed on", None),
                400: _problem("not feedback"),
                403: _problem("not given to you"),
                404: _problem("unknown"),
                429: _problem("too much of it is kept"),
            },
            body="FeedbackPost",
        ),
        Operation(
            "GET",
            "/worker/heartbeat/{worker_id}",
            worker.heartbeat,
            "A sign of life",
            "worker",
            {200: ("whether the worker is known", "Known"), 403: _problem("not the token's worker")},
        ),
        Operation(
            "PUT",
            "/worker/notify_worker_shutdown/{worker_id}",
            worker.notify_worker_shutdown,
            "The worker stops",
            "worker",
            {204: ("noted", None), 403: _problem("not the token's worker"), 404: _problem("not registered")},
        ),
    ]


def _client_operations(authentication: Authentication, client: ClientSide) -> list[Operation]:
    return [
        Operation(
            "POST",
            "/client/auth_token",
            authentication.client_token,
            "A token for a client",
            None,
            {200: ("the token", "Token"), 400: _problem("a field is missing"), 401: _problem("refused")},
            body="ClientTokenForm",
            form=True,
        ),
        Operation(
            "POST",
            "/client/call/{service}/{method}",
            client.call,
            "Call a method" + EVENTS,
            "client",
            {
                200: ENDED,
                202: PENDING,
                400: _problem("params or an option are wrong"),
                403: _problem("another service"),
                409: _problem("the idempotency key was used for another call"),
                413: _problem("too large"),
                429: _problem("the queue is full"),
            },
            body="Params",
            parameters=CALL_PARAMETERS,
            hot=True,
            streams=True,
        ),
        Operation(
            "GET",
            "/client/calls/{request_id}",
            client.fetch,
            "How a call ended, or that it has not",
            "client",
            {
                200: ENDED,
                202: PENDING,
                400: _problem("wait is wrong"),
                404: _problem("unknown, or over its retention"),
            },
            parameters=(WAIT,),
        ),
        Operation(
            "DELETE",
            "/client/calls/{request_id}",
            client.cancel,
            "End a call; a later answer of its worker is refused",
            "client",
            {200: ENDED, 404: _problem("unknown"), 409: _problem("it has its ending already")},
        ),
        Operation(
            "GET",
            "/client/calls/{request_id}/feedback",
            client.feedback,
            "The feedback of a call as server-sent events, its ending as the last one",
            "client",
            {
                200: ("an event stream", "EventStream"),
                400: _problem("Last-Event-ID is wrong"),
                404: _problem("unknown"),
            },
            parameters=(LAST_EVENT_ID,),
        ),
        Operation(
            "GET",
            "/client/workers",
            client.workers,
            "The live workers of the service",
            "client",
            {200: ("they", "Workers")},
        ),
        Operation(
            "GET",
            "/client/methods",
            client.methods,
            "The methods that live workers serve",
            "client",
            {200: ("they", "Methods")},
        ),
    ]


def _problem(meaning: str) -> tuple[str, str]:
    return (meaning, "Problem")
