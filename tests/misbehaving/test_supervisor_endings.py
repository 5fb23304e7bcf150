"""How several processes end, together and one by one."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from programs import LIMIT_SECONDS, PACKAGES, children_of, eventually, is_alive, running

from kiwi_worker import Worker
from kiwi_worker.testing import MisbehavingServer

BODY = """
SEATED = "_KIWI_WORKER_SEAT" in os.environ
open(f"begun-{os.getpid()}", "w").close()

@worker.method
def pid() -> int:
    return os.getpid()

@worker.method
def slow(seconds: float) -> int:
    time.sleep(seconds)
    return os.getpid()

@worker.method
def kill_the_process() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def server() -> Iterator[Any]:
    with MisbehavingServer.kiwi() as running_server:
        yield running_server
        running_server.assert_protocol_kept()


def workers_of(pid: int) -> list[int]:
    return children_of(pid)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_the_whole_group_drains_every_process(server: Any, tmp_path: Path, number: int) -> None:
    """A terminal's Ctrl-C; and a service manager, which signals each process, whatever its group."""
    with running(BODY, server, tmp_path, processes=2, grace_period=20) as program:
        server.wait_for_registration(2)
        request = server.enqueue("slow", {"seconds": 0.5})
        eventually(lambda: server.queue_size() == 0)
        for worker in workers_of(program.pid):
            os.kill(worker, number)
        os.killpg(program.pid, number)
        assert program.end() == 0
    server.assert_answered_once(request, "success")
    assert sorted(server.shutdowns) == ["w-1", "w-2"]


def test_report_44_a_message_that_kills_its_process_leaves_the_others_to_be_served(
    server: Any, tmp_path: Path
) -> None:
    with running(BODY, server, tmp_path, processes=2) as program:
        server.wait_for_registration(2)
        server.enqueue("kill_the_process", worker_id="w-1")
        server.wait_for_registration(3)
        request = server.enqueue("pid", worker_id="w-1")
        assert server.wait_for_response(request, LIMIT_SECONDS)["status"] == "success"
        program.signal()
        assert program.end() == 0


def test_a_process_that_is_stopped_by_itself_is_started_again(server: Any, tmp_path: Path) -> None:
    with running(BODY, server, tmp_path, processes=2) as program:
        server.wait_for_registration(2)
        os.kill(workers_of(program.pid)[0], signal.SIGTERM)
        server.wait_for_registration(3)
        program.signal()
        assert program.end() == 0


def test_a_program_that_never_starts_is_given_up_with_its_status(server: Any, tmp_path: Path) -> None:
    body = BODY + "\nif SEATED:\n    raise RuntimeError('not in a process of its own')\n"
    with running(body, server, tmp_path, processes=2) as program:
        assert program.end() == 1
        assert "not in a process of its own" in program.errors


