"""The gRPC binding (section "gRPC binding"): the six calls, by messages of a `worker.proto`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from kiwi_worker.errors import Ambiguous, KiwiWorkerError, NotSent, UnencodableResult
from kiwi_worker.orbit.channels import LARGEST_MESSAGE, Channels
from kiwi_worker.orbit.proto.loader import Rpc
from kiwi_worker.orbit.proto.values import fill_value, read_value
from kiwi_worker.orbit.servers import Servers
from kiwi_worker.orbit.wire import (
    LONGEST_WAIT_MS,
    READ_MARGIN_SECONDS,
    Ack,
    Assignment,
    BrokenOff,
    Refused,
    Registered,
    WrongProto,
)

__all__ = ["GrpcWire"]

_HTTP_STATUS = {
    "INVALID_ARGUMENT": 400,
    "UNAUTHENTICATED": 401,
    "PERMISSION_DENIED": 403,
    "NOT_FOUND": 404,
    "FAILED_PRECONDITION": 409,
}
"""The page's table, read backwards; what is not in it is a failure that may pass."""

_UNSENT = ("failed to connect", "connect failed", "connection refused", "name resolution", "dns resolution")
"""What gRPC says, among other things, when a call never left; anything else may have reached the server."""

_TOO_LARGE = ("RESOURCE_EXHAUSTED", "OUT_OF_RANGE")
"""With which gRPC servers and clients refuse a message beyond their limit."""

_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode


class GrpcWire:
    """The calls of one thread over the worker's channels.

    Args:
        channels: of the worker, shared by all its wires.
        servers: which one is used now; shared likewise.
    """

    def __init__(self, channels: Channels, servers: Servers) -> None:
        self._channels = channels
        self._servers = servers
        self._proto = channels.proto
        self._call: Any = None
        self._broken_off = False

    def register(self, request: dict[str, Any], limit_seconds: float) -> Registered:
        """RegisterWorker."""
        message = self._proto.register.request(
            worker_id=request["worker_id"], runtime=request["runtime"], sdk=request["sdk"]
        )
        message.contracts.extend(self._proto.contract(**contract) for contract in request["contracts"])
        answer = self._send(self._proto.register, message, limit_seconds)
        if not answer.worker_session_id:
            raise WrongProto("the registration brought no session id")
        return Registered(
            answer.worker_session_id,
            answer.heartbeat_interval_ms,
            answer.session_timeout_ms,
            list(answer.warnings),
        )

    def poll(self, session_id: str, wait_ms: int) -> Assignment | None:
        """PollTask; an empty token is no task."""
        # Zero would mean the default of 20 seconds.
        wait_ms = max(1, min(wait_ms, LONGEST_WAIT_MS))
        message = self._proto.poll.request(worker_session_id=session_id, wait_ms=wait_ms)
        task = self._send(self._proto.poll, message, wait_ms / 1000 + READ_MARGIN_SECONDS)
        if task.token:
            return _assignment(task)
        if task.ByteSize():
            raise WrongProto("a task came without a token")
        return None

    def heartbeat(self, session_id: str, limit_seconds: float) -> Sequence[str]:
        """Heartbeat."""
        message = self._proto.heartbeat.request(worker_session_id=session_id)
        return list(self._send(self._proto.heartbeat, message, limit_seconds).cancel)

    def result(self, route: str, body: bytes, limit_seconds: float) -> Ack:
        """CompleteTask or FailTask."""
        rpc, message = self._result_message(route, _decode(body))
        if message.ByteSize() > LARGEST_MESSAGE:
            raise Refused(route, 413, "", f"more than {LARGEST_MESSAGE} bytes", ours=True)
        answer = self._send(rpc, message, limit_seconds)
        return Ack(answer.accepted, answer.reason)

    def _result_message(self, route: str, fields: dict[str, Any]) -> tuple[Rpc, Any]:
        rpc = self._proto.complete if route == "complete" else self._proto.fail
        try:
            return rpc, _filled(rpc, fields)
        except UnencodableResult as error:
            if rpc is self._proto.fail:
                return rpc, _filled(rpc, {**fields, "details": str(error)})
            # Sent as it is, it would arrive changed.
            failure = {"error_code": "INVALID_RESULT", "error_message": str(error), "retryable": False}
            return self._proto.fail, self._proto.fail.request(token=fields["token"], **failure)

    def unregister(self, session_id: str, limit_seconds: float) -> None:
        """UnregisterWorker."""
        request = self._proto.unregister.request(worker_session_id=session_id)
        self._send(self._proto.unregister, request, limit_seconds)

    def close(self) -> None:
        """Nothing: the channels are the worker's."""

    def interrupt(self) -> None:
        """End the running call, or the next."""
        self._broken_off = True
        call = self._call
        if call is not None:
            call.cancel()

    def _send(self, rpc: Rpc, message: Any, limit_seconds: float) -> Any:
        answer = self._servers.call(
            lambda index: self._ask(index, rpc, message, limit_seconds), limit_seconds
        )
        self._channels.look_for_unknown_fields(answer)
        return answer

    def _ask(self, index: int, rpc: Rpc, message: Any, limit_seconds: float) -> Any:
        channels = self._channels
        channel = channels.channel(index)
        header = self._servers.credentials.header()
        try:
            call = self._call = channels.begin(channel, rpc, message, limit_seconds, header)
        except ValueError:
            raise NotSent(f"{rpc.path} was not sent: its channel was closed meanwhile") from None
        if self._broken_off:
            call.cancel()
        try:
            return call.result()
        except channels.grpc.FutureCancelledError:
            raise self._broken(rpc) from None
        except channels.grpc.RpcError as error:
            raise self._failure(index, channel, rpc, error) from None
        finally:
            self._call = None

    def _broken(self, rpc: Rpc) -> KiwiWorkerError:
        if self._broken_off:
            self._broken_off = False
            return BrokenOff(f"{rpc.path} was broken off")
        return Ambiguous(f"{rpc.path} ended with its channel")

    def _failure(self, index: int, channel: Any, rpc: Rpc, error: Any) -> KiwiWorkerError:
        """The ORBIT code decides where there is one, not the status."""
        status, text = error.code().name, error.details() or ""
        code = _orbit_code(error, status, text)
        if code:
            return Refused(rpc.path, _HTTP_STATUS.get(status, 500), code, text, ours=True)
        if status == "UNAVAILABLE":
            if any(sign in text.lower() for sign in _UNSENT):
                return NotSent(f"{rpc.path} was not sent: {text}")
            return Ambiguous(f"{rpc.path} broke off: {text}")
        if status in ("DEADLINE_EXCEEDED", "CANCELLED"):
            self._channels.renew(index, channel)
            return Ambiguous(f"{rpc.path} was not answered: {status}")
        if status in _TOO_LARGE and "larg" in text:
            return Refused(rpc.path, 413, "", text, ours=True)
        if status == "INTERNAL" and "deserializ" in text:
            return WrongProto(f"the answer to {rpc.path} cannot be read")
        return Refused(rpc.path, _HTTP_STATUS.get(status, 500), "", text, ours=False)


