"""`Client` and `AsyncClient` against the dev runtime."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import http.client
import inspect
import json
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from kiwi_worker.errors import Ambiguous, CallError, NotSent, ProtocolError, SettingsError, UnencodableResult
from kiwi_worker.orbit import client as module
from kiwi_worker.orbit.client import (
    AsyncClient,
    Client,
    ExecutionError,
    InvalidRequest,
    NotPermitted,
    OrbitCallError,
    RuntimeFailure,
    UnknownExecution,
    UnknownWorkflow,
)
from kiwi_worker.testing.orbit_runtime import RunningRuntime, running_runtime

from .certificates import Authority

HELD = '[[workflow]]\nname = "Held"\nstep = { task = "held" }\n'


class Blocking:
    """Makes the asynchronous client look like the other, each call on a loop of its own."""

    def __init__(self, server: Any = None, token: str | None = None, **settings: Any) -> None:
        AsyncClient(server, token, **settings)
        self._made = lambda: AsyncClient(server, token, **settings)

    def __enter__(self) -> Blocking:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def __getattr__(self, name: str) -> Callable[..., Any]:
        async def call(*args: Any, **options: Any) -> Any:
            async with self._made() as client:
                return await getattr(client, name)(*args, **options)

        return lambda *args, **options: asyncio.run(call(*args, **options))


@pytest.fixture(params=[Client, Blocking], ids=["sync", "async"])
def make(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture(scope="module")
def runtime() -> Iterator[RunningRuntime]:
    greet = (Path(__file__).parent / "greet.toml").read_text("utf-8")
    with running_runtime(greet + HELD, token="admin", worker_token="worker") as running:
        yield running


@pytest.fixture(autouse=True)
def no_settings_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ORBIT_SERVER", "ORBIT_TOKEN", "ORBIT_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)


def post(runtime: RunningRuntime, path: str, body: Any) -> Any:
    place = urlsplit(runtime.url)
    headers = {"content-type": "application/json", "authorization": "Bearer admin"}
    with contextlib.closing(
        http.client.HTTPConnection(place.hostname or "", place.port, timeout=30)
    ) as connection:
        connection.request("POST", path, json.dumps(body), headers)
        response = connection.getresponse()
        content = response.read()
        return json.loads(content) if content else None


def serve_one(runtime: RunningRuntime, output: Any, task: str = "greeting.compose") -> str:
    """Act as a worker for one task; its execution's id."""
    contracts = [{"task_name": task, "contract_version": "1.0.0"}]
    session = post(
        runtime, "/v1/workers/register", {"worker_id": "w", "runtime": "ruby", "contracts": contracts}
    )
    poll = {"worker_session_id": session["worker_session_id"], "wait_ms": 10_000}
    found = post(runtime, "/v1/workers/poll", poll)
    post(runtime, "/v1/tasks/complete", {"token": found["token"], "output": output})
    return str(found["execution_id"])


def test_start_and_wait(runtime: RunningRuntime, make: Any) -> None:
    with make(runtime.url, "admin") as client:
        execution_id = client.start("Greet", {"name": "Ada"})
        assert serve_one(runtime, {"message": "Hello, Ada"}) == execution_id
        execution = client.wait(execution_id, timeout=10)
    assert (execution.id, execution.workflow, execution.version) == (execution_id, "Greet", "1.0.0")
    assert (execution.status, execution.finished) == ("COMPLETED", True)
    assert (execution.output, execution.error) == ({"message": "Hello, Ada"}, None)


def test_a_wait_that_hangs_is_answered_by_the_outcome(runtime: RunningRuntime, make: Any) -> None:
    with make(runtime.url, "admin") as client:
        execution_id = client.start("Greet", {"name": "Ada"})
        server = threading.Thread(target=serve_one, args=(runtime, {"message": "hi"}), name="one-task")
        server.start()
        assert client.wait(execution_id).status == "COMPLETED"
        server.join()


def test_starting_the_same_id_twice_is_one_execution(runtime: RunningRuntime, make: Any) -> None:
    with make(runtime.url, "admin") as client:
        name = f"same-{make.__name__}"
        assert client.start("Held", execution_id=name) == client.start("Held", execution_id=name) == name


