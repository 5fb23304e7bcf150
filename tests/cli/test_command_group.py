"""The group of commands: quick, lazy, and clear about mistakes."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import entry_points

import click
import pytest
from click.testing import CliRunner

from kiwi_worker import __version__
from kiwi_worker.cli import main
from kiwi_worker.cli.group import COMMANDS

HEAVY = ("requests", "urllib3", "starlette", "uvicorn", "asyncio", "grpc", "msgspec", "jwt")


def test_help_needs_no_extra_and_loads_no_command() -> None:
    code = (
        "import sys\nfrom kiwi_worker.cli import main\n"
        "main(['--help'], prog_name='kiwi-worker', standalone_mode=False)\n"
        "print(*sorted(name.split('.')[0] for name in sys.modules), file=sys.stderr)\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert all(name in ended.stdout for name in COMMANDS)
    assert not set(HEAVY) & set(ended.stderr.split())


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_the_help_of_the_group_is_that_of_the_command(name: str) -> None:
    command = main.get_command(click.Context(main), name)
    assert command is not None
    assert COMMANDS[name].help == command.get_short_help_str(limit=1000)
    assert command.name == name


def test_the_version() -> None:
    assert CliRunner().invoke(main, ["--version"]).output == f"kiwi-worker, version {__version__}\n"


@pytest.mark.parametrize(
    ("wrong", "hint"), [("cal", "did you mean call?"), ("xyz", "there are bench, call, ")]
)
def test_a_misspelt_command(wrong: str, hint: str) -> None:
    result = CliRunner().invoke(main, [wrong])
    assert result.exit_code == 2
    assert hint in result.stderr
    assert result.stderr.count("\n") == 1


def test_the_module_is_the_command() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "kiwi_worker", "run", "--nonsense"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith("kiwi-worker run: No such option")


def test_the_entry_point() -> None:
    (found,) = (point for point in entry_points(group="console_scripts") if point.name == "kiwi-worker")
    assert found.load() is main


def test_a_reader_that_goes_away_is_no_traceback() -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "kiwi_worker", "run", "--help"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    with process.stderr:
        assert process.stderr.read() == ""
    assert process.wait(30) in (0, 1, 141)  # 1: click itself saw it first
