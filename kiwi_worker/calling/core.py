"""The client side, once: every operation as a generator of effects, the same for both faces."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypedDict, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from ..errors import Ambiguous, AuthenticationError, CallError, NotSent, ProtocolError, SettingsError
from ..results import encode_result
from ..settings import secret_reader
from ..transport.answer import Answer
from ..transport.retry import Backoff, is_transient, retry_after_seconds
from .effects import Ask, Emit, Exclusive, More, Open, Pause, Steps
from .outcomes import Feedback, MethodInfo, Outcome, WorkerInfo
from .settings import ClientSettings
from .wire import EventReader

__all__ = ["CallOptions", "Core", "Options"]

T = TypeVar("T")

LONGEST_HANG = 25.0
"""Seconds for which one request may hang; longer waits are several requests, as proxies like it."""

READ_MARGIN = 15.0
REFRESH_SHARE = 0.9
"""The share of its lifetime after which a token is not used any more."""


class Options(TypedDict, total=False):
    """How a call is to be made, as keywords: `CallOptions` has what they mean."""

    time_to_live: float | None
    lock: bool
    idempotency_key: str | None


class CallOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a call is to be made; times in seconds, None leaves it to the middleware."""

    time_to_live: float | None = None
    lock: bool = False
    idempotency_key: str | None = None

    def query(self, wait: float) -> str:
        """The query string of the call."""
        fields: dict[str, str] = {"wait": f"{wait:g}"}
        if self.time_to_live is not None:
            fields["ttl"] = f"{self.time_to_live:g}"
        if self.lock:
            fields["lock"] = "true"
        if self.idempotency_key is not None:
            fields["idempotency_key"] = self.idempotency_key
        return urlencode(fields)


