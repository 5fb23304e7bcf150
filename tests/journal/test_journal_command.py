"""`kiwi-worker journal FILE`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result
from journal_samples import open_journal

from kiwi_worker.cli.journal import journal as command


def show(*arguments: str) -> Result:
    return CliRunner().invoke(command, arguments)


def show_json(*arguments: str) -> Any:
    result = show("--json", *arguments)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_it_shows_a_journal_in_use(tmp_path: Path) -> None:
    path = str(tmp_path / "journal")
    with open_journal(tmp_path / "journal") as journal:
        journal.received([("a", b'{"secret": 1}'), ("b\x1b[2J", b"2"), ("", b"3")])
        journal.started("a", claimed=True)
        before = (tmp_path / "journal").read_bytes()
        report = show_json(path)
        text = show(path).output
        assert (tmp_path / "journal").read_bytes() == before
    ages = [entry.pop("age_seconds") for entry in report["entries"]]
    assert all(0 <= age < 60 for age in ages)
    assert report["entries"] == [
        {"key": "a", "state": "started", "runs": 1, "locked": True, "body_bytes": 13},
        {"key": "b\x1b[2J", "state": "waiting", "runs": 0, "locked": False, "body_bytes": 1},
        {"key": None, "state": "waiting", "runs": 0, "locked": False, "body_bytes": 1},
    ]
    assert (report["worker_id"], report["torn_bytes"], report["degraded"]) == ("orders-1", 0, False)
    assert "orders-1" in text
    assert "3 open" in text
    assert "\x1b" not in text
    assert "secret" not in text


def test_bodies_are_shown_when_asked_for(tmp_path: Path) -> None:
    path = str(tmp_path / "journal")
    with open_journal(tmp_path / "journal") as journal:
        journal.outcome("a", b'{"x": 1}\xff')
    assert show_json("--bodies", path)["entries"][0]["body"] == '{"x": 1}\\xff'
    assert '{\\"x\\": 1}' in show("--bodies", path).output


def test_half_a_record_at_the_end_is_named(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    open_journal(path).close()
    with path.open("ab") as file:
        file.write(b"half")
    assert "last 4 bytes are half a record" in show(str(path)).output


def test_what_is_no_journal_is_refused(tmp_path: Path) -> None:
    (tmp_path / "other").write_bytes(b"something else")
    for name in ("other", "missing", ""):
        result = show(str(tmp_path / name))
        assert result.exit_code == 78
        assert result.stderr.startswith("kiwi-worker journal: journal ")


def test_the_command_is_read_only_for_an_empty_file(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    assert show_json(str(tmp_path / "empty"))["worker_id"] is None
    assert "nobody yet" in show(str(tmp_path / "empty")).output
