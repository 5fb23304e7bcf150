"""`executor="process"`: a handler that ruins its process costs its own message, and nothing else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from process_handlers import registry

from kiwi_worker import Worker
from kiwi_worker.testing import MisbehavingServer

LIMIT_SECONDS = 30
Call = Callable[..., dict[str, Any]]


@pytest.fixture
def server() -> Iterator[Any]:
    with MisbehavingServer.kiwi() as running:
        yield running


def worker_of(server: Any, **settings: Any) -> Worker:
    given = {"wait": 1, "grace_period": 2, "concurrency": 2, "process_pool_size": 2}
    worker = Worker(
        middleware_url=server.url,
        service_id="test-service",
        auth_secret="test-secret",
        run_mode="eager",
        **{**given, **settings},
    )
    worker.include(registry)
    return worker


@pytest.fixture
def call(server: Any) -> Iterator[Call]:
    def one(method: str, params: object = None) -> dict[str, Any]:
        return dict(server.wait_for_response(server.enqueue(method, params), LIMIT_SECONDS))

    with worker_of(server):
        yield one


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def eventually(condition: Callable[[], object]) -> None:
    until = time.monotonic() + LIMIT_SECONDS
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.01)


def test_a_call_runs_in_a_process_that_is_kept_for_the_next(call: Call) -> None:
    first, second = call("pid")["result"], call("pid")["result"]
    assert first == second != os.getpid()


def test_parameters_are_checked_and_feedback_comes_through(call: Call, server: Any) -> None:
    assert call("add", {"a": 1})["result"] == 2
    server.wait_until(lambda: server.feedbacks)
    assert server.feedbacks[0]["fc"] == '{"adding":[1,1]}'
    assert "`a` expected `int`, got `str`" in call("add", {"a": "1"})["error_text"]


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("value", "ValueError: no"),
        ("exit", "SystemExit: 3"),
        ("interrupt", "KeyboardInterrupt"),
        ("generator", "GeneratorExit"),
        ("chosen", "as chosen"),
    ],
)
def test_what_a_handler_raises_fails_its_call_and_keeps_its_process(call: Call, kind: str, text: str) -> None:
    answer = call("raises", {"kind": kind})
    assert (answer["status"], answer["error_text"]) == ("failed", text)


def test_endless_recursion_and_unencodable_results(call: Call) -> None:
    assert call("recurse")["error_text"].startswith("RecursionError")
    assert call("unencodable")["status"] == "error"


@pytest.mark.parametrize(
    ("how", "text"), [("exit", "status 9"), ("kill", "SIGKILL"), ("segfault", "SIGSEGV")]
)
def test_report_32_a_process_that_dies_fails_its_own_message_and_the_next_succeeds(
    call: Call, how: str, text: str
) -> None:
    answer = call("die", {"how": how})
    assert answer["status"] == "failed"
    assert text in answer["error_text"]
    assert call("add", {"a": 1})["result"] == 2
    assert call("die", {"how": how})["status"] == "failed"


@pytest.mark.parametrize("method", ["hang", "hold_the_interpreter"])
def test_a_time_limit_is_hard(call: Call, method: str) -> None:
    answer = call(method)
    assert answer["status"] == "failed"
    assert "time limit of 0.5 s" in answer["error_text"]
    assert call("add", {"a": 1})["result"] == 2


def test_handlers_that_fork_or_close_their_output(call: Call) -> None:
    assert call("fork")["result"] == 1
    assert call("close_output")["result"] == 1
    assert call("add", {"a": 1})["result"] == 2


def test_report_64_subprocesses_of_handlers_have_no_blocked_signals(call: Call) -> None:
    assert call("signal_mask_of_a_subprocess")["result"] == "[]"


def test_a_process_is_replaced_after_so_many_calls_or_so_much_memory(server: Any) -> None:
    with worker_of(server, process_recycle_calls=2, process_recycle_memory=200):

        def call(method: str, params: object = None) -> Any:
            return server.wait_for_response(server.enqueue(method, params), LIMIT_SECONDS)["result"]

        pids = [call("pid") for _ in range(3)]
        assert pids[0] == pids[1] != pids[2]
        assert call("grow", {"mib": 300}) != call("grow", {"mib": 1})


def test_what_runs_when_the_grace_period_ends_is_killed_and_answered(server: Any, tmp_path: Path) -> None:
    started = tmp_path / "started"
    worker = worker_of(server, grace_period=0)
    worker.start()
    request = server.enqueue("wait_for_ever", {"started": str(started)})
    eventually(lambda: started.exists() and started.read_text())
    worker.stop()
    assert server.wait_for_response(request, LIMIT_SECONDS)["status"] == "failed"
    eventually(lambda: not is_alive(int(started.read_text())))


def test_children_are_gone_when_the_worker_is_killed(server: Any, tmp_path: Path) -> None:
    started, program = tmp_path / "started", tmp_path / "program.py"
    program.write_text(
        "import sys\n"
        f"sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "from kiwi_worker import Worker\n"
        "from process_handlers import registry\n"
        f"worker = Worker(middleware_url={server.url!r}, service_id='test-service',\n"
        "                auth_secret='test-secret', run_mode='eager', wait=1)\n"
        "worker.include(registry)\n"
        "if __name__ == '__main__':\n"
        "    worker.run()\n"
    )
    process = subprocess.Popen([sys.executable, str(program)])
    try:
        server.enqueue("wait_for_ever", {"started": str(started)})
        eventually(lambda: started.exists() and started.read_text())
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    eventually(lambda: not is_alive(int(started.read_text())))


def test_no_thread_and_no_process_is_left_after_a_stop(server: Any) -> None:
    before = set(threading.enumerate())
    with worker_of(server):
        pid = server.wait_for_response(server.enqueue("pid"), LIMIT_SECONDS)["result"]
    eventually(lambda: not is_alive(pid))
    eventually(lambda: set(threading.enumerate()) <= before)
