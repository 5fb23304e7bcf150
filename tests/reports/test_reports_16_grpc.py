"""Field reports on gRPC, against the dev runtime: idle links that are dropped, pings, forks."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from programs import PACKAGES

from kiwi_worker.orbit import Client, OrbitWorker
from kiwi_worker.testing import FaultProxy
from kiwi_worker.testing.orbit_runtime import RunningRuntime, running_runtime

pytest.importorskip("grpc")

WORKFLOW = """
[[workflow]]
name = "Greet"
version = "1.0.0"

[workflow.step]
name = "compose"
task = "greeting.compose"
contract_version = "1.0.0"
using = "python"
timeout = "30s"
retry = { attempts = 3, backoff = "fixed", initial_delay = "1s" }
input = { type = "object" }
output = { type = "object" }
"""
Greet = Callable[[], Any]


@pytest.fixture
def runtime() -> Iterator[RunningRuntime]:
    with running_runtime(WORKFLOW, grpc=True, session_timeout="3s") as running:
        yield running


@pytest.fixture
def greet(runtime: RunningRuntime) -> Iterator[Greet]:
    """Runs the workflow and gives its output."""
    with Client(server=runtime.url) as client:
        yield lambda: client.wait(client.start("Greet", {"name": "Ada"}), timeout=30).output


def hello(input: dict[str, Any]) -> dict[str, Any]:
    return {"message": f"hello {input['name']}"}


def worker_of(url: str, **settings: Any) -> OrbitWorker:
    known = {"proto": "assumed", "worker_id": "w", "poll_wait": 1, "grace_period": 3, "concurrency": 2}
    worker = OrbitWorker(server=url, **{**known, **settings})
    worker.task("greeting.compose", version="1.0.0")(hello)
    return worker


def test_report_78_a_link_that_was_dropped_while_idle_costs_no_task(
    runtime: RunningRuntime, greet: Greet
) -> None:
    assert runtime.grpc_url is not None
    with FaultProxy(runtime.grpc_url) as proxy, worker_of(proxy.url):
        assert greet() == {"message": "hello Ada"}
        for _ in range(3):
            proxy.drop_connections()
            assert greet() == {"message": "hello Ada"}


def test_report_79_no_ping_is_sent_that_a_server_could_find_too_many(
    runtime: RunningRuntime, greet: Greet, monkeypatch: pytest.MonkeyPatch
) -> None:
    import grpc

    given: list[dict[str, Any]] = []
    make = grpc.insecure_channel

    def seen(target: str, options: Any = None, **rest: Any) -> Any:
        given.append(dict(options or ()))
        return make(target, options, **rest)

    monkeypatch.setattr(grpc, "insecure_channel", seen)
    with worker_of(runtime.grpc_url or ""):
        for _ in range(3):
            assert greet() == {"message": "hello Ada"}
    assert given
    pings = ("keepalive", "http2.max_pings", "http2.min_time", "http2.bdp")
    assert not [name for options in given for name in options if any(word in name for word in pings)]


PROGRAM = """
import multiprocessing, sys
from kiwi_worker.orbit import OrbitWorker

worker = OrbitWorker(server=sys.argv[2], proto="assumed", worker_id="w", poll_wait=1, grace_period=3)

@worker.task("greeting.compose", version="1.0.0")
def compose(input: dict, ctx) -> dict:
    return {"message": f"hello {input['name']}"}

def serve(stop) -> None:
    with worker:
        stop.wait()

if __name__ == "__main__":
    assert "grpc" not in sys.modules, "no channel, and no library of it, before the child starts"
    context = multiprocessing.get_context(sys.argv[1])
    stop = context.Event()
    child = context.Process(target=serve, args=(stop,))
    child.start()
    sys.stdin.read()
    stop.set()
    child.join()
    sys.exit(child.exitcode)
"""


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_report_82_a_channel_is_made_only_in_the_process_that_uses_it(
    runtime: RunningRuntime, greet: Greet, tmp_path: Path, method: str
) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    with subprocess.Popen(
        [sys.executable, "program.py", method, runtime.grpc_url or ""],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": PACKAGES},
        stdin=subprocess.PIPE,
    ) as program:
        assert greet() == {"message": "hello Ada"}
        program.communicate(timeout=30)
    assert program.returncode == 0


def test_report_84_one_call_works_with_the_installed_pair_of_grpcio_and_protobuf(
    runtime: RunningRuntime, greet: Greet
) -> None:
    before = set(threading.enumerate())
    with worker_of(runtime.grpc_url or ""):
        assert greet() == {"message": "hello Ada"}
    assert not [one for one in threading.enumerate() if one not in before and one.name.startswith("w-")]
