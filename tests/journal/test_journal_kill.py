"""A writer is killed with signal 9 at random moments: all it said it had written is recovered."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from journal_samples import ENVIRONMENT, WORKER_ID, recover, states
from journal_writer import body_of

from kiwi_worker.engine.journal import read_journal

WRITER = Path(__file__).with_name("journal_writer.py")
RANK = {"received": 0, "started": 1, "outcome": 2, "forgotten": 3}
STATE_RANK = {"waiting": 0, "claimed": 0, "started": 1, "outcome": 2}


def run_and_kill(path: Path, threads: int, compact_bytes: int, sync: str, after_lines: int) -> list[str]:
    """What the writer said until it was killed, some moment after it had said so many lines."""
    command = [sys.executable, str(WRITER), str(path), WORKER_ID, str(threads), str(compact_bytes), sync]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=ENVIRONMENT) as writer:
        assert writer.stdout is not None
        lines = [writer.stdout.readline() for _ in range(after_lines)]
        timer = threading.Timer(random.uniform(0, 0.02), writer.kill)
        timer.start()
        lines += writer.stdout.readlines()
        timer.join()
    assert lines[0] == b"open\n", lines
    return [line.decode().strip() for line in lines[1:] if line.endswith(b"\n")]


def acknowledged(lines: list[str]) -> dict[str, int]:
    """By key, how far the writer said it had come."""
    reached: dict[str, int] = {}
    for line in lines:
        act, keys, *_ = line.split()
        reached.update({key: RANK[act] for key in keys.split(",")})
    return reached


@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize(
    ("compact_bytes", "sync"), [(1 << 24, "none"), (50_000, "none"), (1, "none"), (50_000, "interval")]
)
def test_kill_9_loses_nothing_acknowledged(
    tmp_path: Path, threads: int, compact_bytes: int, sync: str
) -> None:
    for attempt in range(5):
        path = tmp_path / f"journal{attempt}"
        lines = run_and_kill(path, threads, compact_bytes, sync, after_lines=random.randrange(1, 800))
        check(path, acknowledged(lines))


def check(path: Path, reached: dict[str, int]) -> None:
    """Each key is found at least as far as was said, with the bytes that were given."""
    held = {key: entry.state for key, entry in read_journal(str(path)).entries}
    left = states(recover(path))
    assert {key: state for key, (state, *_) in left.items()} == held
    for key, rank in reached.items():
        if rank == RANK["forgotten"]:
            assert key not in left
        elif key not in left:
            # the note that it was forgotten may be in the file though it was not said to be
            assert rank == RANK["outcome"]
        else:
            assert STATE_RANK[left[key][0]] >= rank
    for name, (state, body, locked, runs) in left.items():
        assert name is not None
        assert body == body_of("out" if state == "outcome" else "in", name)
        if state == "started":
            assert (runs, locked) == (1, int(name.split("-")[1]) % 2 == 0)


def test_a_killed_writer_with_sync_always(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    lines = run_and_kill(path, 4, 20_000, "always", after_lines=100)
    check(path, acknowledged(lines))


def test_one_journal_killed_again_and_again(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    before: set[str | None] = set()
    for _ in range(8):
        run_and_kill(path, 2, 30_000, "none", after_lines=random.randrange(1, 200))
        now = set(states(recover(path)))
        assert now, "some are always left"
        before |= now
    assert before
