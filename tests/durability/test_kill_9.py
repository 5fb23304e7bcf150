"""`kill -9` at random moments, with a journal: nothing computed is lost, nothing is run or answered twice.

20 kills in each mode; `SOAK_KILLS` says how many instead.
"""

from __future__ import annotations

import json
import os
import random
import signal
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from accounting import Caller
from programs import eventually, running

from kiwi_worker.orbit import Client
from kiwi_worker.testing.middleware import running_middleware
from kiwi_worker.testing.orbit_runtime import running_runtime

KILLS = int(os.environ.get("SOAK_KILLS", "20"))
TIME_TO_LIVE = 20.0

pytestmark = pytest.mark.timeout(90 + 5 * KILLS)
pytest.importorskip("uvicorn")

NOTES = """
from kiwi_worker.{package}.binding import {binding} as Binding

ran = os.open("ran", os.O_APPEND | os.O_CREAT | os.O_WRONLY)
sent = os.open("sent", os.O_APPEND | os.O_CREAT | os.O_WRONLY)
report = Binding.report

def noted(self, one, lane, limit_seconds):
    os.write(sent, one.body + b"\\n")
    return report(self, one, lane, limit_seconds)

Binding.report = noted
"""
METHODS = (
    NOTES.format(package="kiwi", binding="KiwiBinding")
    + """
@worker.method
def work(number: int) -> int:
    os.write(ran, b"%d\\n" % number)
    time.sleep(0.002 * (number % 4))
    return number
"""
)
TASKS = (
    NOTES.format(package="orbit", binding="OrbitBinding")
    + """
from kiwi_worker.orbit import OrbitWorker

worker = OrbitWorker(server=os.environ["RUNTIME"], worker_id="w", poll_wait=2)

@worker.task("work", version="1.0.0")
def work(input: dict) -> dict:
    os.write(ran, b"%d\\n" % input["number"])
    time.sleep(0.002 * (input["number"] % 4))
    return input
"""
)
WORKFLOW = """
[[workflow]]
name = "Work"
version = "1.0.0"
[workflow.step]
name = "work"
task = "work"
contract_version = "1.0.0"
"""


@pytest.mark.parametrize("run_mode", ["lazy", "eager"])
def test_kill_9_at_random_moments_loses_and_doubles_nothing(tmp_path: Path, run_mode: str) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    with running_middleware(heartbeat_delay=2) as middleware:
        caller = Caller(middleware.client, seconds_between=0.01, time_to_live=TIME_TO_LIVE)
        settings = {
            "service_id": middleware.service_id,
            "auth_secret": middleware.worker_secret,
            "run_mode": run_mode,
            "journal": tmp_path / "journal",
            "grace_period": 5,
        }
        caller.start()
        try:
            _kill(METHODS, middleware.url, tmp_path, settings, chance)
        finally:
            caller.stop()
        with running(METHODS, middleware.url, tmp_path, **settings) as program:
            caller.settle(all_of_them=True)
            # One more, so that the last worker is there to be stopped in order.
            assert middleware.client.call("work", [caller.called], timeout=TIME_TO_LIVE) == caller.called
            program.signal()
            assert program.end() == 0, program.errors
    caller.check()
    _check_runs(tmp_path / "ran")
    _check_answers(tmp_path / "sent", "request_id")


def test_kill_9_at_random_moments_loses_no_task_and_reports_one_outcome_of_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance, stop = random.Random(seed), threading.Event()
    started: list[str] = []
    with running_runtime(WORKFLOW, session_timeout="1s") as runtime, Client(server=runtime.url) as client:
        monkeypatch.setenv("RUNTIME", runtime.url)
        settings = {"journal": tmp_path / "journal", "grace_period": 5}

        def start() -> None:
            while not stop.wait(0.01):
                started.append(client.start("Work", {"number": len(started)}))

        starter = threading.Thread(target=start)
        starter.start()
        try:
            _kill(TASKS, runtime.url, tmp_path, settings, chance)
        finally:
            stop.set()
            starter.join()
        with running(TASKS, runtime.url, tmp_path, **settings) as program:
            # One more, so that the last worker is there to be stopped in order.
            started.append(client.start("Work", {"number": len(started)}))
            ended = [client.wait(execution_id, timeout=TIME_TO_LIVE) for execution_id in started]
            program.signal()
            assert program.end() == 0, program.errors
    print(len(started))
    wrong = [
        one
        for number, one in enumerate(ended)
        if (one.status, one.output) != ("COMPLETED", {"number": number})
    ]
    assert wrong == []
    assert {int(number) for number in (tmp_path / "ran").read_text().split()} == set(range(len(started)))
    _check_answers(tmp_path / "sent", "token")


def _kill(body: str, url: str, folder: Path, settings: dict[str, Any], chance: random.Random) -> None:
    """Start the program and kill it, again and again."""
    for _ in range(KILLS):
        with running(body, url, folder, **settings) as program:
            _wait_for_a_moment(folder / "ran", chance)
            program.signal(signal.SIGKILL)
            assert program.end() == -signal.SIGKILL, program.errors


def _wait_for_a_moment(ran: Path, chance: random.Random) -> None:
    """Mostly amid the work; now and then amid the start."""
    if chance.random() < 0.8:
        before = _size(ran)
        eventually(lambda: _size(ran) > before)
    time.sleep(chance.uniform(0.0, 0.3))


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _check_runs(ran: Path) -> None:
    twice = [number for number, runs in Counter(ran.read_text().split()).items() if runs > 1]
    assert twice == [], "no call is run again after it was started"


def _check_answers(sent: Path, key: str) -> None:
    answers: dict[str, set[str]] = {}
    for line in sent.read_text().splitlines():
        answer = json.loads(line)
        answers.setdefault(answer[key], set()).add(line)
    different = {name: lines for name, lines in answers.items() if len(lines) > 1}
    assert different == {}, "what is sent again is the same answer"
