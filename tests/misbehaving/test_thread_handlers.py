"""What handlers do to the worker they share a process with: each has its outcome, and the worker lives on."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from programs import LIMIT_SECONDS, eventually, is_alive, running

from kiwi_worker import Registry, Worker
from kiwi_worker.testing import MisbehavingServer

Call = Callable[..., dict[str, Any]]
registry = Registry()


class OwnEnding(BaseException):
    pass


@registry.method
def raises(kind: str) -> None:
    raise {
        "exit": SystemExit(3),
        "interrupt": KeyboardInterrupt(),
        "generator": GeneratorExit(),
        "own": OwnEnding("of its own"),
        "memory": MemoryError(),
    }[kind]


@registry.method
async def raises_async(kind: str) -> None:
    raises(kind)


@registry.method
def recurse() -> None:
    recurse()


@registry.method
def large(size: int) -> str:
    return "x" * size


@registry.method
async def large_async(size: int) -> str:
    return "x" * size


@registry.method
def thread_name() -> str:
    return threading.current_thread().name


@registry.method
def change_signal_handlers() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


@registry.method
def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


@pytest.fixture
def server() -> Iterator[Any]:
    with MisbehavingServer.kiwi() as running_server:
        yield running_server


@pytest.fixture
def call(server: Any) -> Iterator[Call]:
    worker = Worker(
        middleware_url=server.url,
        service_id="test-service",
        auth_secret="test-secret",
        run_mode="eager",
        wait=1,
        concurrency=1,
        max_result_bytes=10_000,
    )
    worker.include(registry)

    def one(method: str, **params: object) -> dict[str, Any]:
        request = server.enqueue(method, params)
        server.wait_for_response(request, LIMIT_SECONDS)
        return dict(server.assert_answered_once(request))

    with worker:
        yield one


@pytest.mark.parametrize("method", ["raises", "raises_async"])
@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("exit", "SystemExit: 3"),
        ("interrupt", "KeyboardInterrupt"),
        ("generator", "GeneratorExit"),
        ("own", "OwnEnding: of its own"),
        ("memory", "MemoryError"),
    ],
)
def test_report_28_whatever_a_handler_raises_is_answered_and_frees_its_slot(
    call: Call, method: str, kind: str, text: str
) -> None:
    answer = call(method, kind=kind)
    assert (answer["status"], answer["error_text"]) == ("failed", text)
    assert call("thread_name")["status"] == "success"


def test_endless_recursion_is_answered_and_frees_its_slot(call: Call) -> None:
    answer = call("recurse")
    assert answer["status"] == "failed"
    assert answer["error_text"].startswith("RecursionError")
    assert call("thread_name")["status"] == "success"


@pytest.mark.parametrize("method", ["large", "large_async"])
def test_a_huge_result_is_an_error_that_names_the_limit(call: Call, method: str) -> None:
    assert call(method, size=9_000)["status"] == "success"
    answer = call(method, size=10_000)
    assert answer["status"] == "error"
    assert "larger than the limit of 10000 bytes" in answer["error_text"]


def test_a_result_nested_too_deep_is_an_error(call: Call) -> None:
    assert call("nested", depth=100_000)["status"] == "error"


def test_signal_handlers_are_out_of_reach_of_a_handler(call: Call) -> None:
    before = signal.getsignal(signal.SIGTERM)
    answer = call("change_signal_handlers")
    assert answer["status"] == "failed"
    assert answer["error_text"].startswith("ValueError: signal only works in main thread")
    assert signal.getsignal(signal.SIGTERM) == before


BODY = """
@worker.method
def ruin(what: str) -> int:
    if what == "stdout":
        sys.stdout.close()
    elif what == "descriptors":
        os.close(0); os.close(1)
    elif what == "exit":
        sys.exit(5)
    elif what == "mask":
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGINT])
    return os.getpid()

@worker.method
def fork_and_return() -> list[int]:
    child = os.fork()
    if child == 0:
        return [0]
    return [child, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])]

@worker.method
def fork_and_raise(kind: str) -> list[int]:
    child = os.fork()
    if child == 0:
        raise {"exit": SystemExit(7), "text": SystemExit("bye"), "value": ValueError("in the copy")}[kind]
    return [child, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])]

@worker.method
async def fork_on_the_loop() -> list[int]:
    return fork_and_return()

@worker.method
def use_multiprocessing() -> int:
    import multiprocessing
    pool = multiprocessing.get_context("fork").Pool(2)
    total = sum(pool.map(abs, [-1, -2, 3]))
    pool.terminate()
    pool.join()
    return total

@worker.method
def mask_of_a_subprocess() -> str:
    read = "import signal; print(sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])))"
    return subprocess.run([sys.executable, "-c", read], capture_output=True, text=True).stdout.strip()
"""


@pytest.mark.parametrize("what", ["stdout", "descriptors", "exit", "mask"])
def test_report_28_a_real_sigterm_still_stops_the_worker_in_order(
    server: Any, tmp_path: Path, what: str
) -> None:
    with running(BODY, server, tmp_path, concurrency=1) as program:
        answer = server.assert_answered_once(server.enqueue("ruin", {"what": what}), timeout=LIMIT_SECONDS)
        assert answer["status"] == ("failed" if what == "exit" else "success")
        assert server.assert_answered_once(server.enqueue("ruin", {"what": "nothing"}), "success")
        program.signal()
        assert program.end() == 0
    assert server.shutdowns == ["w"]


def test_a_copy_that_a_handler_made_by_forking_never_speaks_for_the_worker(
    server: Any, tmp_path: Path
) -> None:
    with running(BODY, server, tmp_path, concurrency=2) as program:
        expected = {
            ("fork_and_return", ""): 0,
            ("fork_on_the_loop", ""): 0,
            ("fork_and_raise", "exit"): 7,
            ("fork_and_raise", "text"): 1,
            ("fork_and_raise", "value"): 1,
        }
        for (method, kind), status in expected.items():
            request = server.enqueue(method, {"kind": kind} if kind else None)
            child, ended = server.wait_for_response(request, LIMIT_SECONDS)["result"]
            assert ended == status, (method, kind)
            eventually(lambda child=child: not is_alive(child))
            server.assert_answered_once(request, "success")
        program.signal()
        assert program.end() == 0
        assert "ValueError: in the copy" in program.errors
    server.assert_protocol_kept()


def test_signals_to_copies_of_the_worker_do_not_stop_it(server: Any, tmp_path: Path) -> None:
    with running(BODY, server, tmp_path, grace_period=0) as program:
        answer = server.wait_for_response(server.enqueue("use_multiprocessing"), LIMIT_SECONDS)
        assert answer["result"] == 6
        # As long as a watchdog that took the copies' SIGTERM for the worker's would have left it.
        until = time.monotonic() + 2
        while time.monotonic() < until:
            server.assert_answered_once(server.enqueue("ruin", {"what": "nothing"}), "success")
        program.signal()
        assert program.end() == 0


def test_report_64_a_subprocess_of_a_handler_has_an_empty_signal_mask(server: Any, tmp_path: Path) -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGINT])
    try:
        with running(BODY, server, tmp_path) as program:
            answer = server.wait_for_response(server.enqueue("mask_of_a_subprocess"), LIMIT_SECONDS)
            assert answer["result"] == "[]"
            program.signal()
            assert program.end() == 0
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