def test_a_failed_execution_tells_its_error_in_the_words_of_the_page(
    runtime: RunningRuntime, make: Any
) -> None:
    with make(runtime.url, "admin") as client:
        execution_id = client.start("Greet", {"name": "Ada"})
        serve_one(runtime, {"msg": 1})
        error = client.wait(execution_id).error
    assert str(error) == (
        "OUTPUT_CONTRACT_VIOLATION: worker output for `greeting.compose` does not match its contract "
        "at $.message: missing required field `message` of type String"
    )


def test_an_error_reads_code_and_message() -> None:
    error = ExecutionError("INVALID_NAME", "step `compose` failed: name is blank")
    assert str(error) == "INVALID_NAME: step `compose` failed: name is blank"


def test_cancel_and_a_wait_whose_time_is_over(runtime: RunningRuntime, make: Any) -> None:
    with make(runtime.url, "admin") as client:
        execution_id = client.start("Held")
        waiting = client.wait(execution_id, timeout=0.05)
        assert (waiting.status, waiting.finished) == ("RUNNING", False)
        assert client.fetch(execution_id).status == "RUNNING"
        cancelled = client.cancel(execution_id, reason="enough")
        assert cancelled.status == "CANCELLED"
        assert str(cancelled.error) == "CANCELLED: enough"


def test_workers(runtime: RunningRuntime, make: Any) -> None:
    with make(runtime.url, "admin") as client:
        client.start("Greet", {"name": "Ada"})
        serve_one(runtime, {"message": "hi"})
        [worker] = client.workers()
    assert (worker.worker_id, worker.runtime, worker.online) == ("w", "ruby", True)
    assert worker.raw["contracts"] == [{"task_name": "greeting.compose", "contract_version": "1.0.0"}]


def test_an_input_may_be_a_dataclass(runtime: RunningRuntime) -> None:
    @dataclasses.dataclass
    class Name:
        name: str

    with Client(runtime.url, "admin") as client:
        execution_id = client.start("Greet", Name("Ada"))
        assert client.cancel(execution_id).raw["input"] == {"name": "Ada"}
        with pytest.raises(UnencodableResult):
            client.start("Greet", object())


@pytest.mark.parametrize(
    ("token", "call", "kind", "code", "status"),
    [
        ("admin", lambda client: client.start("Nope"), UnknownWorkflow, "UNKNOWN_WORKFLOW", 404),
        ("admin", lambda client: client.wait("nope"), UnknownExecution, "UNKNOWN_EXECUTION", 404),
        ("admin", lambda client: client.cancel("a/b?"), UnknownExecution, "UNKNOWN_EXECUTION", 404),
        ("admin", lambda client: client.start("Greet", {}), InvalidRequest, "INVALID_REQUEST", 400),
        ("worker", lambda client: client.workers(), NotPermitted, "FORBIDDEN", 403),
        ("wrong", lambda client: client.workers(), NotPermitted, "UNAUTHENTICATED", 401),
        (None, lambda client: client.workers(), NotPermitted, "UNAUTHENTICATED", 401),
    ],
)
def test_refusals_are_typed(
    runtime: RunningRuntime, make: Any, token: Any, call: Any, kind: Any, code: str, status: int
) -> None:
    with make(runtime.url, token) as client, pytest.raises(kind) as caught:
        call(client)
    assert isinstance(caught.value, CallError)
    assert (caught.value.code, caught.value.http_status) == (code, status)
    assert "admin" not in str(caught.value)


def test_a_token_file_is_read_again_when_the_token_is_refused(
    runtime: RunningRuntime, tmp_path: Path
) -> None:
    file = tmp_path / "token"
    file.write_text("old")
    with Client(runtime.url, token_file=str(file)) as client:
        with pytest.raises(NotPermitted):
            client.workers()
        file.write_text("admin\n")
        client.workers()


@pytest.fixture
def dead() -> str:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"http://127.0.0.1:{listener.getsockname()[1]}"


