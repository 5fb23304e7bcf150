"""The gRPC binding (section "gRPC binding"): the six calls by messages of the runtime's own `worker.proto`.

One channel to each server serves all threads. It is made when it is first used, never before a fork, and made
anew after a call that hung. No idle pings: the polls are enough.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

import msgspec

from kiwi_worker.errors import Ambiguous, KiwiWorkerError, NotSent, SettingsError, UnencodableResult
from kiwi_worker.orbit.proto.loader import OrbitProto, Rpc, load_proto
from kiwi_worker.orbit.proto.values import fill_value, read_value
from kiwi_worker.orbit.wire import (
    NOT_LEADER,
    UNKNOWN_SESSION,
    Ack,
    Assignment,
    Credentials,
    Refused,
    Registered,
    Servers,
)
from kiwi_worker.settings import OrbitSettings

__all__ = ["Channels", "GrpcWire"]

_logger = logging.getLogger("kiwi_worker.orbit")

READ_MARGIN_SECONDS = 15.0
SHORT_LIMIT_SECONDS = 15.0
LONGEST_WAIT_MS = 60_000
LARGEST_MESSAGE = 64 * 1024 * 1024

_HTTP_STATUS = {
    "INVALID_ARGUMENT": 400,
    "UNAUTHENTICATED": 401,
    "PERMISSION_DENIED": 403,
    "NOT_FOUND": 404,
    "FAILED_PRECONDITION": 409,
}
_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode


class WrongProto(SettingsError):
    """An answer that only makes sense when the field numbers are wrong."""


class Channels:
    """The channels of one worker, one to each server.

    Args:
        settings: servers, TLS files and the `worker.proto`.
        servers: which one is used now.
        credentials: the bearer token.

    Raises:
        SettingsError: the extra is missing, or `proto` or a TLS file cannot be used.
    """

    def __init__(self, settings: OrbitSettings, servers: Servers, credentials: Credentials) -> None:
        try:
            import grpc
        except ImportError:
            raise SettingsError(
                "server", "grpc:// needs the extra: pip install 'kiwi-worker[orbit-grpc]'"
            ) from None
        self.grpc = grpc
        self.servers = servers
        self.credentials = credentials
        self.proto: OrbitProto = load_proto(settings.proto or "")
        self._targets = [urlsplit(url).netloc for url in settings.server]
        self._tls = self._tls_credentials(settings)
        self._lock = threading.Lock()
        self._channels: dict[int, Any] = {}
        self.warned_of_unknown_fields = False

    def _tls_credentials(self, settings: OrbitSettings) -> Any:
        if settings.scheme != "grpcs":
            return None
        key = settings.client_key or settings.client_cert
        return self.grpc.ssl_channel_credentials(
            root_certificates=_content("ca_file", settings.ca_file),
            private_key=_content("client_key", key),
            certificate_chain=_content("client_cert", settings.client_cert),
        )

    def wire(self) -> GrpcWire:
        """The calls for one thread."""
        return GrpcWire(self)

    def channel(self, index: int) -> Any:
        """The channel to one server."""
        with self._lock:
            channel = self._channels.get(index)
            if channel is None:
                channel = self._channels[index] = self._open(self._targets[index])
            return channel

    def _open(self, target: str) -> Any:
        options = [
            ("grpc.max_receive_message_length", LARGEST_MESSAGE),
            ("grpc.max_send_message_length", LARGEST_MESSAGE),
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.initial_reconnect_backoff_ms", 100),
            ("grpc.max_reconnect_backoff_ms", 5000),
        ]
        if self._tls is None:
            return self.grpc.insecure_channel(target, options)
        return self.grpc.secure_channel(target, self._tls, options)

    def renew(self, index: int, channel: Any) -> None:
        """A call on this channel hung: the next ones get a new one."""
        with self._lock:
            if self._channels.get(index) is channel:
                del self._channels[index]
        channel.close()

    def close(self) -> None:
        """Close all channels."""
        with self._lock:
            channels, self._channels = list(self._channels.values()), {}
        for channel in channels:
            channel.close()


def _content(setting: str, path: str | None) -> bytes | None:
    if path is None:
        return None
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise SettingsError(setting, f"{path} cannot be read: {error.strerror}") from None


class GrpcWire:
    """The calls of one thread over the worker's channels."""

    def __init__(self, channels: Channels) -> None:
        self._channels = channels
        self._proto = channels.proto
        self._call: Any = None

    def register(self, request: dict[str, Any]) -> Registered:
        """RegisterWorker."""
        message = self._proto.register.request(
            worker_id=request["worker_id"], runtime=request["runtime"], sdk=request["sdk"]
        )
        message.contracts.extend(self._proto.contract(**contract) for contract in request["contracts"])
        answer = self._send(self._proto.register, message, SHORT_LIMIT_SECONDS)
        if not answer.worker_session_id:
            raise WrongProto(
                "proto", "the registration brought no session id: the field numbers are not the runtime's"
            )
        return Registered(
            answer.worker_session_id,
            answer.heartbeat_interval_ms,
            answer.session_timeout_ms,
            list(answer.warnings),
        )

    def poll(self, session_id: str, wait_ms: int) -> Assignment | None:
        """PollTask; an empty token is no task."""
        wait_ms = max(1, min(wait_ms, LONGEST_WAIT_MS))
        message = self._proto.poll.request(worker_session_id=session_id, wait_ms=wait_ms)
        task = self._send(self._proto.poll, message, wait_ms / 1000 + READ_MARGIN_SECONDS)
        if not task.token:
            if task.ListFields():
                raise WrongProto(
                    "proto", "a task came without a token: the field numbers are not the runtime's"
                )
            return None
        return self._assignment(task)

    def _assignment(self, task: Any) -> Assignment:
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

    def heartbeat(self, session_id: str, limit_seconds: float) -> Sequence[str]:
        """Heartbeat."""
        message = self._proto.heartbeat.request(worker_session_id=session_id)
        return list(self._send(self._proto.heartbeat, message, limit_seconds).cancel)

    def result(self, route: str, body: bytes, limit_seconds: float) -> Ack:
        """CompleteTask or FailTask."""
        rpc = self._proto.complete if route == "complete" else self._proto.fail
        try:
            message = self._result_message(rpc, _decode(body))
        except UnencodableResult as error:
            if route != "complete":
                raise
            # Sent as it is, it would arrive changed.
            failure = {
                "token": _decode(body)["token"],
                "error_code": "INVALID_RESULT",
                "error_message": str(error),
            }
            rpc = self._proto.fail
            message = self._result_message(rpc, {**failure, "retryable": False})
        if message.ByteSize() > LARGEST_MESSAGE:
            raise Refused(route, 413, "", "the message is larger than gRPC carries here", ours=True)
        answer = self._send(rpc, message, limit_seconds)
        return Ack(answer.accepted, answer.reason or None)

    def _result_message(self, rpc: Rpc, fields: dict[str, Any]) -> Any:
        values = {name: fields.pop(name) for name in ("output", "details") if name in fields}
        message = rpc.request(**fields)
        for name, value in values.items():
            fill_value(getattr(message, name), value, path=f"$.{name}", exact=name == "output")
        return message

    def unregister(self, session_id: str) -> None:
        """UnregisterWorker."""
        self._send(self._proto.unregister, self._proto.unregister.request(worker_session_id=session_id), 5.0)

    def close(self) -> None:
        """End the running call; the channels are the worker's."""
        self.interrupt()

    def interrupt(self) -> None:
        """End the running call."""
        call = self._call
        if call is not None:
            call.cancel()

    def _send(self, rpc: Rpc, message: Any, limit_seconds: float) -> Any:
        """One call on the server used now, or on the next ones as long as nothing was asked of anybody."""
        channels = self._channels
        failure: KiwiWorkerError | None = None
        for _ in range(len(channels.servers)):
            index = channels.servers.current
            channel = channels.channel(index)
            try:
                answer = self._ask(channel, rpc, message, limit_seconds)
            except channels.grpc.RpcError as error:
                failure = self._failure(index, channel, rpc, error)
                if isinstance(failure, NotSent) or (
                    isinstance(failure, Refused) and failure.code == NOT_LEADER
                ):
                    channels.servers.leave(index)
                    continue
                raise failure from None
            self._look_for_unknown_fields(answer)
            return answer
        assert failure is not None
        raise failure

    def _ask(self, channel: Any, rpc: Rpc, message: Any, limit_seconds: float) -> Any:
        header = self._channels.credentials.header()
        stub = channel.unary_unary(
            rpc.path,
            request_serializer=rpc.request.SerializeToString,
            response_deserializer=rpc.response.FromString,
        )
        self._call = stub.future(
            message, timeout=limit_seconds, metadata=[("authorization", header)] if header else None
        )
        try:
            return self._call.result()
        except self._channels.grpc.FutureCancelledError:
            raise Ambiguous(f"{rpc.path} was broken off") from None
        finally:
            self._call = None

    def _failure(self, index: int, channel: Any, rpc: Rpc, error: Any) -> KiwiWorkerError:
        status, text = error.code().name, error.details() or ""
        code = _orbit_code(error, text)
        if not code and status == "UNAVAILABLE":
            sent = "Socket closed" in text or "GOAWAY" in text or "reset" in text.lower()
            return (
                Ambiguous(f"{rpc.path} broke off: {text}")
                if sent
                else NotSent(f"{rpc.path} was not sent: {text}")
            )
        if not code and status in ("DEADLINE_EXCEEDED", "CANCELLED"):
            self._channels.renew(index, channel)
            self._channels.servers.leave(index)
            return Ambiguous(f"{rpc.path} was not answered: {status}")
        if status == "RESOURCE_EXHAUSTED":
            # Not one of the protocol's statuses: what gRPC itself says of a message beyond a limit.
            return Refused(rpc.path, 413, "", text, ours=True)
        if status == "UNAUTHENTICATED":
            self._channels.credentials.refused()
        http_status = 404 if code == UNKNOWN_SESSION else _HTTP_STATUS.get(status, 500)
        return Refused(rpc.path, http_status, code, text, ours=bool(code))

    def _look_for_unknown_fields(self, answer: Any) -> None:
        channels = self._channels
        if channels.warned_of_unknown_fields or answer.ByteSize() == 0:
            return
        known = type(answer)()
        known.CopyFrom(answer)
        known.DiscardUnknownFields()
        if known.ByteSize() != answer.ByteSize():
            channels.warned_of_unknown_fields = True
            _logger.warning(
                "the runtime sends fields that the setting proto does not know; they are ignored",
                extra={"action": "unknown_fields"},
            )


def _orbit_code(error: Any, text: str) -> str:
    for name, value in error.trailing_metadata() or ():
        if name == "orbit-error-code":
            return str(value)
    word = text.partition(":")[0]
    return word if word.isupper() and word.replace("_", "").isalnum() else ""
