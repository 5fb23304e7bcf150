"""The gRPC binding of the dev runtime: plaintext, TLS and mutual TLS, errors, numbers, defaults."""

from __future__ import annotations

import contextlib
import hashlib
import json
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from kiwi_worker.orbit.proto import OrbitProto, Rpc, fill_value, load_proto, read_value
from kiwi_worker.testing.orbit_runtime import RunningRuntime, running_runtime

from .certificates import Authority, Pair

FREE = """
[[workflow]]
name = "Echo"
step = { task = "echo", retry = { attempts = 3 }, timeout = "20s" }
"""
WORKERS = f"""
[[workers]]
worker_id = "ruby-1"
token_sha256 = "{hashlib.sha256(b"ruby-token").hexdigest()}"
runtime = "ruby"
tasks = ["greeting.*"]

[[workers]]
worker_id = "by-dns"
client_cert = "worker.example"

[[workers]]
worker_id = "by-name"
client_cert = "Common Name"
"""


class Stub:
    """The six calls, as any gRPC client would make them."""

    def __init__(self, channel: grpc.Channel, token: str | None = None) -> None:
        self.proto: OrbitProto = load_proto("assumed")
        self._channel = channel
        self._metadata = () if token is None else (("authorization", f"Bearer {token}"),)

    def call(self, rpc: Rpc, **fields: Any) -> Any:
        send = self._channel.unary_unary(
            rpc.path,
            request_serializer=rpc.request.SerializeToString,
            response_deserializer=rpc.response.FromString,
        )
        return send(rpc.request(**fields), metadata=self._metadata, timeout=30)

    def register(self, worker_id: str = "w", runtime: str = "ruby", task: str = "greeting.compose") -> Any:
        contract = self.proto.contract(task_name=task, contract_version="1.0.0")
        return self.call(self.proto.register, worker_id=worker_id, runtime=runtime, contracts=[contract])

    def session(self, task: str = "greeting.compose") -> str:
        return str(self.register(task=task).worker_session_id)

    def poll(self, session: str, wait_ms: int = 5000) -> Any:
        return self.call(self.proto.poll, worker_session_id=session, wait_ms=wait_ms)

    def complete(self, token: str, output: Any = None) -> Any:
        request = self.proto.complete.request(token=token)
        if output is not None:
            fill_value(request.output, output)
        return self.call(
            self.proto.complete, token=token, output=request.output if output is not None else None
        )


@contextlib.contextmanager
def channel_to(
    runtime: RunningRuntime, authority: Authority | None = None, pair: Pair | None = None
) -> Iterator[Any]:
    assert runtime.grpc_url is not None
    target = runtime.grpc_url.partition("://")[2]
    if authority is None:
        channel = grpc.insecure_channel(target)
    else:
        credentials = grpc.ssl_channel_credentials(
            authority.file.read_bytes(),
            None if pair is None else pair.key.read_bytes(),
            None if pair is None else pair.certificate.read_bytes(),
        )
        channel = grpc.secure_channel(target, credentials)
    with channel:
        yield channel


def start(runtime: RunningRuntime, workflow: str, value: Any, execution_id: str) -> None:
    body = json.dumps({"workflow": workflow, "input": value, "execution_id": execution_id}).encode()
    headers = {"content-type": "application/json", "authorization": "Bearer admin"}
    with urllib.request.urlopen(
        urllib.request.Request(f"{runtime.url}/v1/executions", body, headers)
    ) as answer:
        assert json.load(answer)["created"]


def execution(runtime: RunningRuntime, execution_id: str) -> Any:
    url = f"{runtime.url}/v1/executions/{execution_id}/wait?timeout_ms=5000"
    request = urllib.request.Request(url, headers={"authorization": "Bearer admin"})
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)


@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningRuntime]:
    greet = (Path(__file__).parent / "greet.toml").read_text("utf-8")
    with running_runtime(
        greet + FREE, token="admin", worker_token="worker", workers=WORKERS, grpc=True
    ) as running:
        yield running


@pytest.fixture
def stub(runtime: RunningRuntime) -> Iterator[Stub]:
    with channel_to(runtime) as channel:
        yield Stub(channel, "worker")


def failure_of(call: Callable[[], Any]) -> tuple[grpc.StatusCode, str, str | None]:
    with pytest.raises(grpc.RpcError) as caught:
        call()
    error: Any = caught.value
    metadata = dict(error.trailing_metadata() or ())
    return error.code(), error.details(), metadata.get("orbit-error-code")


