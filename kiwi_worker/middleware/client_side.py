"""The client side, which the page does not describe and which is ours: call, wait, fetch, cancel, follow."""

from __future__ import annotations

import hashlib
import time

import msgspec

from .exchange import Departure, Disconnected, Exchange
from .hub import FeedbackLine, Hub
from .ledger import KeyReused, QueueFull
from .problems import Problem, bad_request, conflict, forbidden, not_found
from .records import LARGEST_NUMBER, Call, Ending, Verdict, encode, new_request_id
from .roster import WorkerEntry
from .tokens import Claims, TokenAuthority
from .worker_side import compact, seconds_of

__all__ = ["ClientSide"]

DEFAULT_WAIT = 30.0
KEEP_ALIVE_SECONDS = 15.0
EVENT_STREAM = ((b"content-type", b"text/event-stream"), (b"cache-control", b"no-store"))
MAX_KEY_LENGTH = 200
LONGEST_EVENT_ID = len(str(LARGEST_NUMBER))
CALL_OPTIONS = frozenset({"wait", "ttl", "lock", "idempotency_key"})

_any_json = msgspec.json.Decoder(msgspec.Raw)


class ClientSide:
    """The routes under `/client/`.

    Args:
        hub: delivery.
        tokens: checks who calls.
    """

    def __init__(self, hub: Hub, tokens: TokenAuthority) -> None:
        self._hub = hub
        self._store = hub.store
        self._settings = hub.settings
        self._tokens = tokens

    async def call(self, x: Exchange) -> None:
        """`POST /client/call/{service}/{method}`"""
        claims = self._claims(x)
        if x.values["service"] != claims.service_id:
            raise forbidden("this token is for another service")
        query = x.query()
        call = self._new_call(claims, x.values["method"], query, await self._params(x), self._key(x, query))
        if wants_stream(x):
            await self._call_and_follow(x, call)
            return
        wait_seconds = seconds_of(query, "wait", DEFAULT_WAIT, self._settings.max_wait)
        with self._hub.ending_of(call.request_id) as future:
            request_id = await self._enqueue(call)
            if request_id == call.request_id:
                await self._reply(x, await self._hub.within(future, wait_seconds) or call)
                return
        await self._reply_outcome(x, claims, request_id, wait_seconds)

    async def fetch(self, x: Exchange) -> None:
        """`GET /client/calls/{request_id}[?wait=N]`"""
        claims = self._claims(x)
        wait_seconds = seconds_of(x.query(), "wait", 0.0, self._settings.max_wait)
        await self._reply_outcome(x, claims, x.values["request_id"], wait_seconds)

    async def cancel(self, x: Exchange) -> None:
        """`DELETE /client/calls/{request_id}`"""
        claims = self._claims(x)
        verdict = await self._store.cancel(claims.service_id, x.values["request_id"])
        if verdict is Verdict.unknown:
            raise no_such_call()
        if verdict is Verdict.late:
            raise conflict("this call has its ending already")
        await self._reply_outcome(x, claims, x.values["request_id"], 0.0)

    async def feedback(self, x: Exchange) -> None:
        """`GET /client/calls/{request_id}/feedback`"""
        claims = self._claims(x)
        after = _last_event_id(x)
        with self._hub.line_of(x.values["request_id"]) as line:
            found = await self._store.fetch(claims.service_id, x.values["request_id"])
            if found is None:
                raise no_such_call()
            await self._follow(x, claims.service_id, found, line, after)

    async def workers(self, x: Exchange) -> None:
        """`GET /client/workers`"""
        claims = self._claims(x)
        now = time.monotonic()
        workers = await self._store.workers(claims.service_id)
        await x.reply_json({"workers": [_describe(worker, now) for worker in workers]})

    async def methods(self, x: Exchange) -> None:
        """`GET /client/methods`"""
        claims = self._claims(x)
        serving: dict[str, int] = {}
        for worker in await self._store.workers(claims.service_id):
            for method in worker.methods if not worker.leaving else ():
                serving[method] = serving.get(method, 0) + 1
        listed = [{"method": method, "workers": serving[method]} for method in sorted(serving)]
        await x.reply_json({"service_id": claims.service_id, "methods": listed})

    # -- making a call

    def _new_call(
        self, claims: Claims, method: str, query: dict[str, str], params: bytes, key: str | None
    ) -> Call:
        unknown = query.keys() - CALL_OPTIONS
        if unknown:
            raise bad_request(f"unknown option {min(unknown)}; known: {', '.join(sorted(CALL_OPTIONS))}")
        if not method or "/" in method:
            raise bad_request("a method name is not empty and holds no '/'")
        ttl = seconds_of(query, "ttl", self._settings.time_to_live, self._settings.max_time_to_live)
        lock = query.get("lock", "false")
        if lock not in ("true", "false"):
            raise bad_request("lock: true or false")
        now, wall = time.monotonic(), time.time()
        return Call(
            seq=0,
            request_id=new_request_id(),
            service_id=claims.service_id,
            method=method,
            params=params,
            lock_required=lock == "true",
            created_at=wall,
            expires_at=wall + ttl,
            accepted_at=now,
            deadline=now + ttl,
            idempotency_key=key,
            fingerprint=None if key is None else _fingerprint(method, lock, params),
        )

    async def _params(self, x: Exchange) -> bytes:
        body = await x.body(self._settings.max_body_bytes)
        if not body.strip():
            return b"null"
        try:
            body.decode("utf-8")
            return bytes(_any_json.decode(body))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise bad_request(f"the body must be the params as JSON: {error}") from None

    def _key(self, x: Exchange, query: dict[str, str]) -> str | None:
        header = x.header(b"idempotency-key")
        key = query.get("idempotency_key") if header is None else header.decode("latin-1")
        if key is not None and not 1 <= len(key) <= MAX_KEY_LENGTH:
            raise bad_request(f"an idempotency key has 1 to {MAX_KEY_LENGTH} characters")
        return key

    async def _enqueue(self, call: Call) -> str:
        try:
            return await self._store.enqueue(call)
        except QueueFull:
            text = f"the queue of {call.service_id} is full; try again later"
            raise Problem(429, "queue_full", text, ((b"retry-after", b"1"),)) from None
        except KeyReused:
            raise conflict("this idempotency key was used for another method or other params") from None

    # -- answering

    async def _reply_outcome(self, x: Exchange, claims: Claims, request_id: str, wait_seconds: float) -> None:
        found = await self._hub.outcome(claims.service_id, request_id, wait_seconds)
        if found is None:
            raise no_such_call()
        await self._reply(x, found)

    async def _reply(self, x: Exchange, found: Call | Ending) -> None:
        if isinstance(found, Ending):
            await x.reply(200, found.body())
        else:
            await x.reply(202, pending_body(found))

    async def _call_and_follow(self, x: Exchange, call: Call) -> None:
        with self._hub.line_of(call.request_id) as line:
            request_id = await self._enqueue(call)
            if request_id == call.request_id:
                await self._follow(x, call.service_id, call, line, 0)
                return
        with self._hub.line_of(request_id) as line:
            found = await self._store.fetch(call.service_id, request_id)
            if found is None:
                raise no_such_call()
            await self._follow(x, call.service_id, found, line, 0)

    async def _follow(
        self, x: Exchange, service_id: str, found: Call | Ending, line: FeedbackLine, after: int
    ) -> None:
        """Send a call's feedback as events, and its ending as the last one."""
        gone = await x.departure()
        gone.tell(line.wake)
        try:
            await x.start_stream(EVENT_STREAM)
            await x.send_part(event("accepted", encode({"request_id": found.request_id})))
            await self._send_events(x, service_id, found, line, after, gone)
        finally:
            gone.cancel()

    async def _send_events(
        self,
        x: Exchange,
        service_id: str,
        found: Call | Ending,
        line: FeedbackLine,
        after: int,
        gone: Departure,
    ) -> None:
        for feedback in await self._store.feedback(found, after):
            after = feedback.feedback_id
            await x.send_part(event("feedback", feedback.body(), feedback.feedback_id))
        while True:
            current = await self._store.fetch(service_id, found.request_id)
            while line.waiting:
                feedback = line.waiting.popleft()
                if feedback.feedback_id > after:
                    after = feedback.feedback_id
                    await x.send_part(event("feedback", feedback.body(), feedback.feedback_id))
            if gone.happened:
                raise Disconnected
            if isinstance(current, Ending):
                await x.send_part(event("answer", compact(current.body())), more=False)
                return
            if self._hub.closing or current is None:
                await x.send_part(event("stopping", b"{}"), more=False)
                return
            await line.news(KEEP_ALIVE_SECONDS)
            if not line.waiting:
                await x.send_part(b": still here\n\n")

    def _claims(self, x: Exchange) -> Claims:
        return self._tokens.check(x.header(b"authorization"), "client")


