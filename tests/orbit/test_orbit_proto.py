"""Compiling a `worker.proto` at run time, and numbers in `google.protobuf.Value`."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import kiwi_worker.orbit.proto as package
from kiwi_worker.errors import SettingsError, UnencodableResult
from kiwi_worker.orbit.proto import ASSUMED, LARGEST_EXACT, fill_value, load_proto, read_value

ASSUMED_TEXT = (Path(package.__file__).parent / "worker.proto").read_text("utf-8")


def written(folder: Path, text: str, name: str = "worker.proto") -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")
    return path


def test_the_assumed_file_has_the_six_calls_under_the_page_s_name() -> None:
    paths = [rpc.path for rpc in load_proto(ASSUMED).rpcs()]
    names = ["RegisterWorker", "PollTask", "Heartbeat", "CompleteTask", "FailTask", "UnregisterWorker"]
    assert paths == [f"/orbit.worker.v1.WorkerService/{name}" for name in names]


def test_two_files_of_one_package_live_side_by_side(tmp_path: Path) -> None:
    shifted = re.sub(r"= (\d+);", lambda match: f"= {int(match[1]) + 100};", ASSUMED_TEXT)
    ours, theirs = load_proto(ASSUMED), load_proto(written(tmp_path, shifted))
    message = theirs.heartbeat.request(worker_session_id="s")
    assert theirs.heartbeat.request.FromString(message.SerializeToString()).worker_session_id == "s"
    assert ours.heartbeat.request.FromString(message.SerializeToString()).worker_session_id == ""


def test_messages_may_have_other_names_and_the_package_another(tmp_path: Path) -> None:
    text = ASSUMED_TEXT.replace("TaskContract", "Announced").replace("HeartbeatRequest", "Alive")
    proto = load_proto(written(tmp_path, text.replace("package orbit.worker.v1", "package other")))
    assert proto.heartbeat.path == "/other.WorkerService/Heartbeat"
    assert proto.contract.DESCRIPTOR.name == "Announced"


def test_a_file_in_its_package_folders_may_import_its_neighbours(tmp_path: Path) -> None:
    start = ASSUMED_TEXT.index("message TaskContract")
    end = ASSUMED_TEXT.index("message RegisterWorkerRequest")
    neighbour = f'syntax = "proto3";\npackage orbit.worker.v1;\n{ASSUMED_TEXT[start:end]}'
    wanted = 'import "google/protobuf/struct.proto";\nimport "orbit/worker/v1/contract.proto";'
    text = (ASSUMED_TEXT[:start] + ASSUMED_TEXT[end:]).replace(
        'import "google/protobuf/struct.proto";', wanted
    )
    written(tmp_path, neighbour, "orbit/worker/v1/contract.proto")
    proto = load_proto(written(tmp_path, text, "orbit/worker/v1/worker.proto"))
    assert proto.contract(task_name="t", contract_version="1").task_name == "t"


def test_nothing_is_written_beside_the_file(tmp_path: Path) -> None:
    load_proto(written(tmp_path, ASSUMED_TEXT))
    assert [path.name for path in tmp_path.iterdir()] == ["worker.proto"]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (("service WorkerService", "service Workers"), "one service WorkerService"),
        (("rpc FailTask(FailTaskRequest) returns (TaskResultAck);", ""), "no rpc FailTask"),
        (("  bool redelivery = 11;\n", ""), "ExecuteTaskRequest lacks redelivery"),
        (("repeated TaskContract contracts", "repeated string contracts"), "repeated message"),
        (('syntax = "proto3";', "syntax = ;"), "does not compile"),
    ],
)
def test_a_file_that_is_not_the_protocol_s_is_refused(
    tmp_path: Path, change: tuple[str, str], named: str
) -> None:
    assert change[0] in ASSUMED_TEXT
    with pytest.raises(SettingsError, match=named) as caught:
        load_proto(written(tmp_path, ASSUMED_TEXT.replace(*change)))
    assert caught.value.key == "proto"


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="no file"):
        load_proto(tmp_path / "nope.proto")


def test_without_the_extra_the_error_names_it() -> None:
    program = (
        "import sys; sys.modules['grpc_tools'] = None\n"
        "from kiwi_worker.errors import SettingsError\n"
        "from kiwi_worker.orbit.proto import load_proto\n"
        "try: load_proto('assumed')\n"
        "except SettingsError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert "kiwi-worker[orbit-grpc]" in done.stdout


def test_importing_the_package_loads_no_grpc() -> None:
    loaded = "[name for name in sys.modules if name.startswith(('grpc', 'google'))]"
    program = f"import sys, kiwi_worker.orbit.proto; print({loaded})"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]"


def value() -> Any:
    return load_proto(ASSUMED).complete.request().output


@pytest.mark.parametrize(
    "content",
    [
        None,
        True,
        False,
        0,
        -7,
        0.25,
        LARGEST_EXACT,
        -LARGEST_EXACT,
        "text",
        {},
        [],
        {"a": [1, {"b": None}], "": ""},
    ],
)
def test_values_come_back_as_they_went(content: Any) -> None:
    message = value()
    fill_value(message, content)
    read = read_value(message)
    assert read == content
    assert type(read) is type(content)


@pytest.mark.parametrize("whole", [3.0, -0.0, 1e15])
def test_whole_doubles_come_back_as_integers(whole: float) -> None:
    message = value()
    fill_value(message, whole)
    assert isinstance(read_value(message), int)


def test_whole_doubles_beyond_the_exact_range_stay_doubles() -> None:
    message = value()
    fill_value(message, 1e300)
    assert read_value(message) == 1e300


@pytest.mark.parametrize(
    ("content", "path"),
    [
        (LARGEST_EXACT + 1, r"\$: "),
        ({"a": [0, -(2**60)]}, r"\$\.a\[1\]: "),
        (10**400, r"\$: "),
        ({"a": object()}, r"\$\.a: object"),
    ],
)
def test_what_a_double_cannot_hold_is_refused_with_its_path(content: Any, path: str) -> None:
    with pytest.raises(UnencodableResult, match=path):
        fill_value(value(), content)


def test_a_runtime_may_round() -> None:
    message = value()
    fill_value(message, LARGEST_EXACT + 1, exact=False)
    assert read_value(message) == LARGEST_EXACT
