"""The gRPC binding of the worker: field numbers, numbers, what is not installed, calls that hang."""

from __future__ import annotations

import logging
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from kiwi_worker.errors import NotSent, RegistrationError
from kiwi_worker.orbit import Client, OrbitWorker
from kiwi_worker.testing import FaultProxy
from kiwi_worker.testing.orbit_runtime import RunningRuntime, running_runtime

pytest.importorskip("grpc")

LIMIT_SECONDS = 15
PROTO = Path(__file__).parents[2] / "kiwi_worker" / "orbit" / "proto" / "worker.proto"
WORKFLOW = """
[[workflow]]
name = "Echo"
version = "1.0.0"
[workflow.step]
name = "echo"
task = "echo"
contract_version = "1.0.0"
"""


@pytest.fixture(scope="module")
def runtime() -> Iterator[RunningRuntime]:
    with running_runtime(WORKFLOW, grpc=True, session_timeout="3s") as running:
        yield running


def worker_of(runtime: RunningRuntime, **settings: Any) -> OrbitWorker:
    given = {"worker_id": "w", "poll_wait": 1, "grace_period": 2, "concurrency": 2, "proto": "assumed"}
    return OrbitWorker(**{**given, "server": runtime.grpc_url, **settings})


def echoed(runtime: RunningRuntime, value: Any) -> Any:
    with Client(server=runtime.url) as client:
        return client.wait(client.start("Echo", value), timeout=LIMIT_SECONDS)


def proto_with(path: Path, message: str, field: str, number: int) -> str:
    """Our file, with another number for one field."""
    text = PROTO.read_text()
    start = text.index(f"message {message} ")
    end = text.index("}", start)
    changed, count = re.subn(rf"(\b{field} = )\d+;", rf"\g<1>{number};", text[start:end])
    assert count == 1
    path.write_text(text[:start] + changed + text[end:])
    return str(path)


def test_whole_numbers_come_and_go_as_integers(runtime: RunningRuntime) -> None:
    seen: list[Any] = []
    worker = worker_of(runtime)

    @worker.task("echo", version="1.0.0")
    def echo(input: dict[str, Any]) -> dict[str, Any]:
        seen.append(input)
        return input

    value = {"n": 3, "most": 2**53, "least": -(2**53), "x": 1.5, "deep": [{"n": 0}], "none": None, "t": True}
    with worker:
        assert echoed(runtime, value).output == value
    assert [type(seen[0][name]) for name in ("n", "most", "x", "t")] == [int, int, float, bool]


@pytest.mark.parametrize("number", [2**53 + 1, -(2**60), 10**400])
def test_an_integer_that_a_double_cannot_hold_is_refused_with_its_path(
    runtime: RunningRuntime, number: int
) -> None:
    worker = worker_of(runtime)

    @worker.task("echo", version="1.0.0")
    def echo(input: dict[str, Any]) -> dict[str, Any]:
        return {"rows": [{"id": 1}, {"id": number}]}

    with worker:
        error = echoed(runtime, {}).error
    assert error is not None
    assert error.code == "INVALID_RESULT"
    assert "$.output.rows[1].id" in error.message


def test_a_registration_without_a_session_id_stops_the_start_and_names_the_setting(
    runtime: RunningRuntime, tmp_path: Path
) -> None:
    proto = proto_with(tmp_path / "worker.proto", "RegisterWorkerResponse", "worker_session_id", 77)
    worker = worker_of(runtime, proto=proto)
    worker.task("echo", version="1.0.0")(lambda _: {})
    with pytest.raises(RegistrationError, match="proto: the registration brought no session id") as caught:
        worker.start()
    assert caught.value.exit_status == 78


def test_a_task_without_a_token_stops_the_worker_and_names_the_setting(
    runtime: RunningRuntime, tmp_path: Path
) -> None:
    proto = proto_with(tmp_path / "worker.proto", "ExecuteTaskRequest", "token", 77)
    worker = worker_of(runtime, proto=proto, concurrency=1)
    worker.task("echo", version="1.0.0")(lambda _: {})
    failed = threading.Event()
    worker.notify_failures(failed.set)
    with Client(server=runtime.url) as client, worker:
        execution = client.start("Echo", {})
        assert failed.wait(LIMIT_SECONDS)
        assert isinstance(worker.failure, RegistrationError)
        assert "proto: a task came without a token" in str(worker.failure)
    with worker_after(runtime), Client(server=runtime.url) as client:
        # The worker has unregistered, so the task it could not read is another's now.
        assert client.wait(execution, timeout=LIMIT_SECONDS).status == "COMPLETED"


def worker_after(runtime: RunningRuntime) -> OrbitWorker:
    worker = worker_of(runtime)
    worker.task("echo", version="1.0.0")(lambda _: {})
    return worker


