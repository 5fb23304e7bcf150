"""The gRPC binding: the six calls of `WorkerService` around the driver (ORBIT page, "gRPC binding")."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from kiwi_worker.errors import SettingsError
from kiwi_worker.orbit.proto import OrbitProto, Rpc, fill_value, load_proto, read_value
from kiwi_worker.orbit.runtime.driver import Driver
from kiwi_worker.orbit.runtime.identities import Caller, Credentials
from kiwi_worker.orbit.runtime.messages import Ack, Assignment, Registration
from kiwi_worker.orbit.runtime.model import Contract, Failure
from kiwi_worker.orbit.runtime.options import RuntimeOptions
from kiwi_worker.orbit.runtime.refusal import Refused, internal

try:
    import grpc
    import grpc.aio
except ImportError:  # pragma: no cover
    raise SettingsError(
        "grpc_addr", "gRPC needs the extra `orbit-grpc`: pip install 'kiwi-worker[orbit-grpc]'"
    ) from None

_STATUS = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    401: grpc.StatusCode.UNAUTHENTICATED,
    403: grpc.StatusCode.PERMISSION_DENIED,
    404: grpc.StatusCode.NOT_FOUND,
    409: grpc.StatusCode.FAILED_PRECONDITION,
}
_STOP_SECONDS = 1.0

Answer = Callable[[Caller, Any], Awaitable[Any]]


class GrpcBinding:
    """The calls of the service, in the terms of one `worker.proto`."""

    def __init__(self, driver: Driver, credentials: Credentials, proto: OrbitProto) -> None:
        self._driver, self._credentials, self._proto = driver, credentials, proto

    def handlers(self) -> Any:
        """What a gRPC server is given to serve."""
        calls: list[tuple[Rpc, Answer]] = [
            (self._proto.register, self._register),
            (self._proto.poll, self._poll),
            (self._proto.heartbeat, self._heartbeat),
            (self._proto.complete, self._complete),
            (self._proto.fail, self._fail),
            (self._proto.unregister, self._unregister),
        ]
        _, service, _ = self._proto.register.path.split("/")
        handlers = {rpc.path.rpartition("/")[2]: self._handler(rpc, answer) for rpc, answer in calls}
        return grpc.method_handlers_generic_handler(service, handlers)

    def _handler(self, rpc: Rpc, answer: Answer) -> Any:
        async def handle(request: Any, context: Any) -> Any:
            try:
                return await answer(self._caller(context), request)
            except Refused as refused:
                await _abort(context, refused)
            except Exception as error:  # noqa: BLE001 - whatever it is, the client is told in the page's form
                await _abort(context, internal(error))

        return grpc.unary_unary_rpc_method_handler(
            handle,
            request_deserializer=rpc.request.FromString,
            response_serializer=rpc.response.SerializeToString,
        )

    def _caller(self, context: Any) -> Caller:
        metadata = dict(context.invocation_metadata() or ())
        return self._credentials.caller(metadata.get("authorization"), _certificate_names(context))

    async def _register(self, caller: Caller, request: Any) -> Any:
        answer = self._driver.register(caller, _registration(request))
        return self._proto.register.response(
            accepted=True,
            worker_session_id=answer.worker_session_id,
            heartbeat_interval_ms=answer.heartbeat_interval_ms,
            session_timeout_ms=answer.session_timeout_ms,
            warnings=answer.warnings,
        )

    async def _poll(self, caller: Caller, request: Any) -> Any:
        # zero is what an unset number reads as, and means the default
        assignment = await self._driver.poll(caller, request.worker_session_id, request.wait_ms or None)
        return self._proto.poll.response() if assignment is None else self._task(assignment)

    def _task(self, assignment: Assignment) -> Any:
        fields = {name: getattr(assignment, name) for name in assignment.__struct_fields__ if name != "input"}
        response = self._proto.poll.response(**{k: v for k, v in fields.items() if isinstance(v, (str, int))})
        fill_value(response.input, assignment.input, exact=False)
        return response

    async def _heartbeat(self, caller: Caller, request: Any) -> Any:
        cancels = self._driver.heartbeat(caller, request.worker_session_id)
        return self._proto.heartbeat.response(accepted=True, cancel=cancels)

    async def _complete(self, caller: Caller, request: Any) -> Any:
        ack = self._driver.complete(caller, request.token, read_value(request.output))
        return _ack(self._proto.complete, ack)

    async def _fail(self, caller: Caller, request: Any) -> Any:
        failure = Failure(
            code=request.error_code, message=request.error_message, details=read_value(request.details)
        )
        ack = self._driver.fail(caller, request.token, failure, retryable=request.retryable)
        return _ack(self._proto.fail, ack)

    async def _unregister(self, caller: Caller, request: Any) -> Any:
        self._driver.unregister(caller, request.worker_session_id)
        return self._proto.unregister.response(accepted=True)


def _ack(rpc: Rpc, ack: Ack) -> Any:
    return rpc.response(accepted=ack.accepted, reason=ack.reason if isinstance(ack.reason, str) else "")


def _registration(request: Any) -> Registration:
    contracts = tuple(Contract(each.task_name, each.contract_version) for each in request.contracts)
    return Registration(request.worker_id, request.runtime, contracts, request.sdk or None)


def _certificate_names(context: Any) -> tuple[str, ...] | None:
    facts = context.auth_context()
    if "x509_pem_cert" not in facts:
        return None
    found = [*facts.get("x509_subject_alternative_name", ()), *facts.get("x509_common_name", ())]
    return tuple(name.decode("utf-8", "replace") for name in found)


async def _abort(context: Any, refused: Refused) -> None:
    metadata = (("orbit-error-code", refused.code),) if refused.code_in_metadata else ()
    status = _STATUS.get(refused.status, grpc.StatusCode.INTERNAL)
    await context.abort(status, str(refused), metadata)


@contextlib.asynccontextmanager
async def serving_grpc(
    options: RuntimeOptions, driver: Driver, credentials: Credentials
) -> AsyncIterator[tuple[str, int]]:
    """Serve gRPC while the block runs; gives the scheme and the real port.

    Raises:
        SettingsError: if the `worker.proto`, the address or a TLS file cannot be used.
    """
    binding = GrpcBinding(driver, credentials, load_proto(options.proto))
    server = grpc.aio.server(
        options=[
            # without it two runtimes could share a port, and each would get half of the calls
            ("grpc.so_reuseport", 0),
            ("grpc.max_receive_message_length", options.max_body),
            ("grpc.max_send_message_length", -1),
        ]
    )
    server.add_generic_rpc_handlers((binding.handlers(),))
    port = _add_port(server, options)
    await server.start()
    try:
        yield ("grpc" if options.tls_cert is None else "grpcs"), port
    finally:
        await server.stop(_STOP_SECONDS)


def _add_port(server: Any, options: RuntimeOptions) -> int:
    credentials = _tls(options)
    try:
        if credentials is None:
            return int(server.add_insecure_port(options.grpc_addr))
        return int(server.add_secure_port(options.grpc_addr, credentials))
    except RuntimeError as error:
        raise SettingsError("grpc_addr", f"cannot listen on {options.grpc_addr}: {error}") from None


def _tls(options: RuntimeOptions) -> Any:
    if options.tls_cert is None or options.tls_key is None:
        return None
    try:
        pair = options.tls_key.read_bytes(), options.tls_cert.read_bytes()
        authority = None if options.tls_client_ca is None else options.tls_client_ca.read_bytes()
    except OSError as error:
        raise SettingsError("tls_cert", f"the TLS files cannot be read: {error}") from None
    return grpc.ssl_server_credentials([pair], authority, require_client_auth=authority is not None)
