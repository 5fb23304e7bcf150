"""A torn tail is recovered; anything else that is not as it was written is refused and left alone."""

from __future__ import annotations

import functools
import os
import stat
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from journal_samples import crash, open_journal, recover, states

from kiwi_worker.engine.journal import read_journal
from kiwi_worker.engine.journal.image import DEGRADED_LINE
from kiwi_worker.errors import JournalError

State = dict[str | None, tuple[str, bytes, bool, int]]


@functools.cache
def sample() -> tuple[bytes, dict[int, State]]:
    """A journal's bytes, and what is open after each of its records, by where that record ends."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "journal")
        journal = open_journal(path)
        ends: dict[int, State] = {}

        def note() -> None:
            journal.flush()
            image = read_journal(str(path))
            ends[image.bytes] = {
                key: (entry.state, entry.body, entry.locked, entry.runs) for key, entry in image.entries
            }

        note()
        for act in (
            lambda: journal.received([("a", b"1" * 20), ("b", b"2" * 20), ("c", b"")]),
            lambda: journal.claimed("a"),
            lambda: journal.started("a"),
            lambda: journal.outcome("a", b"x" * 30),
            lambda: journal.forgotten("a"),
            lambda: journal.started("b", claimed=True),
        ):
            act()
            note()
        data = path.read_bytes()
        crash(journal)
        return data, ends


def write(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    path.chmod(0o600)


def test_a_tail_torn_at_each_byte_is_dropped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    data, ends = sample()
    path = tmp_path / "journal"
    for size in range(min(ends), len(data)):
        write(path, data[:size])
        whole = max(end for end in ends if end <= size)
        caplog.clear()
        left = recover(path)
        assert states(left) == ends[whole], size
        assert left.torn_bytes == size - whole
        said = [getattr(record, "action", "") for record in caplog.records]
        assert "journal_recovered" in said or size == whole
        assert states(recover(path)) == ends[whole], "and is gone"


def test_a_tail_of_zeros_is_dropped(tmp_path: Path) -> None:
    data, ends = sample()
    path = tmp_path / "journal"
    last = sorted(ends)[-2]
    for zeros in (
        data + bytes(4096),
        data[:last] + bytes(100),
        data[: last + 20] + bytes(len(data) - last - 20),
    ):
        write(path, zeros)
        assert states(recover(path)) in (ends[last], ends[len(data)])


def test_a_torn_header_is_no_journal(tmp_path: Path) -> None:
    data, ends = sample()
    path = tmp_path / "journal"
    for size in range(1, min(ends)):
        write(path, data[:size])
        with pytest.raises(JournalError):
            recover(path)
        assert path.read_bytes() == data[:size]


@given(st.data())
def test_a_flipped_bit_anywhere_is_refused(data: st.DataObject) -> None:
    whole, _ = sample()
    bit = data.draw(st.integers(0, len(whole) * 8 - 1))
    damaged = bytearray(whole)
    damaged[bit // 8] ^= 1 << bit % 8
    refuse(bytes(damaged))


@given(st.data(), st.binary(min_size=1, max_size=40))
def test_bytes_put_over_others_are_refused(data: st.DataObject, put: bytes) -> None:
    whole, _ = sample()
    place = data.draw(st.integers(0, len(whole) - len(put)))
    damaged = whole[:place] + put + whole[place + len(put) :]
    if damaged != whole and damaged[-4:].strip(b"\0") and not damaged.startswith(DEGRADED_LINE):
        refuse(damaged)


def refuse(damaged: bytes) -> None:
    """The damaged journal is refused, by worker and reader, and is left as it is."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "journal")
        write(path, damaged)
        with pytest.raises(JournalError, match=r"left as it|belongs to"):
            recover(path)
        assert path.read_bytes() == damaged
        assert os.listdir(directory) == ["journal"]


@pytest.mark.parametrize("content", [b"\0" * 100, b"hello\n", b"kiwi-worker journal 2 whole   \n", b"[x]"])
def test_a_foreign_file_is_refused_and_left_alone(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "journal"
    write(path, content)
    with pytest.raises(JournalError, match="not a journal of this version"):
        recover(path)
    with pytest.raises(JournalError, match="not a journal of this version"):
        read_journal(str(path))
    assert path.read_bytes() == content


def test_an_empty_file_becomes_a_journal(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    write(path, b"")
    assert read_journal(str(path)).worker_id is None
    assert len(recover(path)) == 0
    assert read_journal(str(path)).worker_id == "orders-1"


def test_a_rewrite_that_was_killed_leaves_the_journal(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    with open_journal(path) as journal:
        journal.received([("a", b"1")])
    write(tmp_path / "journal.new", b"half of a new jour")
    (tmp_path / "journal.new").chmod(0o644)
    with open_journal(path) as journal:
        assert set(states(journal.recovered)) == {"a"}
        assert os.listdir(tmp_path) == ["journal"]
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
