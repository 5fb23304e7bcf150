"""The misbehaving server's Kiwi side: what the worker protocol page asks of a middleware."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, TypeVar, cast
from urllib.parse import parse_qsl

from kiwi_worker.testing.base import MisbehavingServer
from kiwi_worker.testing.calls import Call
from kiwi_worker.testing.exchange import Exchange
from kiwi_worker.testing.kiwi_answers import AnswerBook
from kiwi_worker.testing.kiwi_queue import Message, MessageQueue
from kiwi_worker.testing.kiwi_rules import violations_of
from kiwi_worker.testing.kiwi_tokens import TokenDesk, TokenShape
from kiwi_worker.testing.prober import Prober, wake_packet
from kiwi_worker.testing.wire import Reply, Request

__all__ = ["KiwiServer"]

_T = TypeVar("_T")
_LOOK_SECONDS = 0.05
_ANYTHING: Any = ...

_ROUTES = {
    ("POST", "auth_token", 2): "token",
    ("POST", "registration", 2): "register",
    ("GET", "messages", 2): "drain",
    ("PUT", "lock_request", 3): "lock",
    ("POST", "response", 2): "respond",
    ("POST", "feedback", 2): "feedback",
    ("GET", "heartbeat", 3): "heartbeat",
    ("PUT", "notify_worker_shutdown", 3): "shutdown",
}


@dataclass(kw_only=True, eq=False, repr=False)
class KiwiServer(MisbehavingServer):
    """The Kiwi middleware of the protocol page, in memory; use it as `MisbehavingServer.kiwi(…)`.

    Calls: `token`, `register`, `drain`, `lock`, `respond`, `feedback`, `heartbeat`, `shutdown`.

    Args:
        service_id: the service it knows.
        auth_secret: its secret.
        settings: the map a registration is answered with.
        token_lifetime_seconds: how long a token holds.
        token_shape: how the token answer looks.
        send_expires_in: whether the token answer states the lifetime.
        refresh_tokens: whether it hands out refresh tokens, each good for one use.
        claims: claims to add to tokens, or to put in place of the true ones.
        probes: send registered lazy workers a wake-up packet for each message.
    """

    service_id: str = "test-service"
    auth_secret: str = "test-secret"
    settings: Mapping[str, str] = field(default_factory=dict)
    token_lifetime_seconds: float = 3600.0
    token_shape: TokenShape = "object"
    send_expires_in: bool = True
    refresh_tokens: bool = False
    claims: Mapping[str, object] = field(default_factory=dict)
    probes: bool = True

    call_names: ClassVar[frozenset[str]] = frozenset(_ROUTES.values())

    def __post_init__(self) -> None:
        super().__post_init__()
        self._desk = TokenDesk(
            self.service_id,
            self.auth_secret,
            self.token_lifetime_seconds,
            self.token_shape,
            self.send_expires_in,
            self.refresh_tokens,
            self.claims,
        )
        self._queue = MessageQueue()
        self._answers = AnswerBook()
        self._prober = Prober(self._changed)
        self._registrations: list[dict[str, Any]] = []
        self._feedbacks: list[dict[str, Any]] = []
        self._heartbeats: list[tuple[str, float]] = []
        self._shutdowns: list[str] = []
        self._forgotten: set[str] = set()
        self._violations: list[str] = []
        self._locking: set[str] = set()

    def start(self) -> None:
        """Listen and serve; see `MisbehavingServer.start`."""
        super().start()
        self._prober.start()

    def stop(self) -> None:
        """Close everything; see `MisbehavingServer.stop`."""
        super().stop()
        self._prober.stop()

    # --- what a test puts in ---

    def enqueue(
        self,
        method: str,
        params: object = None,
        lock_required: bool = False,
        request_id: str | None = None,
        *,
        worker_id: str | None = None,
    ) -> str:
        """Let a message wait for a worker, and wake the registered lazy ones.

        Args:
            method: the bare method name.
            params: any JSON value.
            lock_required: offer it to every worker; each has to lock it first.
            request_id: its id; None for a new one.
            worker_id: the only worker it is for; None for whichever drains first.

        Returns:
            The request id.
        """
        request_id = str(uuid.uuid4()) if request_id is None else request_id
        fields = {
            "request_id": request_id,
            "method": method,
            "lock_required": lock_required,
            "params": params,
        }
        self._put(Message(json.dumps(fields).encode(), request_id, lock_required, worker_id))
        return request_id

    def enqueue_raw(self, raw: bytes, *, worker_id: str | None = None) -> None:
        """Let these bytes wait, as one element of a drained array. They need not be JSON."""
        self._put(Message(raw, worker_id=worker_id))

    def refuse_locks(self, *request_ids: str, status: int = 409) -> None:
        """Refuse lock requests for these ids, or all of them when none is named, with this status."""
        with self._changed:
            self._queue.refused.update(dict.fromkeys(request_ids or (None,), status))

    def allow_locks(self) -> None:
        """Undo `refuse_locks`."""
        with self._changed:
            self._queue.refused.clear()

    def lock_for(self, request_id: str, worker_id: str) -> None:
        """Let another worker hold this lock already."""
        with self._changed:
            self._queue.locks[request_id] = worker_id

    def expire_tokens(self, *, refresh_tokens_too: bool = False) -> None:
        """Let every token handed out so far be over."""
        with self._changed:
            self._desk.expire_all(refresh_tokens_too=refresh_tokens_too)

    def change_secret(self, auth_secret: str) -> None:
        """Accept only this secret from now on. Tokens handed out stay good."""
        with self._changed:
            self._desk.auth_secret = auth_secret

    def forget_workers(self) -> None:
        """Forget every registered worker: its heartbeats are answered `false` until it registers again."""
        with self._changed:
            self._forgotten.update(str(entry.get("worker_id")) for entry in self._registrations)

    def remember_workers(self) -> None:
        """Undo `forget_workers`."""
        with self._changed:
            self._forgotten.clear()

    def probe(
        self,
        worker_id: str | None = None,
        *,
        request_id: str | None = None,
        transport: Literal["udp", "tcp"] = "udp",
        timeout: float = 5.0,
    ) -> str:
        """Send a registered lazy worker one wake-up packet and return its answer.

        Args:
            worker_id: the worker; None for the one that registered last.
            request_id: the packet's `Parameters`.
            transport: `udp`, or one packet over a TCP connection of its own.
            timeout: seconds to wait for the answer.

        Raises:
            LookupError: no such worker has registered with an address.
            TimeoutError: no ACK came.
        """
        ip, port = self._probe_address(worker_id)
        return self._prober.probe(ip, port, request_id=request_id, transport=transport, timeout=timeout)

    def send_probe_bytes(self, packet: bytes, worker_id: str | None = None) -> None:
        """Send these bytes to a worker's probe port as one datagram, and wait for nothing."""
        self._prober.send(*self._probe_address(worker_id), packet)

    # --- what a test looks at ---

    @property
    def jwt_key(self) -> str:
        """The key its tokens are signed with (HS256)."""
        return self._desk.key

    @property
    def responses(self) -> list[dict[str, Any]]:
        """The accepted responses, decoded, in order: the first one to each request id."""
        return self._look(lambda: self._answers.accepted)

    @property
    def refused_responses(self) -> list[dict[str, Any]]:
        """Responses to a request id that had been answered before (409)."""
        return self._look(lambda: self._answers.refused)

    @property
    def registrations(self) -> list[dict[str, Any]]:
        """The decoded bodies of all registrations, in order."""
        return self._look(lambda: list(self._registrations))

    @property
    def feedbacks(self) -> list[dict[str, Any]]:
        """The decoded bodies of all feedback, in order."""
        return self._look(lambda: list(self._feedbacks))

    @property
    def heartbeats(self) -> list[tuple[str, float]]:
        """Worker id and monotonic time of every heartbeat, in order."""
        return self._look(lambda: list(self._heartbeats))

    @property
    def shutdowns(self) -> list[str]:
        """The ids of the workers that notified their shutdown, in order."""
        return self._look(lambda: list(self._shutdowns))

    @property
    def locks(self) -> dict[str, str]:
        """Which worker holds the lock of which request."""
        return self._look(lambda: dict(self._queue.locks))

    @property
    def violations(self) -> list[str]:
        """What workers did against the protocol page so far, one sentence each."""
        return self._look(lambda: list(self._violations))

    @property
    def probe_answers(self) -> list[str]:
        """Every datagram that came back for wake-up packets, in order."""
        return self._prober.answers

    def queue_size(self, worker_id: str | None = None) -> int:
        """How many messages wait: for this worker, or at all."""
        return self._look(lambda: self._queue.size(worker_id))

    def wait_for_registration(self, count: int = 1, timeout: float = 10.0) -> dict[str, Any]:
        """Wait until this many registrations have come, and return the last of them.

        Raises:
            TimeoutError: they did not come.
        """
        self.wait_until(lambda: len(self._registrations) >= count, timeout, f"registration {count}")
        return self.registrations[count - 1]

    def wait_for_response(self, request_id: str, timeout: float = 10.0) -> dict[str, Any]:
        """Wait until this request is answered, and return the decoded response.

        Raises:
            TimeoutError: no response came.
        """
        self.wait_until(
            lambda: self._answers.find(request_id) is not None, timeout, f"a response to {request_id}"
        )
        return cast("dict[str, Any]", self._look(lambda: self._answers.find(request_id)))

    def assert_answered_once(
        self, request_id: str, status: str | None = None, *, result: Any = _ANYTHING, timeout: float = 10.0
    ) -> dict[str, Any]:
        """Assert that this request is answered with one outcome, and return the response.

        Sending it again is right only when the worker could not know that it had arrived (a fault struck the
        answer), and then only with the same content.

        Args:
            request_id: the request.
            status: what the response's `status` has to be; None for any.
            result: what its `result` has to be; any when left out.
            timeout: seconds to wait for the response.

        Raises:
            AssertionError: it was not answered, answered again, answered differently, or otherwise than told.
        """
        try:
            response = self.wait_for_response(request_id, timeout)
        except TimeoutError as error:
            raise AssertionError(str(error)) from None
        self._look(lambda: self._answers.check(request_id, status))
        if result is not _ANYTHING and response["result"] != result:
            raise AssertionError(f"the result is {response['result']!r}, not {result!r}")
        return response

    def assert_protocol_kept(self) -> None:
        """Assert that no worker did anything against the protocol page.

        Raises:
            AssertionError: one did; the text lists everything.
        """
        broken = self.violations
        if broken:
            raise AssertionError("against the protocol page: " + "; ".join(broken))

    def enqueue_described(self, keywords: dict[str, Any]) -> str:
        """`enqueue` with these keywords, for the control path."""
        return self.enqueue(**keywords)

    def answers(self) -> list[dict[str, Any]]:
        """`responses`, for the control path."""
        return self.responses

    # --- the protocol ---

    def _name_of(self, request: Request) -> str | None:
        parts = request.segments
        if len(parts) < 2 or parts[0] != "worker":
            return None
        return _ROUTES.get((request.method, parts[1], len(parts)))

    def _perform(self, exchange: Exchange) -> Reply:
        call = exchange.call
        if call.name in ("token", "other"):
            return self._anonymous(exchange)
        with self._changed:
            authorization = call.request.header("authorization")
            if exchange.token_expired:
                self._desk.expire(authorization)
            call.worker_id = self._desk.owner(authorization)
            if call.worker_id is None:
                return Reply(401, b'{"error": "invalid_token"}')
            self._violations += self._broken_rules(call)
        handler: Callable[[Exchange, str], Reply] = getattr(self, f"_{call.name}")
        return handler(exchange, call.worker_id)

    def _broken_rules(self, call: Call) -> list[str]:
        answered = (call.request.json_object() or {}).get("request_id") if call.name == "respond" else None
        return violations_of(
            call,
            is_registered=any(entry["worker_id"] == call.worker_id for entry in self._registrations),
            locked_by=self._queue.locks.get(str(answered)),
            needs_lock=answered in self._locking,
        )

    def _take_back(self, reply: Reply) -> None:
        with self._changed:
            messages = cast("tuple[Message, ...]", reply.taken)
            self._queue.put_back(messages)
            self._changed.notify_all()

    def _anonymous(self, exchange: Exchange) -> Reply:
        with self._changed:
            self._violations += self._broken_rules(exchange.call)
        if exchange.call.name == "token":
            return self._token(exchange)
        return Reply(404, b'{"error": "no such path"}')

    def _token(self, exchange: Exchange) -> Reply:
        form = dict(parse_qsl(exchange.request.body.decode("utf-8", "replace"), keep_blank_values=True))
        exchange.call.worker_id = form.get("worker_id")
        with self._changed:
            return self._desk.answer(form, exchange.clock_offset_seconds, exchange.token_expired)

    def _register(self, exchange: Exchange, worker_id: str) -> Reply:
        body = exchange.request.json_object()
        if body is None or body.get("worker_id") != worker_id:
            return Reply(400, b'{"error": "worker_id is not the token\'s"}')
        with self._changed:
            self._registrations.append(body)
            self._forgotten.discard(worker_id)
            if worker_id in self._shutdowns:
                self._shutdowns.remove(worker_id)
            self._changed.notify_all()
        return Reply(200, json.dumps(dict(self.settings)).encode())

    def _drain(self, exchange: Exchange, worker_id: str) -> Reply:
        try:
            deadline = time.monotonic() + float(exchange.request.query.get("wait", 0))
        except ValueError:
            return Reply(400, b'{"error": "wait is no number"}')
        with self._changed:
            while not self._queue.size(worker_id) and not self._is_wait_over(exchange, worker_id, deadline):
                self._changed.wait(min(_LOOK_SECONDS, max(0.0, deadline - time.monotonic())))
            taken = () if exchange.is_over() else self._queue.take(worker_id)
        return Reply(200, b"[" + b",".join(message.raw for message in taken) + b"]", taken=taken)

    def _is_wait_over(self, exchange: Exchange, worker_id: str, deadline: float) -> bool:
        return time.monotonic() >= deadline or worker_id in self._shutdowns or exchange.is_over()

    def _lock(self, exchange: Exchange, worker_id: str) -> Reply:
        with self._changed:
            status = self._queue.lock(exchange.request.segments[2], worker_id)
            self._changed.notify_all()
        return Reply(status, b"true" if status < 300 else b"false")

    def _respond(self, exchange: Exchange, worker_id: str) -> Reply:
        body = exchange.request.json_object()
        if body is None or not isinstance(body.get("request_id"), str):
            return Reply(400, b'{"error": "request_id is missing"}')
        with self._changed:
            accepted = self._answers.record(body, exchange.call)
            self._queue.forget(body["request_id"])
            self._changed.notify_all()
        return Reply(200, b"true") if accepted else Reply(409, b'{"error": "answered before"}')

    def _feedback(self, exchange: Exchange, worker_id: str) -> Reply:
        body = exchange.request.json_object()
        if body is None:
            return Reply(400, b'{"error": "no JSON object"}')
        with self._changed:
            self._feedbacks.append(body)
            self._changed.notify_all()
        return Reply(200, b"true")

    def _heartbeat(self, exchange: Exchange, worker_id: str) -> Reply:
        with self._changed:
            self._heartbeats.append((worker_id, time.monotonic()))
            known = any(entry.get("worker_id") == worker_id for entry in self._registrations)
            self._changed.notify_all()
            return Reply(200, b"true" if known and worker_id not in self._forgotten else b"false")

    def _shutdown(self, exchange: Exchange, worker_id: str) -> Reply:
        with self._changed:
            self._shutdowns.append(worker_id)
            self._changed.notify_all()
        return Reply(200, b"true")

    # --- inside ---

    def _look(self, read: Callable[[], _T]) -> _T:
        with self._changed:
            return read()

    def _put(self, message: Message) -> None:
        with self._changed:
            self._queue.put(message)
            if message.lock_required and message.request_id is not None:
                self._locking.add(message.request_id)
            self._changed.notify_all()
        if self.probes:
            self._wake_lazy(message)

    def _wake_lazy(self, message: Message) -> None:
        for entry in self.registrations:
            if entry.get("run_mode") == "Lazy" and message.worker_id in (None, entry["worker_id"]):
                self._wake(entry, message.request_id)

    def _wake(self, entry: dict[str, Any], request_id: str | None) -> None:
        try:
            packet = wake_packet(str(uuid.uuid4()), request_id)
            self._prober.send(str(entry["ip"]), int(entry["port"]), packet)
        except (OSError, KeyError, TypeError, ValueError):
            # A worker that cannot be woken finds its messages when it looks by itself.
            pass

    def _probe_address(self, worker_id: str | None) -> tuple[str, int]:
        for entry in reversed(self.registrations):
            if worker_id in (None, entry.get("worker_id")) and entry.get("ip") and entry.get("port"):
                return str(entry["ip"]), int(entry["port"])
        raise LookupError(f"no worker {worker_id or ''} has registered with an ip and a port")