def test_all_six_calls(stub: Stub, runtime: RunningRuntime) -> None:
    registered = stub.register()
    assert registered.accepted
    assert (registered.heartbeat_interval_ms, registered.session_timeout_ms) == (5000, 30_000)
    assert list(registered.warnings) == []
    session = registered.worker_session_id
    start(runtime, "Greet", {"name": "Ada"}, "six")
    task = stub.poll(session)
    assert (task.execution_id, task.step_id, task.attempt, task.redelivery) == ("six", "compose", 1, False)
    assert (task.timeout_ms, task.HasField("deadline_ms")) == (30_000, True)
    assert read_value(task.input) == {"name": "Ada"}
    heartbeat = stub.call(stub.proto.heartbeat, worker_session_id=session)
    assert (heartbeat.accepted, list(heartbeat.cancel)) == (True, [])
    failed = stub.call(stub.proto.fail, token=task.token, error_code="BUSY", retryable=True)
    assert (failed.accepted, failed.reason) == (True, "")
    stale = stub.call(stub.proto.fail, token=task.token, error_code="BUSY", retryable=True)
    assert (stale.accepted, stale.reason) == (False, "stale attempt")
    again = stub.poll(session)
    assert again.attempt == 2
    done = stub.complete(again.token, {"message": "hi"})
    assert (done.accepted, done.reason) == (True, "")
    assert stub.call(stub.proto.unregister, worker_session_id=session).accepted
    assert execution(runtime, "six")["output"] == {"message": "hi"}


def test_no_task_is_an_empty_token(stub: Stub) -> None:
    task = stub.poll(stub.session("nothing"), wait_ms=1)
    assert task == stub.proto.poll.response()


def test_a_wait_of_zero_is_the_default(stub: Stub, runtime: RunningRuntime) -> None:
    session = stub.session("echo")
    send = stub._channel.unary_unary(
        stub.proto.poll.path,
        request_serializer=stub.proto.poll.request.SerializeToString,
        response_deserializer=stub.proto.poll.response.FromString,
    )
    pending = send.future(
        stub.proto.poll.request(worker_session_id=session, wait_ms=0), metadata=stub._metadata, timeout=30
    )
    start(runtime, "Echo", {}, "zero")
    task = pending.result()
    assert task.execution_id == "zero"
    assert stub.complete(task.token).accepted


def test_an_unset_retryable_is_false(stub: Stub, runtime: RunningRuntime) -> None:
    session = stub.session("echo")
    start(runtime, "Echo", {}, "unset")
    stub.call(stub.proto.fail, token=stub.poll(session).token, error_code="BUSY")
    assert execution(runtime, "unset")["status"] == "FAILED"


def test_details_are_kept_in_the_history(stub: Stub, runtime: RunningRuntime) -> None:
    session = stub.session("echo")
    start(runtime, "Echo", {}, "details")
    request = stub.proto.fail.request(token=stub.poll(session).token, error_code="BUSY")
    fill_value(request.details, {"queue_depth": 42})
    stub.call(stub.proto.fail, token=request.token, error_code="BUSY", details=request.details)
    failed = [event for event in execution(runtime, "details")["history"] if event["kind"] == "AttemptFailed"]
    assert [event["details"] for event in failed] == [{"queue_depth": 42}]


def test_whole_numbers_come_back_as_integers(stub: Stub, runtime: RunningRuntime) -> None:
    session = stub.session("echo")
    value = {"n": 3, "x": 0.5, "deep": [2**53, -(2**53), {"z": 0}]}
    start(runtime, "Echo", value, "numbers")
    task = stub.poll(session)
    received = read_value(task.input)
    assert received == value
    assert [type(received["n"]), type(received["x"])] == [int, float]
    stub.complete(task.token, received)
    output = execution(runtime, "numbers")["output"]
    assert output == value
    assert isinstance(output["n"], int)


@pytest.mark.parametrize(
    ("rpc", "fields", "status", "message", "code"),
    [
        (
            "heartbeat",
            {"worker_session_id": "nope"},
            grpc.StatusCode.NOT_FOUND,
            "UNKNOWN_SESSION: unknown or expired worker session; register again",
            "UNKNOWN_SESSION",
        ),
        (
            "unregister",
            {"worker_session_id": "nope"},
            grpc.StatusCode.NOT_FOUND,
            "UNKNOWN_SESSION: unknown worker session",
            "UNKNOWN_SESSION",
        ),
        (
            "register",
            {"worker_id": " "},
            grpc.StatusCode.INVALID_ARGUMENT,
            "INVALID_REQUEST: ",
            "INVALID_REQUEST",
        ),
        ("complete", {}, grpc.StatusCode.INVALID_ARGUMENT, "INVALID_REQUEST: ", None),
        ("fail", {"token": "t"}, grpc.StatusCode.INVALID_ARGUMENT, "INVALID_REQUEST: ", None),
    ],
)
def test_errors_are_statuses_with_the_code(
    stub: Stub, rpc: str, fields: dict[str, Any], status: grpc.StatusCode, message: str, code: str | None
) -> None:
    found_status, found_message, found_code = failure_of(
        lambda: stub.call(getattr(stub.proto, rpc), **fields)
    )
    assert (found_status, found_code) == (status, code)
    assert found_message.startswith(message)