def test_what_no_new_process_could_mend_stops_all_with_that_status(server: Any, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        settings = {"run_mode": "lazy", "wakeup_probe_service_port": port, "processes": 2}
        with running(BODY, server, tmp_path, **settings) as program:
            assert program.end() == 78
        with running(BODY, f"http://127.0.0.1:{port}", tmp_path, processes=2, start_limit=0.3) as program:
            assert program.end() == 69


def test_a_worker_that_was_forgotten_comes_back_as_a_new_process(server: Any, tmp_path: Path) -> None:
    with running(BODY, server, tmp_path, processes=2, heartbeat_delay=0.05) as program:
        server.wait_for_registration(2)
        server.forget_workers()
        server.wait_for_registration(4)
        program.signal()
        assert program.end() == 0


def test_an_import_that_takes_long_is_stopped_at_once(server: Any, tmp_path: Path) -> None:
    body = BODY + "\nif SEATED:\n    open(f'slow-{os.getpid()}', 'w').close()\n    time.sleep(3600)\n"
    with running(body, server, tmp_path, processes=2, grace_period=30) as program:
        eventually(lambda: len(list(tmp_path.glob("slow-*"))) == 2)
        program.signal()
        status, seconds = program.seconds_to_end()
    assert (status, seconds < 10) == (0, True)


def test_a_dump_is_passed_on(server: Any, tmp_path: Path) -> None:
    with running(BODY, server, tmp_path, processes=2) as program:
        server.wait_for_registration(2)
        program.signal(signal.SIGUSR1)
        eventually(lambda: all(f"worker_id='w-{number}'" in program.errors for number in (1, 2)))
        program.signal()
        assert program.end() == 0


def test_processes_without_a_worker_id_are_named_after_their_supervisor(server: Any, tmp_path: Path) -> None:
    with running(BODY, server, tmp_path, processes=2, worker_id="") as program:
        server.wait_for_registration(2)
        names = sorted(one["worker_id"] for one in server.registrations)
        assert names == [f"{socket.gethostname()}-{program.pid}-{number}" for number in (1, 2)]
        program.signal()
        assert program.end() == 0


def test_workers_of_one_program_may_want_different_numbers_of_processes(server: Any, tmp_path: Path) -> None:
    body = "\nimport kiwi_worker\nother = Worker(worker_id='single', processes=1)\n" + BODY
    foot = "\nkiwi_worker.run(worker, other)\n"
    with running(body, server, tmp_path, foot=foot, processes=3) as program:
        server.wait_for_registration(4)
        assert sorted(one["worker_id"] for one in server.registrations) == ["single", "w-1", "w-2", "w-3"]
        program.signal()
        assert program.end() == 0


def test_the_supervisor_sleeps_while_nothing_happens(server: Any, tmp_path: Path) -> None:
    def switches() -> int:
        lines = Path(f"/proc/{program.pid}/status").read_text().splitlines()
        return sum(int(line.split()[1]) for line in lines if "ctxt_switches" in line)

    with running(BODY, server, tmp_path, processes=2) as program:
        server.wait_for_registration(2)
        server.assert_answered_once(server.enqueue("pid"), "success")
        eventually(lambda: settled(switches))
        before = switches()
        for _ in range(20):
            server.assert_answered_once(server.enqueue("pid"), "success")
        assert switches() == before


def settled(read: Any) -> bool:
    before = read()
    time.sleep(0.1)
    return bool(read() == before)


def test_no_worker_outlives_a_killed_supervisor_even_when_one_holds_the_interpreter_lock(
    server: Any, tmp_path: Path
) -> None:
    body = BODY + (
        "\n@worker.method\ndef hold(started: str) -> None:\n"
        "    open(started, 'w').close()\n    ctypes.PyDLL(None).sleep(3600)\n"
    )
    started = tmp_path / "started"
    with running(body, server, tmp_path, processes=2, grace_period=0.2) as program:
        server.wait_for_registration(2)
        server.enqueue("hold", {"started": str(started)})
        eventually(started.exists)
        workers = workers_of(program.pid)
        every = [*workers, *(one for worker in workers for one in children_of(worker))]
        program.signal(signal.SIGKILL)
        program.end()
        eventually(lambda: not any(map(is_alive, every)))


def test_several_processes_are_refused_where_the_program_is_not_the_workers_own() -> None:
    worker = Worker(processes=2, auth_secret="x", service_id="s")
    with pytest.raises(SystemExit) as caught:
        worker.run()
    assert caught.value.code == 78


def test_a_program_from_standard_input_is_refused(tmp_path: Path) -> None:
    program = "from kiwi_worker import Worker\nWorker(processes=2, auth_secret='x', service_id='s').run()\n"
    ended = subprocess.run(
        [sys.executable, "-"],
        input=program,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": PACKAGES},
        timeout=LIMIT_SECONDS,
    )
    assert ended.returncode == 78
    assert "only 1 is possible here" in ended.stderr