def test_fields_that_the_proto_lacks_are_ignored_with_one_warning(
    runtime: RunningRuntime, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    proto = proto_with(tmp_path / "worker.proto", "ExecuteTaskRequest", "workflow_version", 77)
    worker = worker_of(runtime, proto=proto)
    worker.task("echo", version="1.0.0")(lambda value: value)
    with worker:
        for number in range(3):
            assert echoed(runtime, {"n": number}).output == {"n": number}
    assert caplog.text.count("fields that the setting proto does not know") == 1


def test_an_answer_that_cannot_be_read_at_all_stops_the_worker_and_names_the_setting(
    runtime: RunningRuntime, tmp_path: Path
) -> None:
    text = PROTO.read_text()
    number = re.search(r"google.protobuf.Value input = (\d+);", text)
    assert number
    path = tmp_path / "worker.proto"
    proto = proto_with(path, "ExecuteTaskRequest", "input", 77)
    swapped = path.read_text().replace("string execution_id = 2;", f"string execution_id = {number[1]};")
    path.write_text(swapped.replace("Value input = 77;", "Value input = 2;"))
    worker = worker_of(runtime, proto=proto, concurrency=1)
    worker.task("echo", version="1.0.0")(lambda value: value)
    failed = threading.Event()
    worker.notify_failures(failed.set)
    with Client(server=runtime.url) as client, worker:
        # No message begins like this.
        client.start("Echo", {}, execution_id="zzz")
        assert failed.wait(LIMIT_SECONDS)
        assert "proto: the answer to" in str(worker.failure)
    with worker_after(runtime), Client(server=runtime.url) as client:
        assert client.wait("zzz", timeout=LIMIT_SECONDS).status == "COMPLETED"


def test_a_call_that_hung_gets_a_new_channel_and_the_worker_goes_on(runtime: RunningRuntime) -> None:
    with ExitStack() as stack:
        proxy = stack.enter_context(FaultProxy(str(runtime.grpc_url).replace("grpc:", "http:")))
        worker = worker_of(runtime, server=proxy.url.replace("http:", "grpc:"))
        worker.task("echo", version="1.0.0")(lambda value: value)
        stack.enter_context(worker)
        assert echoed(runtime, {"n": 1}).output == {"n": 1}
        # Only connections of now: one made anew goes through.
        proxy.half_open()
        assert echoed(runtime, {"n": 2}).output == {"n": 2}


def test_nothing_of_grpc_is_loaded_over_http_and_the_extra_is_named_without_it() -> None:
    program = """
import sys
from kiwi_worker.orbit import OrbitWorker, TaskError
from kiwi_worker.orbit import assembly
assert not {"grpc", "google.protobuf", "grpc_tools"} & set(sys.modules), "loaded too early"
sys.modules["grpc"] = None
worker = OrbitWorker(server="grpc://127.0.0.1:1", proto="assumed")
worker.task("echo", version="1.0.0")(lambda value: value)
try:
    worker.start()
except Exception as error:
    print(type(error).__name__, error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30)
    assert "SettingsError" in done.stdout, done.stderr
    assert "kiwi-worker[orbit-grpc]" in done.stdout


def test_a_channel_that_is_closed_while_a_call_begins_counts_as_not_sent(runtime: RunningRuntime) -> None:
    from kiwi_worker.orbit.channels import Channels
    from kiwi_worker.orbit.grpc import GrpcWire
    from kiwi_worker.orbit.servers import Credentials, Servers

    worker = worker_of(runtime)
    channels = Channels(worker.settings)
    wire = GrpcWire(channels, Servers(1, Credentials(None)))
    channels.channel(0).close()
    with pytest.raises(NotSent):
        wire.heartbeat("s", 1)
    channels.close()


def test_an_outage_over_grpc_ends_with_every_result_delivered_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    release, started = threading.Event(), []
    with running_runtime(WORKFLOW, grpc=True, db=tmp_path / "db", session_timeout="3s") as own:
        worker = worker_of(own, concurrency=5)

        @worker.task("echo", version="1.0.0")
        def echo(input: dict[str, Any]) -> dict[str, Any]:
            started.append(input)
            release.wait(LIMIT_SECONDS)
            return input

        with worker, Client(server=own.url) as client:
            executions = [client.start("Echo", {"n": number}) for number in range(5)]
            while len(started) < 5:
                release.wait(0.01)
            own.kill()
            release.set()
            own.start()
            ended = [client.wait(one, timeout=LIMIT_SECONDS) for one in executions]
    assert [one.output for one in ended] == [{"n": number} for number in range(5)]
    assert len(started) == 5
    assert "not accepted" not in caplog.text
