"""A journal that cannot be written says what is lost, and becomes whole when it can be."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from journal_samples import ENVIRONMENT, WORKER_ID, recover, states

FILE_LIMIT = f"""
import json, logging, os, resource, sys
from kiwi_worker.engine.journal import Journal, read_journal

said = []
class Keep(logging.Handler):
    def emit(self, record):
        said.append((record.levelname, record.action, record.getMessage()))
logging.getLogger("kiwi_worker").addHandler(Keep())
logging.getLogger("kiwi_worker").propagate = False
path = sys.argv[1]
def limit(size):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
def open_journal():
    return Journal.open(path, worker_id={WORKER_ID!r}, retry_seconds=0.0)
journal = open_journal()
"""


def run(code: str, path: Path) -> str:
    """What the code prints, run in a process whose limits are its own."""
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", "-c", FILE_LIMIT + code, str(path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=ENVIRONMENT,
    )
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    return done.stdout


def test_a_file_limit_degrades_and_is_recovered_from(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    out = run(
        """
limit(4096)
journal.received([("started", b"1"), ("waits", b"2")])
journal.started("started")
for number in range(50):
    journal.received([(str(number), b"x" * 100)])
assert journal.stats.degraded
journal.outcome("started", b"done while degraded")
assert [(level, action) for level, action, _ in said] == [("ERROR", "journal_degraded")], said
assert "loses messages" in said[0][2] and "File too large" in said[0][2], said
assert read_journal(path).degraded
limit(-1)
journal.forgotten("49")
journal.flush()
assert not journal.stats.degraded
assert not read_journal(path).degraded
assert said[1][:2] == ("WARNING", "journal_whole"), said
journal.outcome("0", b"and goes on")
print("whole")
sys.stdout.flush()
os._exit(0)
""",
        path,
    )
    assert out == "whole\n"
    left = states(recover(path))
    assert left["started"] == ("outcome", b"done while degraded", False, 0)
    assert left["0"][:2] == ("outcome", b"and goes on")
    assert set(left) == {"started", "waits", *map(str, range(49))}


def test_after_a_crash_while_degraded_nothing_is_taken_for_waiting(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    run(
        """
journal.received([("a", b"1"), ("b", b"2")])
journal.outcome("b", b"3")
limit(100)
journal.started("a")
assert journal.stats.degraded
os._exit(0)
""",
        path,
    )
    left = recover(path)
    assert left.degraded
    assert states(left) == {"a": ("started", b"1", False, 1), "b": ("outcome", b"3", False, 0)}
    assert not recover(path).degraded


def test_past_records_make_room_before_anything_is_lost(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    run(
        """
limit(4096)
for number in range(500):
    journal.received([(str(number), b"x" * 100)])
    journal.forgotten(str(number))
assert not journal.stats.degraded and not said, said
os._exit(0)
""",
        path,
    )
    assert len(recover(path)) <= 1


def test_a_start_on_a_full_disk_recovers_what_was_left(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    run(
        """
journal.received([("a", b"1" * 5000)])
journal.outcome("b", b"2")
journal.close()
limit(1000)
journal = open_journal()
assert [one.key for one in journal.recovered.outcomes] == ["b"]
assert journal.stats.degraded
assert [action for _, action, _ in said] == ["journal_degraded", "journal_recovered"], said
limit(-1)
journal.close()
""",
        path,
    )
    assert set(states(recover(path))) == {"a", "b"}


def test_a_new_journal_on_a_full_disk_is_refused(tmp_path: Path) -> None:
    run(
        """
from kiwi_worker.errors import JournalError
journal.close()
os.unlink(path)
limit(1)
try:
    open_journal()
except JournalError as error:
    assert "cannot be written: File too large" in str(error)
else:
    raise AssertionError
""",
        tmp_path / "journal",
    )


def _can_mount() -> bool:
    command = ["unshare", "-rm", "sh", "-c", "mount -t tmpfs -o size=64k none /mnt"]
    return bool(shutil.which("unshare")) and subprocess.run(command, capture_output=True).returncode == 0


@pytest.mark.skipif(not _can_mount(), reason="needs user and mount namespaces")
def test_a_full_file_system(tmp_path: Path) -> None:
    code = """
filler = path + ".filler"
with open(filler, "wb", buffering=0) as file:
    try:
        while True:
            file.write(bytes(4096))
    except OSError:
        pass
for number in range(200):
    journal.received([(str(number), b"x" * 100)])
assert journal.stats.degraded
assert [action for _, action, _ in said] == ["journal_degraded"], said
assert "No space left on device" in said[0][2]
os.unlink(filler)
journal.started("0")
assert not journal.stats.degraded
journal.close()
journal = open_journal()
assert len(journal.recovered.waiting) == 199 and len(journal.recovered.started) == 1
journal.close()
"""
    mounted = 'mount -t tmpfs -o size=256k none "$1" && exec "$2" -c "$3" "$1/journal"'
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", mounted, "sh", str(tmp_path), sys.executable, FILE_LIMIT + code],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=ENVIRONMENT,
    )
    assert done.returncode == 0, done.stderr
