"""Field reports on packages: gRPC only where it is asked for, and no compiler for the core."""

from __future__ import annotations

import configparser
import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path

import pytest
from programs import PACKAGES

NO_GRPC = """
import sys
for name in ("grpc", "grpc_tools", "google.protobuf"):
    sys.modules[name] = None
import kiwi_worker
from kiwi_worker import Worker, Context, MethodFailed, MethodError
from kiwi_worker.orbit import OrbitWorker, TaskError, Client
from kiwi_worker.errors import SettingsError
Worker(), OrbitWorker()
try:
    OrbitWorker(server="grpc://127.0.0.1:1", proto="assumed").start()
except SettingsError as error:
    assert "orbit-grpc" in str(error), error
else:
    raise SystemExit("gRPC was not missed")
"""


def test_report_84_the_core_neither_loads_nor_needs_grpc(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", NO_GRPC],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": PACKAGES},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def _requirements() -> dict[str, list[str]]:
    """The declared requirements: of the core, and of each extra."""
    root = Path(__file__).parents[2]
    declared = configparser.ConfigParser()
    declared.read(root / "setup.cfg")
    lists = {"": declared["options"]["install_requires"], **declared["options.extras_require"]}
    return {extra: [line for line in text.splitlines() if line] for extra, text in lists.items()}


def test_report_84_and_85_grpc_is_an_extra_with_no_pin_from_above() -> None:
    required = _requirements()
    assert not [one for one in required[""] if one.startswith(("grpc", "protobuf"))]
    assert {one.split(">")[0] for one in required["orbit-grpc"]} == {"grpcio", "grpcio-tools", "protobuf"}
    assert not [one for one in required["orbit-grpc"] if "<" in one or "==" in one]


def test_report_85_what_the_core_needs_is_installed_with_it() -> None:
    try:
        installed = importlib.metadata.requires("kiwi-worker") or []
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("run from the sources, where nothing is installed")
    core = [one for one in installed if "extra ==" not in one]
    assert not [one for one in core if one.startswith(("grpc", "protobuf"))]


def test_report_85_the_core_installs_where_nothing_can_be_compiled(tmp_path: Path) -> None:
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    pip += ["--timeout", "5", "--retries", "0", "--dest", str(tmp_path)]
    probe = subprocess.run([*pip, "--no-deps", "click"], capture_output=True, timeout=60, check=False)
    if probe.returncode:
        pytest.skip("no package index is in reach")
    core = [one for one in _requirements()[""] if "python_version" not in one]
    alpine = ["--only-binary=:all:", "--platform", "musllinux_1_2_x86_64", "--python-version", "3.12"]
    done = subprocess.run([*pip, *alpine, *core], capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    assert {path.suffix for path in tmp_path.iterdir()} == {".whl"}
