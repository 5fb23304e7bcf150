"""Field reports on the shutdown: waits that no signal ends, notices that hold it up, work that is lost."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from programs import HEAD, PACKAGES, eventually, running
from worker_tools import worker_settings

from kiwi_worker import Worker
from kiwi_worker.testing import DropBefore, Fault, FaultProxy, HalfOpen, KiwiServer, Status

NewWorker = Callable[..., Worker]

HELLO = """
@worker.method
def hello() -> str:
    return "hello"

@worker.method
def hang(started: str) -> None:
    open(started, "w").close()
    time.sleep(3600)

@worker.method
def nap(started: str) -> str:
    open(started, "w").close()
    time.sleep(0.5)
    return "slept"
"""


@pytest.mark.parametrize("name", ["token", "register", "drain"])
def test_report_55_a_signal_ends_whatever_the_worker_waits_in(
    server: KiwiServer, tmp_path: Path, name: str
) -> None:
    server.fault(name, HalfOpen(), times="always")
    with running(HELLO, server, tmp_path, run_mode="lazy", grace_period=30) as program:
        server.wait_for_calls(name, ended=False)
        program.signal()
        status, seconds = program.seconds_to_end()
    assert (status, seconds < 10) == (0, True)


def test_report_55_nothing_is_taken_after_the_signal(server: KiwiServer, tmp_path: Path) -> None:
    started = tmp_path / "started"
    with running(HELLO, server, tmp_path, run_mode="lazy", grace_period=10) as program:
        running_call = server.enqueue("nap", {"started": str(started)})
        eventually(started.exists)
        program.signal()
        server.wait_for_calls("shutdown")
        late = server.enqueue("hello")
        assert program.end() == 0
    server.assert_answered_once(running_call, "success")
    assert [one["request_id"] for one in server.responses] == [running_call]
    assert server.queue_size() == 1, late


@pytest.mark.parametrize("fault", [HalfOpen(), Status(500), DropBefore(), None], ids=repr)
def test_report_56_a_notice_that_cannot_be_given_holds_nothing_up(
    server: KiwiServer, tmp_path: Path, fault: Fault | None
) -> None:
    started = tmp_path / "started"
    with running(HELLO, server, tmp_path, grace_period=3, heartbeat_delay=0.2) as program:
        request = server.enqueue("nap", {"started": str(started)})
        eventually(started.exists)
        if fault is None:
            server.stop()
        else:
            server.fault("shutdown", fault, times="always")
        program.signal()
        status, seconds = program.seconds_to_end()
    assert seconds < 3 + 2
    assert status == (1 if fault is None else 0)
    if fault is not None:
        server.assert_answered_once(request, "success")


def test_report_56_a_black_hole_holds_nothing_up(server: KiwiServer, tmp_path: Path) -> None:
    with FaultProxy(server.url) as proxy, running(HELLO, proxy.url, tmp_path, grace_period=1) as program:
        server.assert_answered_once(server.enqueue("hello"), "success")
        proxy.cut("silent")
        program.signal()
        _, seconds = program.seconds_to_end()
    assert seconds < 1 + 2


def test_report_57_a_handler_that_hangs_ends_with_the_grace_period(
    server: KiwiServer, tmp_path: Path
) -> None:
    started = tmp_path / "started"
    with running(HELLO, server, tmp_path, grace_period=0.5) as program:
        request = server.enqueue("hang", {"started": str(started)})
        eventually(started.exists)
        program.signal()
        status, seconds = program.seconds_to_end()
    assert (status, seconds < 0.5 + 2) == (1, True)
    server.assert_answered_once(request, "failed")


def test_report_57_a_main_program_that_goes_on_elsewhere_leaves_its_worker_working(
    server: KiwiServer, tmp_path: Path
) -> None:
    foot = """
def rest() -> None:
    worker.start()
    sys.stdin.read()
    worker.stop()

threading.Thread(target=rest).start()
"""
    (tmp_path / "program.py").write_text(HEAD + HELLO + foot)
    environment = {f"KIWI_{key.upper()}": str(value) for key, value in worker_settings(server).items()}
    with subprocess.Popen(
        [sys.executable, "program.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": PACKAGES, **environment},
        stdin=subprocess.PIPE,
    ) as program:
        for _ in range(3):
            server.assert_answered_once(server.enqueue("hello"), "success")
        program.communicate(timeout=20)
    assert program.returncode == 0
    assert server.shutdowns == ["worker-1"]


def test_report_58_no_handler_is_installed_by_start_and_none_is_left_by_run(
    server: KiwiServer, new_worker: NewWorker
) -> None:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    worker = new_worker(server, heartbeat_delay=0.05)
    worker.method("hello")(lambda: "hello")
    failed: list[BaseException] = []

    def run() -> None:
        try:
            worker.run()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    server.assert_answered_once(server.enqueue("hello"), "success")
    assert {number: signal.getsignal(number) for number in before} == before
    server.forget_workers()
    thread.join(20)
    assert not thread.is_alive()
    assert [getattr(error, "code", error) for error in failed] == [75]


def test_report_58_earlier_handlers_are_called_and_restored(server: KiwiServer, tmp_path: Path) -> None:
    body = HELLO + "\nsignal.signal(signal.SIGTERM, lambda *_: open('heard', 'w').close())\n"
    foot = """
