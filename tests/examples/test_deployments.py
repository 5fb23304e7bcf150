"""The systemd unit and the Kubernetes manifest: what they say is right, and the documentation shows them."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from configparser import RawConfigParser
from pathlib import Path
from typing import Any

import pytest

from kiwi_worker.settings import KiwiSettings

ROOT = Path(__file__).parents[2]
UNIT = ROOT / "examples" / "systemd" / "shop-worker.service"
MANIFEST = ROOT / "examples" / "kubernetes" / "shop-worker.yaml"
MODULE = (
    "from kiwi_worker import Worker\nworker = Worker()\n@worker.method\ndef hello() -> str: return 'hello'\n"
)


@pytest.mark.parametrize(("page", "example"), [("systemd", UNIT), ("kubernetes", MANIFEST)])
def test_the_documentation_shows_the_example(page: str, example: Path) -> None:
    text = (ROOT / "docs" / "how-to" / f"{page}.md").read_text()
    assert example.read_text() in re.findall(r"```\w+\n(.*?)```", text, re.DOTALL)


def checked_probe(command: list[str], environment: Mapping[str, str]) -> None:
    """The command asks for the health that these variables name, and finds nobody there."""
    assert command[:2] == ["kiwi-worker", "status"]
    ended = subprocess.run(
        [sys.executable, "-m", "kiwi_worker", *command[1:]],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, len(ended.stderr.splitlines())) == (3, 1)


def checked(folder: Path, command: list[str], environment: Mapping[str, str]) -> str:
    """What `--check` says to the command, with the module it names in a folder."""
    assert command[:2] == ["kiwi-worker", "run"]
    (folder / "shop").mkdir()
    (folder / "shop" / "tasks.py").write_text(MODULE)
    secret = folder / "secret"
    secret.write_text("a-secret-from-a-file")
    arguments = [argument.replace("%d/secret", str(secret)) for argument in command[1:]]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("KIWI_")}
    given = {name: str(secret) if name.endswith("_FILE") else value for name, value in environment.items()}
    ended = subprocess.run(
        [sys.executable, "-m", "kiwi_worker", *arguments, "--check"],
        cwd=folder,
        env={**clean, **given},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    return ended.stdout


@pytest.fixture
def unit() -> RawConfigParser:
    class Lists(dict[str, str]):
        """Joins what a unit says several times, as systemd does."""

        def __setitem__(self, key: str, value: Any) -> None:
            before = self.get(key)
            joined = isinstance(value, list) and isinstance(before, list)
            super().__setitem__(key, before + value if joined else value)  # type: ignore[operator]

    parser = RawConfigParser(dict_type=Lists, strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(UNIT)
    return parser


def test_the_unit_starts_a_worker_with_settings_that_exist(unit: RawConfigParser, tmp_path: Path) -> None:
    service = unit["Service"]
    command = shlex.split(service["ExecStart"])
    variables = dict(pair.split("=", 1) for pair in service["Environment"].split())
    state = tmp_path / "state" / "shop"
    state.mkdir(parents=True)
    given = {
        name: value.replace("%S", str(tmp_path / "state")).replace("%H", "host")
        for name, value in variables.items()
    }
    output = checked(tmp_path, [Path(command[0]).name, *command[1:]], given)
    assert "worker_id = 'shop-host'" in output
    assert "auth_secret_file" in output


def test_the_unit_gives_more_time_than_the_grace_period(unit: RawConfigParser) -> None:
    assert int(unit["Service"]["TimeoutStopSec"]) > KiwiSettings(worker_id="w").grace_period
    assert unit["Service"]["RestartPreventExitStatus"].split() == ["77", "78"]


def test_the_unit_listens_to_what_the_worker_tells_systemd(unit: RawConfigParser) -> None:
    told = {name: unit["Service"][name] for name in ("Type", "TimeoutStartSec", "WatchdogSec")}
    assert told == {"Type": "notify", "TimeoutStartSec": "infinity", "WatchdogSec": "60"}


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd here")
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text().replace("/opt/shop/.venv/bin/kiwi-worker", "/bin/true"))
    ended = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True, check=False)
    assert [line for line in ended.stderr.splitlines() if UNIT.name in line] == []


@pytest.fixture
def pod() -> dict[str, Any]:
    yaml = pytest.importorskip("yaml")
    manifest = yaml.safe_load(MANIFEST.read_text())
    spec: dict[str, Any] = manifest["spec"]["template"]["spec"]
    assert manifest["spec"]["selector"]["matchLabels"] == manifest["spec"]["template"]["metadata"]["labels"]
    return spec


def test_the_manifest_starts_a_worker_with_settings_that_exist(pod: dict[str, Any], tmp_path: Path) -> None:
    (container,) = pod["containers"]
    variables = {one["name"]: one.get("value", "from-metadata") for one in container["env"]}
    output = checked(tmp_path, container["command"], variables)
    assert "worker_id = 'from-metadata'" in output
    assert "run_mode = 'eager'" in output


@pytest.mark.parametrize("probe", ["livenessProbe", "readinessProbe"])
def test_the_manifest_probes_the_health_that_the_worker_tells(
    pod: dict[str, Any], tmp_path: Path, probe: str
) -> None:
    (container,) = pod["containers"]
    names = {one["name"] for one in container["env"]}
    checked_probe(container[probe]["exec"]["command"], {"KIWI_HEALTH_FILE": str(tmp_path / "health.json")})
    assert "KIWI_HEALTH_FILE" in names


def test_the_manifest_gives_more_time_than_the_grace_period(pod: dict[str, Any]) -> None:
    assert pod["terminationGracePeriodSeconds"] > KiwiSettings(worker_id="w").grace_period
    (container,) = pod["containers"]
    mounted = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert {volume["name"] for volume in pod["volumes"]} == set(mounted)
    secret = next(one["value"] for one in container["env"] if one["name"] == "KIWI_AUTH_SECRET_FILE")
    assert secret.startswith(mounted["secrets"])
