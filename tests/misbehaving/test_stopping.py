"""After the first stop signal the process is gone within its grace period and two seconds, come what may."""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from programs import children_of, eventually, is_alive, running

from kiwi_worker.testing import MisbehavingServer, Stall, Status

SOON = 10.0
"""Seconds that even a busy machine keeps to; a grace period of a multiple is not waited for."""
BODY = """
libc = ctypes.PyDLL(None)

@worker.method
def hold_the_lock(started: str) -> None:
    open(started, "w").close()
    libc.sleep(3600)

@worker.method
def match_for_ever(started: str) -> None:
    open(started, "w").close()
    re.match("(a+)+$", "a" * 60 + "b")

@worker.method
def sleep_for_ever(started: str) -> None:
    open(started, "w").close()
    time.sleep(3600)

@worker.method
def leave_a_pool_behind(started: str) -> None:
    from concurrent.futures import ThreadPoolExecutor
    ThreadPoolExecutor().submit(time.sleep, 3600)
    open(started, "w").close()
    time.sleep(3600)

@worker.method
def echo(text: str) -> str:
    return text
"""


@pytest.fixture
def server() -> Iterator[Any]:
    with MisbehavingServer.kiwi() as running_server:
        yield running_server


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("method", ["hold_the_lock", "match_for_ever"])
def test_a_handler_that_holds_the_interpreter_lock_is_ended_with_its_process(
    server: Any, tmp_path: Path, method: str, processes: int
) -> None:
    started = tmp_path / "started"
    with running(BODY, server, tmp_path, grace_period=1, processes=processes) as program:
        server.wait_for_registration(processes)
        server.enqueue(method, {"started": str(started)})
        eventually(started.exists)
        program.signal()
        status, seconds = program.seconds_to_end()
    assert status != 0
    assert seconds < 3.0


def test_a_handler_that_sleeps_for_ever_is_answered_and_the_status_says_so(
    server: Any, tmp_path: Path
) -> None:
    started = tmp_path / "started"
    with running(BODY, server, tmp_path, grace_period=1) as program:
        request = server.enqueue("sleep_for_ever", {"started": str(started)})
        eventually(started.exists)
        program.signal()
        status, seconds = program.seconds_to_end()
    assert (status, seconds < 3.0) == (1, True)
    assert server.assert_answered_once(request)["status"] == "failed"


def test_report_57_threads_that_handlers_left_do_not_hold_up_the_end(server: Any, tmp_path: Path) -> None:
    started = tmp_path / "started"
    with running(BODY, server, tmp_path, grace_period=1) as program:
        request = server.enqueue("leave_a_pool_behind", {"started": str(started)})
        eventually(started.exists)
        program.signal()
        status, seconds = program.seconds_to_end()
    assert (status, seconds < 3.0) == (1, True)
    assert server.assert_answered_once(request)["status"] == "failed"


def test_a_stop_while_everything_fails_is_in_time(server: Any, tmp_path: Path) -> None:
    started = tmp_path / "started"
    body = BODY + "\n@worker.on_stop\ndef slow() -> None:\n    time.sleep(3600)\n"
    with running(body, server, tmp_path, grace_period=1, heartbeat_delay=0.1) as program:
        server.enqueue("sleep_for_ever", {"started": str(started)})
        eventually(started.exists)
        for name in ("respond", "heartbeat", "shutdown", "feedback", "drain"):
            server.fault(name, Stall(60), times="always")
        program.signal()
        status, seconds = program.seconds_to_end()
    assert (status, seconds < 3.0) == (1, True)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
@pytest.mark.parametrize("processes", [1, 2])
def test_a_second_signal_ends_it_at_once(server: Any, tmp_path: Path, number: int, processes: int) -> None:
    started = tmp_path / "started"
    with running(BODY, server, tmp_path, grace_period=60, processes=processes) as program:
        server.enqueue("sleep_for_ever", {"started": str(started)})
        eventually(started.exists)
        children = children_of(program.pid)
        program.signal(number)
        eventually(lambda: server.shutdowns)
        program.signal(number)
        status, seconds = program.seconds_to_end()
    assert (status, seconds < SOON) == (128 + number, True)
    eventually(lambda: not any(map(is_alive, children)))


def test_report_62_one_signal_of_each_kind_drains(server: Any, tmp_path: Path) -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        with running(BODY, server, tmp_path, grace_period=10, worker_id=f"w{int(number)}") as program:
            server.assert_answered_once(server.enqueue("echo", {"text": "x"}), "success")
            program.signal(number)
            assert program.end() == 0


@pytest.mark.parametrize("processes", [1, 2])
def test_report_55_a_start_that_waits_for_the_middleware_is_stopped(tmp_path: Path, processes: int) -> None:
    with socket.socket() as unheard:
        unheard.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unheard.getsockname()[1]}"
        body = BODY + "\nimport atexit; atexit.register(print)\nopen(f'up-{os.getpid()}', 'w').close()\n"
        with running(body, url, tmp_path, grace_period=30, processes=processes) as program:
            eventually(lambda: len(list(tmp_path.glob("up-*"))) >= processes)
            eventually(lambda: watchdogs_of(program.pid))
            program.signal()
            status, seconds = program.seconds_to_end()
    assert (status, seconds < SOON) == (0, True)


@pytest.mark.parametrize("run_mode", ["eager", "lazy"])
def test_report_55_an_idle_worker_stops_soon(server: Any, tmp_path: Path, run_mode: str) -> None:
    with running(BODY, server, tmp_path, run_mode=run_mode, grace_period=30) as program:
        server.wait_for_registration()
        server.wait_for_calls("drain", ended=run_mode == "lazy")
        program.signal()
        status, seconds = program.seconds_to_end()
    assert (status, seconds < SOON) == (0, True)


def test_report_55_a_worker_that_backs_off_stops_soon(server: Any, tmp_path: Path) -> None:
    with running(BODY, server, tmp_path, grace_period=30) as program:
        server.wait_for_registration()
        server.fault("drain", Status(status=503), times="always")
        server.enqueue("echo", {"text": "x"})
        server.wait_for_calls("drain", 5)
        program.signal()
        status, seconds = program.seconds_to_end()
    assert (status, seconds < SOON) == (0, True)


def test_a_stop_signal_that_was_blocked_by_whoever_started_the_worker_is_heard(
    server: Any, tmp_path: Path
) -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    try:
        with running(BODY, server, tmp_path, grace_period=10) as program:
            server.wait_for_registration()
            program.signal()
            assert program.end() == 0
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def test_the_watchdog_is_small_and_ends_with_its_worker(server: Any, tmp_path: Path) -> None:
    with running(BODY, server, tmp_path) as program:
        server.wait_for_registration()
        (watchdog,) = watchdogs_of(program.pid)
        assert resident_mib(watchdog) < 16
        program.signal(signal.SIGKILL)
        program.end()
        eventually(lambda: not is_alive(watchdog))


def watchdogs_of(pid: int) -> list[int]:
    """The watchdog processes of a worker, or of all workers of a supervisor."""
    every = [*children_of(pid), *(one for child in children_of(pid) for one in children_of(child))]
    return [one for one in every if "watchdog_program" in Path(f"/proc/{one}/cmdline").read_text()]


def resident_mib(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1024
