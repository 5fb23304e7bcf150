"""The file stays small; a full one says so, and loses nothing."""

from __future__ import annotations

import os
from pathlib import Path

from journal_samples import crash, open_journal, recover, states


def test_the_past_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    with open_journal(path, compact_bytes=10_000) as journal:
        for number in range(2000):
            journal.received([(str(number), b"x" * 100)])
            journal.started(str(number))
            journal.outcome(str(number), b"y" * 100)
            journal.forgotten(str(number))
            assert path.stat().st_size < 11_000
        assert os.listdir(tmp_path) == ["journal"]
    assert path.stat().st_size < 200


def test_an_old_open_entry_does_not_keep_past_ones(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journal = open_journal(path, compact_bytes=10_000)
    journal.received([("slow", b"slow")])
    journal.started("slow", claimed=True)
    for number in range(2000):
        journal.received([(str(number), b"x" * 100)])
        journal.forgotten(str(number))
    assert path.stat().st_size < 11_000
    journal.flush()
    crash(journal)
    assert states(recover(path)) == {"slow": ("started", b"slow", True, 1)}


def test_what_is_open_is_not_copied_again_and_again(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    with open_journal(path, compact_bytes=10_000) as journal:
        journal.received([(str(number), b"x" * 1000) for number in range(200)])
        files = set()
        for number in range(2000):
            journal.received([(f"n{number}", b"x")])
            files.add(path.stat().st_ino)
            journal.forgotten(f"n{number}")
        assert len(files) <= 2
    assert len(recover(path)) == 200


def test_full_until_something_is_forgotten(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    with open_journal(path, compact_bytes=1000, max_bytes=100_000) as journal:
        count = 0
        while not journal.full:
            journal.received([(str(count), b"x" * 1000)])
            count += 1
        assert 75 < count <= 100
        journal.outcome("0", b"what must be written is written")
        assert journal.full
        for number in range(1, 60):
            journal.forgotten(str(number))
        assert not journal.full
        assert path.stat().st_size < 50_000
    assert len(recover(path)) == count - 59


def test_a_journal_full_of_the_past_is_not_full(tmp_path: Path) -> None:
    with open_journal(tmp_path / "journal", compact_bytes=1 << 30, max_bytes=10_000) as journal:
        for number in range(1000):
            assert not journal.full
            journal.received([(str(number), b"x" * 100)])
            journal.forgotten(str(number))