class Core:
    """Knows the routes, the token and what an answer means; carries nothing out itself.

    Args:
        settings: where the middleware is and as whom it is called.
        clock: monotonic seconds.

    Raises:
        SettingsError: the service or its secret is not given.
    """

    def __init__(self, settings: ClientSettings, clock: Callable[[], float] = time.monotonic) -> None:
        if settings.service_id is None:
            raise SettingsError("service_id", "is not given; set KIWI_SERVICE_ID or pass service_id")
        secret = secret_reader(settings)
        if secret is None:
            raise SettingsError(
                "client_secret", "is not given; set KIWI_CLIENT_SECRET or pass client_secret_file"
            )
        self.service_id = settings.service_id
        self._secret = secret
        self._client_id = settings.client_id
        self._retry_limit = settings.retry_limit
        self._clock = clock
        self._authorization: str | None = None
        self._good_until = 0.0

    # -- operations

    def call(
        self, method: str, params: object, options: CallOptions, timeout: float | None
    ) -> Steps[Outcome]:
        """Call and wait; the outcome is pending when the time was too short."""
        until = self._until(timeout)
        outcome = yield from self._enqueue(method, params, options, self._hang(until))
        return (yield from self._until_ended(outcome, until))

    def start(self, method: str, params: object, options: CallOptions) -> Steps[Outcome]:
        """Call and do not wait."""
        return (yield from self._enqueue(method, params, options, 0.0))

    def wait(self, request_id: str, timeout: float | None) -> Steps[Outcome]:
        """Wait for the ending of a call."""
        until = self._until(timeout)
        outcome = yield from self.fetch(request_id, self._hang(until))
        return (yield from self._until_ended(outcome, until))

    def fetch(self, request_id: str, hang: float = 0.0) -> Steps[Outcome]:
        """How a call stands."""
        target = f"/client/calls/{quote(request_id, safe='')}"
        if hang:
            target += f"?wait={hang:g}"
        answer = yield from self._repeat(Ask("GET", target, read_seconds=hang + READ_MARGIN))
        return read(answer, Outcome)

    def cancel(self, request_id: str) -> Steps[Outcome]:
        """End a call; how it ended, when it had already."""
        ask = Ask("DELETE", f"/client/calls/{quote(request_id, safe='')}")
        answer = yield from self._authorized(ask)
        if answer.status == 409:
            return (yield from self.fetch(request_id))
        return read(answer, Outcome)

    def workers(self) -> Steps[list[WorkerInfo]]:
        """The live workers."""
        answer = yield from self._repeat(Ask("GET", "/client/workers"))
        return read(answer, dict[str, list[WorkerInfo]])["workers"]

    def methods(self) -> Steps[list[MethodInfo]]:
        """The methods that live workers serve."""
        answer = yield from self._repeat(Ask("GET", "/client/methods"))
        return msgspec.convert(read(answer, dict[str, Any])["methods"], list[MethodInfo])

    def call_and_follow(
        self, method: str, params: object, options: CallOptions, timeout: float | None
    ) -> Steps[None]:
        """Call, and emit the feedback as it comes and the outcome, or a pending one, as the last."""
        ask = Open(
            "POST",
            f"{self._route_of(method)}?{options.query(0.0)}",
            encode_params(params),
            read_seconds=LONGEST_HANG + READ_MARGIN,
        )
        place = _Place(None, self._until(timeout))
        yield from self._follow(ask, place, safe=options.idempotency_key is not None)

    def follow(self, request_id: str, timeout: float | None) -> Steps[None]:
        """Emit the feedback of a call and its outcome, or a pending one."""
        place = _Place(request_id, self._until(timeout))
        yield from self._follow(self._feedback_of(place), place, safe=True)

    # -- inside

    def _enqueue(self, method: str, params: object, options: CallOptions, hang: float) -> Steps[Outcome]:
        ask = Ask(
            "POST",
            f"{self._route_of(method)}?{options.query(hang)}",
            encode_params(params),
            read_seconds=hang + READ_MARGIN,
        )
        answer = yield from self._repeat(ask, safe=options.idempotency_key is not None)
        return read(answer, Outcome)

    def _until_ended(self, outcome: Outcome, until: float | None) -> Steps[Outcome]:
        while not outcome.ended and (until is None or self._clock() < until):
            outcome = yield from self.fetch(outcome.request_id, self._hang(until))
        return outcome

    def _hang(self, until: float | None) -> float:
        return LONGEST_HANG if until is None else min(LONGEST_HANG, max(0.0, until - self._clock()))

    def _until(self, timeout: float | None) -> float | None:
        return None if timeout is None else self._clock() + timeout

    def _route_of(self, method: str) -> str:
        return f"/client/call/{quote(self.service_id, safe='')}/{quote(method, safe='')}"

    def _feedback_of(self, place: _Place) -> Open:
        target = f"/client/calls/{quote(place.request_id or '', safe='')}/feedback"
        return Open("GET", target, read_seconds=LONGEST_HANG + READ_MARGIN, last_event_id=place.seen)

    def _follow(self, ask: Open, place: _Place, *, safe: bool) -> Steps[None]:
        """A stream that broke off is taken up where it stood: nothing is emitted twice."""
        backoff = Backoff(0.2, 5.0)
        while True:
            seen = place.seen
            try:
                if (yield from self._read_events(ask, place, safe)):
                    return
            except Ambiguous:
                if place.request_id is None:
                    raise
            if place.over(self._clock()):
                yield Emit(Outcome(place.request_id or "", "pending"))
                return
            if place.seen != seen:
                backoff.reset()
            yield Pause(backoff.next())
            ask, safe = self._feedback_of(place), True

    def _read_events(self, ask: Open, place: _Place, safe: bool) -> Steps[bool]:
        """Emit what a stream brings; whether that was the outcome."""
        check((yield from self._repeat(ask, safe=safe)))
        events = EventReader()
        while data := (yield More(self._hang(place.until) + (READ_MARGIN if place.until is None else 0.01))):
            for name, number, content in events.feed(data):
                if place.request_id is None:
                    place.request_id = read_json(content, _Accepted).request_id
                if name == "feedback":
                    place.seen = number
                    yield Emit(read_json(content, Feedback))
                elif name == "answer":
                    yield Emit(read_json(content, Outcome))
                    return True
        if place.request_id is None:
            raise Ambiguous(
                "the middleware ended a stream before its first event; the call may have been taken"
            )
        return False

    def _repeat(self, ask: Ask, *, safe: bool = True) -> Steps[Answer]:
        """Try for a limited time: always what was not let in, anything else only when it is safe."""
        until = self._clock() + self._retry_limit
        backoff = Backoff(0.2, 5.0)
        while True:
            try:
                answer = yield from self._authorized(ask)
            except NotSent:
                if self._clock() >= until:
                    raise
                yield Pause(backoff.next())
                continue
            except Ambiguous:
                if not safe or self._clock() >= until:
                    raise
                yield Pause(backoff.next())
                continue
            again = is_transient(answer.status) if safe else answer.status == 429
            if not again or self._clock() >= until:
                return answer
            wanted = retry_after_seconds(answer)
            yield Pause(backoff.next() if wanted is None else min(wanted, self._retry_limit))

    def _authorized(self, ask: Ask) -> Steps[Answer]:
        """With a token; one that is refused is dropped, and the request repeated once with a fresh one."""
        used = yield from self._token(None)
        answer: Answer = yield replace(ask, authorization=used)
        if answer.status == 401:
            used = yield from self._token(used)
            answer = yield replace(ask, authorization=used)
        return answer

    def _token(self, refused: str | None) -> Steps[str]:
        current = self._authorization
        if current is not None and current != refused and self._clock() < self._good_until:
            return current
        fresh: str = yield Exclusive(self._new_token(refused))
        return fresh

    def _new_token(self, refused: str | None) -> Steps[str]:
        current = self._authorization
        if current is not None and current != refused and self._clock() < self._good_until:
            return current
        answer = yield Ask("POST", "/client/auth_token", self._form(), form=True)
        if answer.status == 401:
            raise AuthenticationError(
                f"the client secret of the service {self.service_id} was refused; check it, or make another"
                " one with `kiwi-worker middleware service add-secret --role client`"
            )
        token = read(answer, dict[str, Any])
        self._authorization = f"Bearer {token['access_token']}"
        self._good_until = self._clock() + float(token.get("expires_in", 60)) * REFRESH_SHARE
        return self._authorization

    def _form(self) -> bytes:
        fields = {
            "grant_type": "client_credentials",
            "service_id": self.service_id,
            "auth_secret": self._secret(),
        }
        if self._client_id is not None:
            fields["client_id"] = self._client_id
        return urlencode(fields).encode()