def test_a_dead_server_is_left_for_the_next(runtime: RunningRuntime, make: Any, dead: str) -> None:
    with make([dead, runtime.url], "admin") as client:
        assert client.start("Held")
        assert client.start("Held")


def test_a_server_that_is_not_the_leader_is_left_for_the_next(
    runtime: RunningRuntime, make: Any, greet: Path
) -> None:
    with running_runtime(greet, token="admin") as follower:
        post(follower, "/v1/dev/leader", {"leader": False})
        with make(f"{follower.url},{runtime.url}", "admin") as client:
            assert client.start("Held")


def test_without_any_leader_the_call_fails_after_its_limit(make: Any, greet: Path) -> None:
    with running_runtime(greet, token="admin") as follower:
        post(follower, "/v1/dev/leader", {"leader": False})
        with make(follower.url, "admin", retry_limit=0) as client, pytest.raises(RuntimeFailure) as caught:
            client.workers()
    assert caught.value.code == "NOT_LEADER"


def test_no_server_at_all_is_not_sent(make: Any, dead: str) -> None:
    with make(dead, retry_limit=0) as client, pytest.raises(NotSent):
        client.workers()


def test_a_wait_survives_a_restart(greet: Path, tmp_path: Path) -> None:
    with (
        running_runtime(greet, token="admin", db=tmp_path / "o.db") as running,
        Client(running.url, "admin") as client,
    ):
        execution_id = client.start("Greet", {"name": "Ada"})
        found: list[Any] = []
        waiting = threading.Thread(target=lambda: found.append(client.wait(execution_id)), name="waiting")
        waiting.start()
        running.stop()
        running.start()
        serve_one(running, {"message": "hi"})
        waiting.join(30)
        assert [each.status for each in found] == ["COMPLETED"]


def test_tls_with_a_certificate(greet: Path, authority: Authority, make: Any) -> None:
    server, pair = authority.sign("client-server", addresses=["127.0.0.1"]), authority.sign("client-side")
    with running_runtime(
        greet,
        token="admin",
        tls_cert=server.certificate,
        tls_key=server.key,
        tls_client_ca=authority.file,
    ) as running:
        files = {
            "ca_file": str(authority.file),
            "client_cert": str(pair.certificate),
            "client_key": str(pair.key),
        }
        with make(running.url, "admin", **files) as client:
            assert client.workers() == []
        with (
            make(running.url, "admin", ca_file=files["ca_file"], retry_limit=0) as client,
            pytest.raises((NotSent, Ambiguous)),
        ):
            client.workers()


def test_an_answer_of_something_else_is_a_protocol_error(make: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\nconnection: close\r\n\r\n<html>")

        thread = threading.Thread(target=answer, name="something-else")
        thread.start()
        with make(f"http://127.0.0.1:{listener.getsockname()[1]}") as client, pytest.raises(ProtocolError):
            client.workers()
        thread.join()


@pytest.mark.parametrize("scheme", ["grpc", "grpcs"])
def test_grpc_is_refused_with_a_reason(make: Any, scheme: str) -> None:
    with pytest.raises(SettingsError, match="HTTP only"):
        make(f"{scheme}://127.0.0.1:7234")


def test_settings_come_from_the_environment(runtime: RunningRuntime, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORBIT_SERVER", runtime.url)
    monkeypatch.setenv("ORBIT_TOKEN", "admin")
    with Client() as client:
        assert client.start("Held")


def test_both_clients_have_the_same_methods() -> None:
    def calls(cls: type[Any]) -> dict[str, Any]:
        members = inspect.getmembers(cls, inspect.isfunction)
        return {name: list(inspect.signature(each).parameters) for name, each in members if name[0] != "_"}

    assert calls(Client) == calls(AsyncClient)
    assert module.__all__ == sorted(module.__all__)


def test_errors_have_one_base() -> None:
    kinds = [InvalidRequest, NotPermitted, RuntimeFailure, UnknownExecution, UnknownWorkflow]
    assert all(issubclass(kind, OrbitCallError) for kind in kinds)