def test_a_reserved_task_is_refused(stub: Stub) -> None:
    status, message, code = failure_of(lambda: stub.register(task="orbit.http"))
    assert (status, code) == (grpc.StatusCode.INVALID_ARGUMENT, "RESERVED_TASK")
    assert message.startswith("RESERVED_TASK: ")


@pytest.mark.parametrize("token", [None, "wrong"])
def test_missing_credentials_have_only_the_prefix(runtime: RunningRuntime, token: str | None) -> None:
    with channel_to(runtime) as channel:
        status, message, code = failure_of(Stub(channel, token).register)
    assert (status, code) == (grpc.StatusCode.UNAUTHENTICATED, None)
    assert message.startswith("UNAUTHENTICATED: ")


def test_identities_hold_over_grpc(runtime: RunningRuntime) -> None:
    with channel_to(runtime) as channel:
        stub = Stub(channel, "ruby-token")
        assert stub.register("ruby-1").accepted
        assert failure_of(lambda: stub.register("ruby-2")) == (
            grpc.StatusCode.PERMISSION_DENIED,
            "FORBIDDEN: this credential belongs to worker `ruby-1`, not `ruby-2`",
            "FORBIDDEN",
        )


def test_a_runtime_that_is_not_the_leader_says_so(stub: Stub, runtime: RunningRuntime) -> None:
    headers = {"content-type": "application/json", "authorization": "Bearer admin"}

    def lead(leader: bool) -> None:
        body = json.dumps({"leader": leader}).encode()
        with urllib.request.urlopen(urllib.request.Request(f"{runtime.url}/v1/dev/leader", body, headers)):
            pass

    lead(False)
    try:
        status, message, code = failure_of(stub.register)
    finally:
        lead(True)
    assert (status, code) == (grpc.StatusCode.INTERNAL, "NOT_LEADER")
    assert message.startswith("NOT_LEADER: ")


def test_tls(greet: Path, authority: Authority) -> None:
    server = authority.sign("server-tls", addresses=["127.0.0.1"])
    with running_runtime(
        greet, token="admin", grpc=True, tls_cert=server.certificate, tls_key=server.key
    ) as running:
        assert (running.grpc_url or "").startswith("grpcs://")
        with channel_to(running, authority) as channel:
            assert Stub(channel, "admin").register().accepted


@pytest.fixture(scope="module")
def mutual(authority: Authority) -> Iterator[RunningRuntime]:
    server = authority.sign("server-mutual", addresses=["127.0.0.1"])
    with running_runtime(
        Path(__file__).parent / "greet.toml",
        token="admin",
        workers=WORKERS,
        grpc=True,
        tls_cert=server.certificate,
        tls_key=server.key,
        tls_client_ca=authority.file,
    ) as running:
        yield running


@pytest.mark.parametrize(
    ("common_name", "dns_names", "worker_id"),
    [("anything", ["worker.example"], "by-dns"), ("Common Name", [], "by-name")],
)
def test_mutual_tls_knows_a_worker_by_its_certificate(
    mutual: RunningRuntime, authority: Authority, common_name: str, dns_names: list[str], worker_id: str
) -> None:
    pair = authority.sign(common_name, dns_names)
    with channel_to(mutual, authority, pair) as channel:
        stub = Stub(channel)
        assert stub.register(worker_id).accepted
        assert failure_of(lambda: stub.register("other"))[0] == grpc.StatusCode.PERMISSION_DENIED


def test_a_valid_certificate_of_nobody_is_forbidden(mutual: RunningRuntime, authority: Authority) -> None:
    with channel_to(mutual, authority, authority.sign("nobody", ["nobody.example"])) as channel:
        status, message, code = failure_of(Stub(channel).register)
    assert (status, code) == (grpc.StatusCode.PERMISSION_DENIED, "FORBIDDEN")
    assert message.startswith("FORBIDDEN: ")


def test_a_valid_token_decides_over_the_certificate(mutual: RunningRuntime, authority: Authority) -> None:
    with channel_to(mutual, authority, authority.sign("nobody-2", ["worker.example"])) as channel:
        assert Stub(channel, "admin").register("somebody-else").accepted
        assert Stub(channel, "wrong").register("by-dns").accepted


def test_a_certificate_of_another_authority_gets_no_connection(
    mutual: RunningRuntime, authority: Authority, tmp_path: Path
) -> None:
    stranger = Authority(tmp_path, "stranger").sign("worker", ["worker.example"])
    with channel_to(mutual, authority, stranger) as channel:
        status, _, _ = failure_of(Stub(channel, "admin").register)
    assert status == grpc.StatusCode.UNAVAILABLE
