"""`kiwi-worker demo`, as a person runs it."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
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
        [*DEMO, *options],
        env=home,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
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
    return [command for _, command in found_processes(folder)]


def found_processes(folder: str) -> list[tuple[int, str]]:
    """The same, with their process ids."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            environment, command = (entry / "environ").read_bytes(), (entry / "cmdline").read_bytes()
        except OSError:
            continue
        if f"TMPDIR={folder}".encode() in environment and command:
            found.append((int(entry.name), command.replace(b"\0", b" ").decode()))
    return found


def shown_in_readme() -> str:
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    shown = re.search(r"```text\n(starting a middleware.*?)```", readme, re.DOTALL)
    assert shown is not None
    return shown.group(1)


def without_chance(text: str) -> list[str]:
    """The lines of a demo's output, without what another run may do otherwise."""
    text = re.sub(r"each run once: .*", "each run once", text)
    return [" ".join(re.sub(r"[0-9.]+", "N", line).split()) for line in text.splitlines()]


def test_every_outcome_is_the_right_one_and_nothing_is_left(home: dict[str, str]) -> None:
    with demo(home=home) as process:
        text, _ = process.communicate(timeout=LIMIT_SECONDS)
    assert process.returncode == 0, text
    assert len(re.findall(r"^ok ", text, re.MULTILINE)) == 10
    assert "NO " not in text
    assert "all 10 outcomes were the right ones" in text
    assert without_chance(text) == without_chance(shown_in_readme())
    assert processes_of(home["TMPDIR"]) == []
    assert list(Path(home["TMPDIR"]).iterdir()) == []


def test_keep_tells_commands_that_work_and_stops_everything_at_ctrl_c(home: dict[str, str]) -> None:
    with demo("--keep", home=home) as process:
        text = read_until(process, "Ctrl-C")
        environment = {**home, **dict(re.findall(r"export (\w+)=(\S+)", text))}
        calls = re.findall(rf"  ({re.escape(sys.executable)} -m kiwi_worker call .*)", text)
        assert len(calls) == 4
        done = [
            subprocess.run(
                shlex.split(call),
                cwd="/",
                env=environment,
                capture_output=True,
                text=True,
                timeout=LIMIT_SECONDS,
                check=False,
            )
            for call in calls
        ]
        assert [one.returncode for one in done] == [0, 0, 1, 0]
        assert "hello Ada" in done[0].stdout
        # As a terminal does it: every process of the group gets it.
        os.killpg(process.pid, signal.SIGINT)
        rest, _ = process.communicate(timeout=LIMIT_SECONDS)
    assert "exit statuses: lazy 0, eager 0, middleware 0" in rest
    assert process.returncode == 0
    assert processes_of(home["TMPDIR"]) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_in_the_middle_leaves_nothing_behind(home: dict[str, str], number: signal.Signals) -> None:
    with demo(home=home) as process:
        read_until(process, "are registered")
        os.killpg(process.pid, number)
        process.communicate(timeout=LIMIT_SECONDS)
    assert process.returncode == 128 + number
    assert processes_of(home["TMPDIR"]) == []
    assert list(Path(home["TMPDIR"]).iterdir()) == []


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process that its parent was killed")
def test_killing_the_demo_leaves_no_process_behind(home: dict[str, str]) -> None:
    with demo("--keep", home=home) as process:
        read_until(process, "Ctrl-C")
        process.kill()
        process.communicate(timeout=LIMIT_SECONDS)
    until = time.monotonic() + LIMIT_SECONDS
    while processes_of(home["TMPDIR"]):
        assert time.monotonic() < until, processes_of(home["TMPDIR"])
        time.sleep(0.05)


def test_a_worker_that_dies_is_told_and_is_no_success(home: dict[str, str]) -> None:
    with demo("--keep", home=home) as process:
        read_until(process, "Ctrl-C")
        (worker,) = (pid for pid, command in found_processes(home["TMPDIR"]) if "--run-mode lazy" in command)
        os.kill(worker, signal.SIGKILL)
        text, _ = process.communicate(timeout=LIMIT_SECONDS)
    assert "the lazy worker ended with status -9" in text
    assert process.returncode == 1
    assert processes_of(home["TMPDIR"]) == []


def test_a_middleware_that_cannot_start_is_one_clear_error(home: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "starlette.py").write_text("raise ImportError('not installed')\n")
    with demo(home={**home, "PYTHONPATH": str(tmp_path)}) as process:
        text, _ = process.communicate(timeout=LIMIT_SECONDS)
    assert process.returncode == 1
    assert "pip install 'kiwi-worker[middleware]'" in text
    assert "Traceback" not in text
    assert processes_of(home["TMPDIR"]) == []
