"""The worker side: every call of the worker protocol page but the token's."""

from __future__ import annotations

import ipaddress
import logging
import math
import time
from typing import Annotated, Literal

import msgspec

from .exchange import Exchange
from .hub import Hub
from .problems import Problem, bad_request, conflict, forbidden, not_found
from .records import LARGEST_NUMBER, Feedback, Registration, Verdict
from .roster import WorkerEntry
from .tokens import Claims, TokenAuthority

__all__ = ["FeedbackPost", "Response", "WorkerSide"]

logger = logging.getLogger("kiwi_worker.middleware.worker_side")

MAX_REGISTRATION_BYTES = 1_048_576
MAX_FEEDBACK_BYTES = 1_048_576


def _null() -> msgspec.Raw:
    return msgspec.Raw(b"null")


class Response(msgspec.Struct):
    """The body of `POST /worker/response` (the page's "The request loop", 4)."""

    request_id: str
    status: Literal["success", "failed", "error"]
    error_text: str | None = None
    result: msgspec.Raw = msgspec.field(default_factory=_null)


class FeedbackPost(msgspec.Struct):
    """The body of `POST /worker/feedback`, with the page's short keys."""

    rid: str | None = None
    st: Literal[1, 2] = 1
    sn: str | None = None
    ft: Annotated[int, msgspec.Meta(ge=-LARGEST_NUMBER, le=LARGEST_NUMBER)] = 0
    pr: bool = False
    fc: msgspec.Raw = msgspec.field(default_factory=_null)


_responses = msgspec.json.Decoder(Response)
_feedback = msgspec.json.Decoder(FeedbackPost)
_registrations = msgspec.json.Decoder(Registration)


class WorkerSide:
    """The routes under `/worker/`.

    Args:
        hub: delivery.
        tokens: checks who calls.
    """

    def __init__(self, hub: Hub, tokens: TokenAuthority) -> None:
        self._hub = hub
        self._store = hub.store
        self._settings = hub.settings
        self._tokens = tokens

    async def registration(self, x: Exchange) -> None:
        """`POST /worker/registration`: the answer is the map of application settings."""
        claims = self._claims(x)
        registration = await x.json(_registrations, MAX_REGISTRATION_BYTES)
        check_registration(registration, claims)
        await self._store.register(registration)
        logger.info(
            "the worker %s of %s registered",
            claims.sub,
            claims.service_id,
            extra={"action": "worker_registered", "worker_id": claims.sub},
        )
        settings = await self._store.application_settings(claims.service_id)
        settings.setdefault("heartbeat_delay", f"{self._settings.heartbeat_delay:g}")
        await x.reply_json(settings)

    async def messages(self, x: Exchange) -> None:
        """`GET /worker/messages[?wait=N]`: everything for this worker in one atomic read."""
        worker = await self._worker(self._claims(x))
        wait_seconds = seconds_of(x.query(), "wait", 0.0, self._settings.max_wait)
        gone = await x.departure()
        try:
            calls = await self._hub.drain(worker, wait_seconds, gone)
            if calls:
                x.when_unread(lambda: self._hub.put_back(worker, calls))
            await x.reply(200, b"[%b]" % b",".join([call.message() for call in calls]))
        finally:
            gone.cancel()

    async def lock_request(self, x: Exchange) -> None:
        """`PUT /worker/lock_request/{request_id}`: 2xx for exactly one worker, however often it asks."""
        claims = self._claims(x)
        verdict = await self._store.try_lock(await self._worker(claims), x.values["request_id"])
        if verdict is not Verdict.done:
            raise refusal(verdict, "this request was not offered to you, or asks for no lock")
        await x.reply(204, headers=())

    async def response(self, x: Exchange) -> None:
        """`POST /worker/response`: the first accepted answer ends the call."""
        claims = self._claims(x)
        response = await x.json(_responses, self._settings.max_body_bytes)
        success = response.status == "success"
        verdict = await self._store.put_answer(
            claims.service_id,
            claims.sub,
            response.request_id,
            status=response.status,
            error_text=None if success else response.error_text,
            result=bytes(response.result) if success else None,
        )
        if verdict is not Verdict.done:
            raise refusal(verdict, "this request was not given to you, or you do not hold its lock")
        await x.reply(200, b"{}")

    async def feedback(self, x: Exchange) -> None:
        """`POST /worker/feedback`: passed on to whoever listens, kept when `pr` says so."""
        claims = self._claims(x)
        post = await x.json(_feedback, MAX_FEEDBACK_BYTES)
        if post.st == 1 and not post.rid:
            raise bad_request("feedback of a method request (st 1) needs its rid")
        feedback = Feedback(
            feedback_id=0,
            request_id=post.rid or "",
            source_type=post.st,
            source_name=post.sn or "",
            feedback_type=post.ft,
            content=compact(bytes(post.fc)),
            at=time.time(),
        )
        verdict = await self._store.add_feedback(claims.service_id, claims.sub, feedback, persist=post.pr)
        if verdict not in (Verdict.done, Verdict.late):
            raise refusal(verdict, "this request was not given to you")
        await x.reply(200, b"{}")

    async def heartbeat(self, x: Exchange) -> None:
        """`GET /worker/heartbeat/{worker_id}`: a bare `true`, or `false` to a worker that is not known."""
        claims = self._own(x)
        worker = await self._store.worker(claims.service_id, claims.sub)
        await x.reply(200, b"false" if worker is None else b"true")

    async def notify_worker_shutdown(self, x: Exchange) -> None:
        """`PUT /worker/notify_worker_shutdown/{worker_id}`: its open wait ends, it gets nothing more."""
        worker = await self._worker(self._own(x))
        await self._store.leave(worker)
        await x.reply(204, headers=())

    def _claims(self, x: Exchange) -> Claims:
        return self._tokens.check(x.header(b"authorization"), "worker")

    def _own(self, x: Exchange) -> Claims:
        claims = self._claims(x)
        if x.values["worker_id"] != claims.sub:
            raise forbidden(
                "a worker may speak only for itself: the path names another worker than the token"
            )
        return claims

    async def _worker(self, claims: Claims) -> WorkerEntry:
        worker = await self._store.worker(claims.service_id, claims.sub)
        if worker is None:
            raise not_found("this worker is not registered, or was not heard of for too long")
        return worker


