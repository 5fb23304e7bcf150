"""`kiwi-worker demo`, as a person runs it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

DEMO = [sys.executable, "-m", "kiwi_worker", "demo"]
LIMIT_SECONDS = 60


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    """An environment with an empty home, in which leftovers can be seen."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("KIWI_", "ORBIT_"))}
    return {**kept, "HOME": str(tmp_path), "TMPDIR": str(tmp_path), "COLUMNS": "100"}


@contextmanager
def demo(*options: str, home: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [*DEMO, *options], env=home, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    guard = threading.Timer(LIMIT_SECONDS, process.kill)
    guard.start()
    try:
        yield process
    finally:
        guard.cancel()
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def read_until(process: subprocess.Popen[str], word: str) -> str:
    assert process.stdout is not None
    text = ""
    for line in process.stdout:
        text += line
        if word in line:
            return text
    raise AssertionError(f"it ended without {word!r}:\n{text}")


def processes_of(folder: str) -> list[str]:
    """Command lines of the processes that were started with this temporary folder."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            environment, command = (entry / "environ").read_bytes(), (entry / "cmdline").read_bytes()
        except OSError:
            continue
        if f"TMPDIR={folder}".encode() in environment and command:
            found.append(command.replace(b"\0", b" ").decode())
    return found


def test_every_outcome_is_the_right_one_and_nothing_is_left(home: dict[str, str]) -> None:
    with demo(home=home) as process:
        text, _ = process.communicate(timeout=LIMIT_SECONDS)
    assert process.returncode == 0, text
    assert len(re.findall(r"^ok ", text, re.MULTILINE)) == 10
    assert "NO " not in text
    assert "all 10 outcomes were the right ones" in text
    assert processes_of(home["TMPDIR"]) == []
    assert list(Path(home["TMPDIR"]).iterdir()) == []


def test_keep_tells_commands_that_work_and_stops_everything_at_ctrl_c(home: dict[str, str]) -> None:
    with demo("--keep", home=home) as process:
        text = read_until(process, "Ctrl-C")
        export = re.search(r"export (\S+) (\S+)", text)
        assert export is not None
        environment = {**home, **dict(pair.split("=", 1) for pair in export.groups())}
        calls = re.findall(r"kiwi-worker (call .*)", text)
        assert len(calls) == 4
        done = [
            subprocess.run(
                [sys.executable, "-m", "kiwi_worker", *call.split()],
                env=environment,
                capture_output=True,
                text=True,
                timeout=LIMIT_SECONDS,
            )
            for call in calls
        ]
        assert [one.returncode for one in done] == [0, 0, 1, 0]
        assert "hello Ada" in done[0].stdout
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=LIMIT_SECONDS)
    assert process.returncode == 0
    assert processes_of(home["TMPDIR"]) == []


def test_sigterm_in_the_middle_leaves_no_process_behind(home: dict[str, str]) -> None:
    with demo(home=home) as process:
        read_until(process, "are registered")
        process.terminate()
        process.communicate(timeout=LIMIT_SECONDS)
    assert process.returncode == 128 + signal.SIGTERM
    assert processes_of(home["TMPDIR"]) == []
