"""Without an extra: what works without it works, and what needs it says so on one line."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
EXTRAS = (
    "starlette",
    "uvicorn",
    "httptools",
    "uvloop",
    "redis",
    "grpc",
    "grpc_tools",
    "google",
    "watchfiles",
)


@pytest.fixture
def bare(tmp_path: Path) -> dict[str, str]:
    """An environment in which no library of an extra can be imported."""
    for name in EXTRAS:
        (tmp_path / f"{name}.py").write_text(f"raise ModuleNotFoundError('No module', name={name!r})\n")
    (tmp_path / "tasks.py").write_text(
        "from kiwi_worker import Worker\nworker = Worker()\n@worker.method\ndef hello(): ...\n"
    )
    return {**os.environ, "PYTHONPATH": str(tmp_path), "KIWI_AUTH_SECRET": "some-secret-here"}


def run(bare: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "kiwi_worker", *arguments],
        env=bare,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["run", "tasks", "--check"],
        ["call", "--help"],
        ["probe", "--help"],
        ["journal", "--help"],
        ["middleware", "--help"],
    ],
    ids=" ".join,
)
def test_it_works_without_extras(bare: dict[str, str], arguments: list[str]) -> None:
    ended = run(bare, *arguments)
    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.parametrize(
    ("arguments", "extra"),
    [
        (["middleware", "--port", "0"], "middleware"),
        (["orbit-runtime", "--deploy", "none.toml"], "middleware"),
        (["run", "tasks", "--reload"], "reload"),
        (["demo"], "middleware"),
    ],
    ids=lambda value: value if isinstance(value, str) else value[0],
)
def test_a_missing_extra_is_named(
    bare: dict[str, str], tmp_path: Path, arguments: list[str], extra: str
) -> None:
    bare["KIWI_MIDDLEWARE_DB"] = str(tmp_path / "m.db")
    ended = run(bare, *arguments)
    assert ended.returncode != 0
    assert len(ended.stderr.splitlines()) == 1
    assert f"pip install 'kiwi-worker[{extra}]'" in ended.stderr


@pytest.fixture
def without_grpc(bare: dict[str, str], tmp_path: Path) -> dict[str, str]:
    """An environment in which only the libraries of gRPC cannot be imported."""
    for name in EXTRAS:
        if name not in ("grpc", "grpc_tools", "google"):
            (tmp_path / f"{name}.py").unlink()
    return bare


def test_a_dev_runtime_that_lacks_grpc_serves_nothing_at_all(without_grpc: dict[str, str]) -> None:
    deploy = str(EXAMPLES / "greet.toml")
    ended = run(
        without_grpc, "orbit-runtime", "--deploy", deploy, "--port", "0", "--grpc-addr", "127.0.0.1:0"
    )
    assert (ended.returncode, ended.stdout) == (78, "")
    assert "pip install 'kiwi-worker[orbit-grpc]'" in ended.stderr


def test_the_example_over_grpc_says_what_is_missing_instead_of_waiting(without_grpc: dict[str, str]) -> None:
    ended = subprocess.run(
        [sys.executable, str(EXAMPLES / "orbit_in_one_go.py"), "grpc"],
        env=without_grpc,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 1
    assert "pip install 'kiwi-worker[orbit-grpc]'" in ended.stderr
