"""What a test needs is there when it has to be."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parents[1]

TESTS = """
import pytest
def test_program(): pytest.skip("needs nothing-like-it")
def test_library(): pytest.importorskip("nothing_like_it")
@pytest.mark.skipif(True, reason="needs curl")
def test_mark(): ...
def test_machine(): pytest.skip("no IPv6 here")
"""


@pytest.mark.parametrize("required", ["1", ""])
def test_skips_for_missing_things_are_failures_when_everything_is_required(
    tmp_path: Path, required: str
) -> None:
    (tmp_path / "conftest.py").write_text((HERE / "conftest.py").read_text())
    (tmp_path / "test_needing.py").write_text(TESTS)
    (tmp_path / "test_whole.py").write_text("import pytest\npytest.importorskip('nothing_like_it')\n")
    environment = {**os.environ, "PYTHONPATH": str(HERE), "REQUIRE_SERVERS": required}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--continue-on-collection-errors",
    ]
    ended = subprocess.run(
        command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True, check=False
    )
    if required:
        assert "2 failed, 1 skipped, 2 errors" in ended.stdout
        assert ended.returncode == 1
    else:
        assert "5 skipped" in ended.stdout
