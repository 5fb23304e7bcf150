"""The watch over secrets finds what it is there for."""

from __future__ import annotations

import base64
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parents[1]
SECRET = "a-marked-" + "secret"

TESTS = f"""
import logging, os, subprocess, sys
import pytest
from kiwi_worker.settings import Secret
secret = Secret("a-marked-" + "secret").reveal()

def test_print(): print("so:", secret)
def test_stderr(): os.write(2, secret.encode())
def test_record(): logging.getLogger("kiwi_worker.x").debug("so: %s", secret)
def test_field(): logging.getLogger("kiwi_worker.x").info("so", extra={{"found": [secret]}})
def test_error():
    try: raise ValueError(secret)
    except ValueError: logging.getLogger("kiwi_worker.x").debug("so", exc_info=True)
def test_base64(): print({base64.b64encode(b"svc:" + SECRET.encode() + b":x").decode()!r})
def test_child(): subprocess.run([sys.executable, "-c", f"print({{secret!r}})"])
def test_pipe(): subprocess.run([sys.executable, "-c", f"print({{secret!r}})"], capture_output=True)
def test_lines():
    command = [sys.executable, "-c", f"print({{secret!r}})"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process: list(process.stdout)
def test_token(): print("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJ3MSJ9.c2lnbmF0dXJl")
def test_header(): print("Authorization: Bearer opaque-opaque-opaque")
def test_environment():
    subprocess.run([sys.executable, "-c", "import os; print(os.environ['KIWI_AUTH_SECRET'])"],
        env={{**os.environ, "KIWI_AUTH_SECRET": "given-to-a-child"}})
@pytest.fixture
def telling():
    yield
    print(secret)
def test_teardown(telling): pass

def test_harmless(): print("a marked secret", repr(Secret(secret)))
@pytest.mark.prints_secrets
def test_allowed(): print(secret)
"""


@pytest.mark.prints_secrets
def test_a_secret_that_comes_out_anywhere_fails_its_test(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text((HERE / "conftest.py").read_text())
    (tmp_path / "test_printing.py").write_text(TESTS)
    ended = subprocess.run(
        [
            sys.executable,
            *["-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=short", "-rfE", "test_printing.py"],
        ],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(HERE)},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )

    found = [line.split("::")[1].split(" - ")[0] for line in ended.stdout.splitlines() if "::" in line[:40]]
    named = {name for name in found if name.startswith("test_")}
    expected = {line[4:].split("(")[0] for line in TESTS.splitlines() if line.startswith("def test_")}
    assert named == expected - {"test_harmless", "test_allowed"}
    assert "so: <SECRET>" in ended.stdout


@pytest.mark.parametrize("level", [logging.DEBUG, logging.ERROR])
def test_records_are_heard_at_every_level(level: int) -> None:
    assert logging.getLogger("kiwi_worker.any").isEnabledFor(level)