def encode_params(params: object) -> bytes:
    """The params as JSON: a mapping for keyword arguments, a sequence for positional ones, None for none."""
    if params is not None and (
        isinstance(params, (str, bytes)) or not isinstance(params, (Mapping, Sequence))
    ):
        raise TypeError(f"params are a mapping, a sequence or None, not {type(params).__name__}")
    return encode_result(params, called="params")


def check(answer: Answer) -> Answer:
    """The answer, when it is one of success.

    Raises:
        CallError: the middleware refused the request; the text is its own.
    """
    if answer.status in (200, 202):
        return answer
    try:
        problem = msgspec.json.decode(answer.body, type=dict[str, Any])
        text, code = str(problem["message"]), str(problem["error"])
    except (msgspec.DecodeError, RecursionError, KeyError):
        text, code = "the answer is not the middleware's own", None
    raise CallError(f"the middleware answered {answer.status}: {text}", http_status=answer.status, code=code)


def read(answer: Answer, kind: type[T]) -> T:
    """The body of an answer of success.

    Raises:
        CallError: the middleware refused the request.
        ProtocolError: the body is not what it should be.
    """
    check(answer)
    return read_json(answer.body, kind)


def read_json(text: bytes, kind: type[T]) -> T:
    """JSON text as that type.

    Raises:
        ProtocolError: it is none.
    """
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ProtocolError(f"the middleware's answer cannot be read: {error}") from None


class _Accepted(msgspec.Struct):
    """The first event of a call that is followed."""

    request_id: str


class _Place:
    """Where a reader of a stream stands: the call, the last event it saw, until when it reads."""

    def __init__(self, request_id: str | None, until: float | None) -> None:
        self.request_id = request_id
        self.seen = 0
        self.until = until

    def over(self, now: float) -> bool:
        return self.until is not None and now >= self.until