def _assignment(task: Any) -> Assignment:
    return Assignment(
        token=task.token,
        task_name=task.task_name,
        contract_version=task.contract_version,
        execution_id=task.execution_id,
        workflow=task.workflow,
        workflow_version=task.workflow_version,
        step_id=task.step_id,
        input=msgspec.Raw(_encode(read_value(task.input))),
        idempotency_key=task.idempotency_key,
        attempt=task.attempt,
        redelivery=task.redelivery,
        deadline_ms=task.deadline_ms if task.HasField("deadline_ms") else None,
        timeout_ms=task.timeout_ms if task.HasField("timeout_ms") else None,
    )


def _filled(rpc: Rpc, fields: dict[str, Any]) -> Any:
    values = {name: fields[name] for name in ("output", "details") if name in fields}
    message = rpc.request(**{name: value for name, value in fields.items() if name not in values})
    for name, value in values.items():
        # Details are for people: better rounded than not sent.
        fill_value(getattr(message, name), value, path=f"$.{name}", exact=name == "output")
    return message


def _orbit_code(error: Any, status: str, text: str) -> str:
    for name, value in error.trailing_metadata() or ():
        if name == "orbit-error-code":
            return str(value)
    if status not in _HTTP_STATUS and status != "INTERNAL":
        return ""  # gRPC itself has prefixes, too
    word, colon, _ = text.partition(":")
    return word if colon and word.isupper() and word.replace("_", "").isalnum() else ""
