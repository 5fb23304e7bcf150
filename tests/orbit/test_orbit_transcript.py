"""The curl transcript of the ORBIT page against the dev runtime, with the real curl."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from kiwi_worker.testing.orbit_runtime import RunningRuntime, running_runtime

HERE = Path(__file__).parent
UNSHOWN_HEADERS = {"content-length"}
"""Header lines that a transport may add to those which the page shows."""


class Transcript:
    """A shell session in which the page's ids stand for the real ones."""

    def __init__(self, url: str) -> None:
        self.variables = {
            "B": url,
            "J": "content-type: application/json",
            "W": "authorization: Bearer worker-secret",
            "A": "authorization: Bearer admin-secret",
        }
        self.ids: dict[str, str] = {}
        self.latest_token = ""

    def play(self, command: str, expected: str) -> None:
        real = self._with_real_ids(command)
        name, equals, value = real.partition("=")
        if equals and name.isidentifier():
            self.variables[name] = value
            return
        answer = _shown(self._run(real))
        match = re.fullmatch(self._pattern(expected), answer, re.DOTALL)
        assert match is not None, f"{command}\nwants {expected}\ngot   {answer}"
        self.ids.update({f"{name[2:]}-…": found for name, found in match.groupdict().items()})
        for token in re.findall(r'"token":"([^"]+)"', answer):
            self.latest_token = token

    def _with_real_ids(self, command: str) -> str:
        for shown, found in self.ids.items():
            command = command.replace(shown, found)
        return command.replace('"token": "…"', f'"token": "{self.latest_token}"')

    def _run(self, command: str) -> str:
        done = subprocess.run(
            ["bash", "-c", command], env=self.variables | {"PATH": "/usr/bin:/bin"}, capture_output=True
        )
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout.decode()

    def _pattern(self, expected: str) -> str:
        pattern = re.escape(self._with_real_ids(expected))
        pattern = re.sub(r"([0-9a-f]{8})\\-…", r'(?P<id\1>[^"]+)', pattern)
        pattern = re.sub(r"\\?:\d{13}", r":\\d{13}", pattern)
        return pattern.replace("…", ".+?")


def _shown(answer: str) -> str:
    if not answer.startswith("HTTP/"):
        return answer
    head, _, body = answer.partition("\r\n\r\n")
    lines = [line for line in head.split("\r\n") if line.split(":")[0] not in UNSHOWN_HEADERS]
    return "\n".join([*lines, body] if body else lines)


def steps() -> Iterator[tuple[str, str]]:
    """Every command of the transcript, with what must come back."""
    lines = [line for line in (HERE / "transcript.txt").read_text("utf-8").split("\n") if line]
    lines = [line for line in lines if not line.startswith("#")]
    while lines:
        command = lines.pop(0)[2:]
        while not _whole(command):
            command += "\n" + lines.pop(0)
        expected = []
        while lines and not lines[0].startswith(("$ ", "+ ")):
            expected.append(lines.pop(0))
        yield command, "\n".join(expected)


def _whole(command: str) -> bool:
    try:
        shlex.split(command)
    except ValueError:
        return False
    return not command.endswith("\\")


@pytest.fixture
def runtime(tmp_path: Path) -> Iterator[RunningRuntime]:
    with running_runtime(
        HERE / "greet.toml", token="admin-secret", worker_token="worker-secret", db=tmp_path / "orbit.db"
    ) as running:
        yield running


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_the_transcript_of_the_page(runtime: RunningRuntime) -> None:
    transcript = Transcript(runtime.url)
    played = 0
    for command, expected in steps():
        transcript.play(command, expected)
        played += 1
    assert played > 30
    assert re.search(r"^deployed Greet@1\.0\.0 \(sha256:[0-9a-f]{12}\)$", runtime.output(), re.MULTILINE)
