"""What is open when a process ends is what the next one finds."""

from __future__ import annotations

import os
import stat
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from journal_samples import crash, open_journal, recover, states

from kiwi_worker.engine.journal import Journal, read_journal


def test_each_state_is_recovered(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journal = open_journal(path)
    journal.received([(key, key.encode() * 3) for key in ("waits", "locked", "ran", "both", "done", "gone")])
    journal.claimed("locked")
    assert journal.started("ran") == 1
    assert journal.started("both", claimed=True) == 1
    journal.started("done")
    journal.outcome("done", b"result")
    journal.outcome("gone", b"result")
    journal.forgotten("gone")
    journal.flush()
    crash(journal)

    with open_journal(path) as again:
        left = again.recovered
    assert states(left) == {
        "done": ("outcome", b"result", False, 0),
        "waits": ("waiting", b"waitswaitswaits", False, 0),
        "locked": ("claimed", b"lockedlockedlocked", True, 0),
        "ran": ("started", b"ranranran", False, 1),
        "both": ("started", b"bothbothboth", True, 1),
    }
    assert [one.key for one in left.waiting] == ["waits", "locked"]
    assert not left.degraded
    assert left.torn_bytes == 0


def test_what_is_recovered_stays_open_until_it_is_forgotten(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    with open_journal(path) as journal:
        journal.received([("a", b"1"), ("b", b"2")])
    for _ in range(3):
        assert len(recover(path)) == 2
    with open_journal(path) as journal:
        journal.forgotten("a")
    assert set(states(recover(path))) == {"b"}


def test_runs_are_counted_over_restarts(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    with open_journal(path) as journal:
        journal.received([("kills", b"")])
    for run in range(1, 5):
        journal = open_journal(path)
        assert journal.started("kills") == run
        crash(journal)
        assert recover(path).started[0].runs == run


def test_an_outcome_needs_no_receipt(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journal = open_journal(path)
    journal.outcome("attempt-1", b"{}")
    journal.outcome("attempt-1", b"replaced")
    journal.outcome("attempt-2", b"{}")
    journal.forgotten("attempt-2")
    journal.flush()
    crash(journal)
    assert states(recover(path)) == {"attempt-1": ("outcome", b"replaced", False, 0)}


def test_a_duplicate_of_an_open_entry_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journal = open_journal(path)
    journal.received([("a", b"first"), ("a", b"second")])
    journal.started("a")
    journal.received([("a", b"third")])
    crash(journal)
    assert states(recover(path)) == {"a": ("started", b"first", False, 1)}


def test_what_is_not_open_is_not_started(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journal = open_journal(path)
    assert journal.started("unknown") == 0
    journal.claimed("unknown")
    journal.forgotten("unknown")
    crash(journal)
    assert len(recover(path)) == 0


def test_elements_without_an_id_are_kept_and_forgotten_together(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journal = open_journal(path)
    journal.received([("", b"one"), ("a", b"two"), ("", b"three")])
    crash(journal)
    journal = open_journal(path)
    assert [(one.key, one.body) for one in journal.recovered.waiting] == [
        ("a", b"two"),
        (None, b"one"),
        (None, b"three"),
    ]
    journal.forgotten("")
    journal.flush()
    crash(journal)
    assert set(states(recover(path))) == {"a"}


def test_a_deferred_note_is_written_with_the_next_record(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journal = open_journal(path)
    journal.received([("a", b""), ("b", b"")])
    journal.forgotten("a")
    journal.started("b")
    crash(journal)
    assert set(states(recover(path))) == {"b"}


def test_deferred_notes_do_not_pile_up(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    with open_journal(path) as journal:
        journal.received([(str(number), b"") for number in range(1000)])
        for number in range(1000):
            journal.forgotten(str(number))
        assert len(read_journal(str(path)).entries) < 200


def test_what_is_too_old_is_reported_and_forgotten(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    with open_journal(path) as journal:
        journal.received([("a", b"1"), ("", b"2")])
        journal.outcome("b", b"3")
    left = recover(path, max_age_seconds=0.0)
    assert [(one.key, one.state) for one in left.expired] == [
        ("a", "waiting"),
        ("b", "outcome"),
        (None, "waiting"),
    ]
    assert len(left) == 0
    assert len(recover(path)) == 0


def test_age_is_counted_from_the_receipt_over_restarts(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    with open_journal(path) as journal:
        journal.received([("a", b"1")])
    first = recover(path).waiting[0]
    second = recover(path, max_age_seconds=3600).waiting[0]
    assert second.age_seconds > first.age_seconds >= 0


def test_after_close_nothing_is_written_and_nothing_raised(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journal = open_journal(path)
    journal.received([("a", b"1")])
    journal.close()
    journal.close()
    before = path.read_bytes()
    journal.received([("b", b"1")])
    journal.started("a")
    journal.outcome("a", b"late")
    journal.forgotten("a")
    journal.flush()
    assert path.read_bytes() == before
    assert not journal.stats.degraded
    assert set(states(recover(path))) == {"a"}


def test_the_file_is_for_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    before = os.umask(0)
    try:
        with open_journal(path, compact_bytes=100) as journal:
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            journal.received([("a", b"x" * 200)])
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
    finally:
        os.umask(before)


def test_stats(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    with open_journal(path) as journal:
        journal.received([("a", b"1"), ("b", b"2")])
        journal.forgotten("b")
        journal.flush()
        assert journal.stats == (path.stat().st_size, 1, False)


def test_an_id_received_again_after_it_was_forgotten_is_open(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journal = open_journal(path)
    journal.received([("a", b"first")])
    journal.forgotten("a")
    journal.received([("a", b"second")])
    crash(journal)
    assert states(recover(path)) == {"a": ("waiting", b"second", False, 0)}


@pytest.fixture
def restless_threads() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("restless_threads")
def test_entries_are_forgotten_while_the_file_is_rewritten(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    keys = [str(number) for number in range(5000)]
    with open_journal(path, compact_bytes=1 << 30, max_bytes=1 << 30) as journal:
        for key in keys:
            journal.received([(key, b"x" * 100)])

        def forget() -> None:
            for _ in range(10):
                for key in keys[::2]:
                    journal.forgotten(key)
                for key in keys[:1000:2]:
                    journal.received([(key, b"again")])
            for key in keys[::2]:
                journal.forgotten(key)

        thread = threading.Thread(target=forget)
        thread.start()
        while thread.is_alive():
            with journal._lock:
                journal._rewrite(durable=False)
            thread.join(0.001)  # whoever lets go of a lock and asks again at once leaves it to nobody
        thread.join()
    assert set(states(recover(path))) == set(keys[1::2])


def test_only_interval_has_a_thread(tmp_path: Path) -> None:
    for sync, count in ((None, 0), ("always", 0), ("interval", 1)):
        with open_journal(tmp_path / "journal", sync=sync):
            assert [thread.name for thread in threading.enumerate()].count("kiwi-journal-sync") == count
    assert "kiwi-journal-sync" not in [thread.name for thread in threading.enumerate()]


@pytest.mark.parametrize("sync", ["interval", "always"])
def test_with_sync_the_same_is_recovered(tmp_path: Path, sync: str) -> None:
    path = tmp_path / "journal"
    journal = open_journal(path, sync=sync, compact_bytes=500)
    for number in range(20):
        journal.received([(str(number), b"x" * 50)])
        journal.started(str(number), claimed=True)
        journal.outcome(str(number), b"y")
        if number % 2:
            journal.forgotten(str(number))
    journal.close()
    assert set(states(recover(path))) == {str(number) for number in range(0, 20, 2)}


KEYS = st.sampled_from(["a", "b", "c", "\ud800", "kéy/\n\0", "k" * 300])
BODIES = st.binary(max_size=300)
ACTS = st.one_of(
    st.tuples(st.just("received"), st.lists(st.tuples(st.one_of(KEYS, st.just("")), BODIES), max_size=5)),
    st.tuples(st.just("claimed"), KEYS),
    st.tuples(st.just("started"), KEYS, st.booleans()),
    st.tuples(st.just("outcome"), KEYS, BODIES),
    st.tuples(st.just("forgotten"), st.one_of(KEYS, st.just(""))),
    st.tuples(st.just("restart")),
    st.tuples(st.just("reopen")),
)


class Model:
    """What the journal should hold, in the plainest words."""

    def __init__(self) -> None:
        self.open: dict[str, list[object]] = {}
        self.nameless: list[bytes] = []

    def received(self, batch: list[tuple[str, bytes]]) -> None:
        for key, body in batch:
            if key:
                self.open.setdefault(key, ["waiting", body, False, 0])
            else:
                self.nameless.append(body)

    def claimed(self, key: str) -> None:
        if key in self.open:
            self.open[key][2] = True
            if self.open[key][0] == "waiting":
                self.open[key][0] = "claimed"

    def started(self, key: str, claimed: bool) -> None:
        if key in self.open:
            entry = self.open[key]
            entry[3] = int(str(entry[3])) + 1
            entry[2] = entry[2] or claimed
            if entry[0] != "outcome":
                entry[0] = "started"

    def outcome(self, key: str, body: bytes) -> None:
        self.open[key] = ["outcome", body, False, 0]

    def forgotten(self, key: str) -> None:
        if key:
            self.open.pop(key, None)
        else:
            self.nameless.clear()

    def check(self, journal: Journal) -> None:
        found = journal.recovered
        named = {one.key: one for one in (*found.outcomes, *found.started, *found.waiting) if one.key}
        assert set(named) == set(self.open)
        for key, (state, body, locked, runs) in self.open.items():
            one = named[key]
            assert (one.state, one.body) == (state, body)
            assert (one.locked, one.runs) == (locked, runs) or state == "outcome"
        assert [one.body for one in found.waiting if one.key is None] == self.nameless


@given(st.lists(ACTS, max_size=40), st.sampled_from([1, 400, 1 << 20]))
@settings(deadline=None, max_examples=150)
def test_any_history_is_recovered(acts: list[tuple[object, ...]], compact_bytes: int) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "journal")
        journal, model = open_journal(path, compact_bytes=compact_bytes), Model()
        for name, *arguments in [*acts, ("reopen",)]:
            if name in ("restart", "reopen"):
                journal.flush()
                crash(journal) if name == "restart" else journal.close()
                journal = open_journal(path, compact_bytes=compact_bytes)
                model.check(journal)
            elif name == "started":
                journal.started(str(arguments[0]), claimed=bool(arguments[1]))
                model.started(str(arguments[0]), bool(arguments[1]))
            else:
                getattr(journal, str(name))(*arguments)
                getattr(model, str(name))(*arguments)
        journal.close()
