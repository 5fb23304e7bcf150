"""The static types of decorated functions, as mypy sees them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

api = pytest.importorskip("mypy.api")
HERE = Path(__file__).parent


def errors_in(file: str) -> list[tuple[int, str]]:
    output, problems, _ = api.run(
        [
            *("--strict", "--no-error-summary", "--hide-error-context", "--no-incremental"),
            *("--cache-dir", "/dev/null", "--follow-imports", "silent", "--explicit-package-bases"),
            str(HERE / file),
        ]
    )
    assert problems == ""
    found = re.findall(rf"{re.escape(file)}:(\d+): error: .*\[([a-z-]+)\]", output)
    return list(dict.fromkeys((int(line), code) for line, code in found))


def test_right_use_is_accepted() -> None:
    assert errors_in("typing_accepted.py") == []


def test_wrong_use_is_rejected() -> None:
    lines = (HERE / "typing_rejected.py").read_text().splitlines()
    expected = [
        (number, line.partition("# error: ")[2])
        for number, line in enumerate(lines, 1)
        if "# error: " in line
    ]
    assert errors_in("typing_rejected.py") == expected
