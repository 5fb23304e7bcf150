"""One file, one worker id, one process, one user."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from journal_samples import ENVIRONMENT, WORKER_ID, crash, open_journal, recover, states

from kiwi_worker.engine.journal import Journal
from kiwi_worker.errors import JournalError


def test_another_workers_journal_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    with Journal.open(str(path), worker_id="orders-2") as journal:
        journal.received([("a", b"1")])
    before = path.read_bytes()
    with pytest.raises(JournalError, match="belongs to worker 'orders-2', and this is 'orders-1'"):
        recover(path)
    assert path.read_bytes() == before


def test_a_second_journal_in_the_process_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    with open_journal(path, compact_bytes=1) as journal:
        for number in range(5):
            journal.received([(str(number), b"")])
            with pytest.raises(JournalError, match="locked by another process"):
                open_journal(path)
    assert len(recover(path)) == 5


def test_a_journal_is_locked_while_its_file_is_exchanged(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    code = (
        "from kiwi_worker.engine.journal import Journal\n"
        f"journal = Journal.open({str(path)!r}, worker_id={WORKER_ID!r}, compact_bytes=1)\n"
        "print('open', flush=True)\n"
        "while True:\n"
        "    journal.received([('a', b'')])\n"
        "    journal.forgotten('a')\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, env=ENVIRONMENT) as owner:
        try:
            assert owner.stdout is not None
            assert owner.stdout.readline() == b"open\n"
            for _ in range(3000):
                with pytest.raises(JournalError, match="locked by another process"):
                    open_journal(path)
        finally:
            owner.kill()
    assert len(recover(path)) <= 1


def test_a_race_for_a_new_journal_has_one_winner(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    code = (
        "import sys\n"
        "from kiwi_worker.engine.journal import Journal\n"
        "from kiwi_worker.errors import JournalError\n"
        "sys.stdin.readline()\n"
        "try:\n"
        f"    journal = Journal.open({str(path)!r}, worker_id={WORKER_ID!r})\n"
        "    print('won', flush=True)\n"
        "except JournalError as error:\n"
        "    print('lost' if 'locked' in str(error) else error, flush=True)\n"
        "sys.stdin.readline()\n"
    )
    command, pipe = [sys.executable, "-c", code], subprocess.PIPE
    racers = [
        subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=ENVIRONMENT) for _ in range(4)
    ]
    try:
        for racer in racers:
            assert racer.stdin is not None
            racer.stdin.write("go\n")
            racer.stdin.flush()
        said = sorted(racer.stdout.readline() for racer in racers if racer.stdout)
        assert said == ["lost\n"] * 3 + ["won\n"]
    finally:
        for racer in racers:
            racer.communicate("end\n")


def test_the_lock_is_free_after_close(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    for _ in range(3):
        open_journal(path).close()


def test_a_failed_open_leaves_no_lock(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    open_journal(path).close()
    with pytest.raises(JournalError):
        Journal.open(str(path), worker_id="other")
    open_journal(path).close()


def test_a_forked_child_neither_writes_nor_keeps_the_lock(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    code = (
        "import os, signal, sys\n"
        "from kiwi_worker.engine.journal import Journal\n"
        f"journal = Journal.open({str(path)!r}, worker_id={WORKER_ID!r})\n"
        "journal.received([('a', b'1')])\n"
        "child = os.fork()\n"
        "if not child:\n"
        "    journal.outcome('a', b'from the child')\n"
        "    print('child', os.getpid(), flush=True)\n"
        "    signal.pause()\n"
        "signal.pause()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=ENVIRONMENT
    ) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline().split()[1])
        try:
            parent.kill()
            os.waitid(os.P_PID, parent.pid, os.WEXITED | os.WNOWAIT)
            assert states(recover(path)) == {"a": ("waiting", b"1", False, 0)}
        finally:
            os.kill(child, 9)


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o666])
def test_a_file_open_to_others_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "journal"
    open_journal(path).close()
    path.chmod(mode)
    with pytest.raises(JournalError, match=f"mode {mode:04o}.*chmod 600"):
        open_journal(path)


def test_what_is_no_regular_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo", 0o600)
    (tmp_path / "directory").mkdir()
    for name in ("fifo", "directory"):
        with pytest.raises(JournalError, match=r"cannot be written|not a regular file"):
            open_journal(tmp_path / name)


def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match=f"there is no directory {tmp_path}/missing"):
        open_journal(tmp_path / "missing" / "journal")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_directory_in_which_the_file_cannot_be_replaced_is_refused(tmp_path: Path) -> None:
    open_journal(tmp_path / "journal").close()
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(JournalError, match="cannot replace files"):
            open_journal(tmp_path / "journal")
    finally:
        tmp_path.chmod(0o700)


def test_behind_a_symbolic_link_the_file_is_replaced_and_not_the_link(tmp_path: Path) -> None:
    (tmp_path / "volume").mkdir()
    link = tmp_path / "journal"
    link.symlink_to("volume/journal")
    journal = open_journal(link)
    journal.received([("a", b"1")])
    crash(journal)
    assert link.is_symlink()
    assert os.listdir(tmp_path / "volume") == ["journal"]
    assert set(states(recover(link))) == {"a"}