def refusal(verdict: Verdict, not_given: str) -> Problem:
    """The answer to a worker whose wish was not granted."""
    if verdict is Verdict.unknown:
        return not_found("no such request; it may have ended long ago")
    if verdict is Verdict.late:
        return conflict("this request has its ending already")
    if verdict is Verdict.full:
        return Problem(429, "feedback_full", "this request has as much kept feedback as one may have")
    if verdict is Verdict.taken:
        return conflict("another worker owns this request")
    return forbidden(not_given)


def check_registration(registration: Registration, claims: Claims) -> None:
    """What the types alone do not say.

    Raises:
        Problem: 400 or 403, naming the field.
    """
    if (registration.worker_id, registration.service_id) != (claims.sub, claims.service_id):
        raise forbidden("worker_id and service_id must be those of the token")
    if registration.run_mode not in ("Lazy", "Eager"):
        raise bad_request("run_mode must be Lazy or Eager; Connected is not served by this middleware")
    for name in registration.methods:
        if not name or "/" in name:
            raise bad_request("methods: a method name is not empty and holds no '/'")
    if registration.run_mode == "Lazy" or registration.ip:
        _check_address(registration)


def _check_address(registration: Registration) -> None:
    try:
        ipaddress.ip_address(registration.ip or "")
    except ValueError:
        raise bad_request("ip: the IP address that the wake-up probe reaches this worker at") from None
    if registration.run_mode == "Lazy" and not 1 <= (registration.port or 0) <= 65535:
        raise bad_request("port: the port that the wake-up probe reaches this worker at, 1 to 65535")


def seconds_of(query: dict[str, str], name: str, default: float, largest: float) -> float:
    """A number of seconds out of a query, cut at the largest.

    Raises:
        Problem: 400, it is none.
    """
    text = query.get(name)
    if text is None:
        return default
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not math.isfinite(seconds) or seconds < 0:
        raise bad_request(f"{name}: a number of seconds, not negative")
    return min(seconds, largest)


def compact(text: bytes) -> bytes:
    """JSON text on one line, as an event stream needs it."""
    return msgspec.json.format(text, indent=-1) if b"\n" in text or b"\r" in text else text