def pending_body(call: Call) -> bytes:
    """What a caller gets whose call has not ended."""
    state = "running" if call.drained else "waiting"
    return encode({"request_id": call.request_id, "status": "pending", "state": state})


def event(name: str, data: bytes, number: int | None = None) -> bytes:
    """One server-sent event; the data is JSON on one line."""
    head = b"" if number is None else b"id: %d\n" % number
    return b"%bevent: %b\ndata: %b\n\n" % (head, name.encode(), data)


def wants_stream(x: Exchange) -> bool:
    """Whether the caller accepts an event stream."""
    return b"text/event-stream" in (x.header(b"accept") or b"")


def no_such_call() -> Problem:
    """404: unknown, another service's, or over its retention."""
    return not_found("no such call; results are kept for a limited time")


def _fingerprint(method: str, lock: str, params: bytes) -> str:
    return hashlib.sha256(b"%b\n%b\n%b" % (method.encode(), lock.encode(), params)).hexdigest()[:32]


def _last_event_id(x: Exchange) -> int:
    text = x.header(b"last-event-id")
    if text is None:
        return 0
    # Its length first: of thousands of digits, `int` makes no number.
    if not text.isdigit() or len(text) > LONGEST_EVENT_ID or int(text) > LARGEST_NUMBER:
        raise bad_request("Last-Event-ID: the number of the last event that was seen")
    return int(text)


def _describe(worker: WorkerEntry, now: float) -> dict[str, object]:
    registration = worker.registration
    return {
        "worker_id": worker.worker_id,
        "run_mode": registration.run_mode,
        "methods": sorted(worker.methods),
        "version": registration.version,
        "platform": registration.platform,
        "tags": registration.tags or {},
        "registered_at": worker.registered_at,
        "seen_seconds_ago": round(max(0.0, now - worker.seen_at), 3),
        "stopping": worker.leaving,
        "unanswered": len(worker.inbox) + len(worker.holding),
    }