earlier = signal.getsignal(signal.SIGTERM)
worker.run()
assert signal.getsignal(signal.SIGTERM) is earlier
"""
    with running(body, server, tmp_path, foot=foot) as program:
        server.assert_answered_once(server.enqueue("hello"), "success")
        program.signal()
        assert program.end() == 0, program.errors
    assert (tmp_path / "heard").exists()


def test_report_60_what_is_unfinished_at_the_end_is_answered_and_nothing_is_lost(
    server: KiwiServer, tmp_path: Path
) -> None:
    started = tmp_path / "started"
    with running(HELLO, server, tmp_path, grace_period=0.5, concurrency=1) as program:
        server.wait_for_calls("drain", ended=False)
        hanging = server.enqueue("hang", {"started": str(started)})
        eventually(started.exists)
        behind = server.enqueue("hello")
        server.wait_until(lambda: server.queue_size() == 0)
        locked = server.enqueue("hello", lock_required=True)
        program.signal()
        assert program.end() == 1
    server.assert_answered_once(hanging, "failed")
    server.assert_answered_once(behind, "error")
    with running(HELLO, server, tmp_path, worker_id="second") as program:
        server.assert_answered_once(locked, "success")
        program.signal()
        assert program.end() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_report_62_what_runs_is_finished_after_any_stop_signal(
    server: KiwiServer, tmp_path: Path, number: int
) -> None:
    started = tmp_path / "started"
    with running(HELLO, server, tmp_path, grace_period=10) as program:
        request = server.enqueue("nap", {"started": str(started)})
        eventually(started.exists)
        program.signal(number)
        assert program.end() == 0
    assert server.assert_answered_once(request, "success")["result"] == "slept"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_report_62_a_signal_while_the_program_is_imported_ends_it(
    server: KiwiServer, tmp_path: Path, number: int
) -> None:
    body = "\nopen('importing', 'w').close()\ntime.sleep(3600)\n"
    with running(body, server, tmp_path, foot="", arguments=RUN) as program:
        eventually((tmp_path / "importing").exists)
        program.signal(number)
        _, seconds = program.seconds_to_end()
    assert seconds < 10
    assert server.registrations == []


RUN = ("-m", "kiwi_worker", "run", "program")


def test_report_63_a_signal_right_after_the_start_ends_it(tmp_path: Path) -> None:
    with socket.socket() as unheard:
        unheard.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unheard.getsockname()[1]}"
        with running("", url, tmp_path, grace_period=30) as program:
            program.signal()
            _, seconds = program.seconds_to_end()
    assert seconds < 10


def test_report_64_a_subprocess_of_a_handler_blocks_and_ignores_no_stop_signal(
    server: KiwiServer, tmp_path: Path
) -> None:
    body = """
@worker.method
def masks() -> dict:
    text = subprocess.run(["cat", "/proc/self/status"], capture_output=True, text=True).stdout
    lines = dict(line.split(":\\t", 1) for line in text.splitlines() if ":\\t" in line)
    return {name: int(lines[name], 16) for name in ("SigBlk", "SigIgn")}
"""
    with running(body, server, tmp_path) as program:
        masks: Any = server.assert_answered_once(server.enqueue("masks"), "success")["result"]
        program.signal()
        assert program.end() == 0
    stops = sum(1 << (number - 1) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP))
    assert masks["SigBlk"] == 0
    assert masks["SigIgn"] & stops == 0


def test_report_64_a_killed_process_is_replaced_and_the_others_go_on(
    server: KiwiServer, tmp_path: Path
) -> None:
    body = HELLO + "\n@worker.method\ndef pid() -> int:\n    return os.getpid()\n"
    with running(body, server, tmp_path, processes=2) as program:
        server.wait_for_registration(2)
        first = server.assert_answered_once(server.enqueue("pid", worker_id="w-1"), "success")["result"]
        os.kill(first, signal.SIGKILL)
        server.wait_for_registration(3)
        again = server.assert_answered_once(server.enqueue("pid", worker_id="w-1"), "success")["result"]
        assert again != first
        program.signal()
        assert program.end() == 0
