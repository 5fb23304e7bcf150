"""The wheel and the source distribution hold what they should, and nothing else."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

setuptools = pytest.importorskip("setuptools", minversion="77")
ROOT = Path(__file__).parents[2]
BUILD = "from setuptools import build_meta as b; b.build_wheel('dist'); b.build_sdist('dist')"

CORE = {"requests", "urllib3", "pyjwt", "cachetools", "click", "msgspec", "tomli"}
EXTRAS = {"all", "jwks", "metrics", "middleware", "orbit-grpc", "reload"}


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a build of a copy of the checkout makes."""
    copy = tmp_path_factory.mktemp("checkout")
    for name in ("kiwi_worker", "tests", "examples", "benchmarks"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__", "results"))
    for name in ("setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    built = subprocess.run(
        [sys.executable, "-c", BUILD], cwd=copy, capture_output=True, text=True, check=False
    )
    assert built.returncode == 0, built.stderr
    return copy / "dist"


@pytest.fixture(scope="module")
def wheel(dist: Path) -> zipfile.ZipFile:
    (path,) = dist.glob("*.whl")
    with zipfile.ZipFile(path) as opened:
        return opened


def test_the_wheel_holds_every_file_of_the_package_and_no_other(wheel: zipfile.ZipFile) -> None:
    package = ROOT / "kiwi_worker"
    kept = {".py", ".proto", ".html", ".typed"}
    files = (path for path in package.rglob("*") if path.suffix in kept or path.name == "py.typed")
    expected = {path.relative_to(ROOT).as_posix() for path in files}
    found = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert found == expected
    assert {"kiwi_worker/py.typed", "kiwi_worker/orbit/proto/worker.proto"} <= found


def test_the_source_distribution_holds_what_a_build_needs_and_no_tests(dist: Path) -> None:
    (path,) = dist.glob("*.tar.gz")
    with tarfile.open(path) as opened:
        names = {name.partition("/")[2] for name in opened.getnames()}
    assert {"setup.cfg", "pyproject.toml", "README.md", "LICENSE", "kiwi_worker/py.typed"} <= names
    assert {"kiwi_worker/orbit/proto/worker.proto"} <= names
    assert not [name for name in names if name.startswith(("tests", "examples", "benchmarks"))]


def test_what_installing_brings(wheel: zipfile.ZipFile) -> None:
    (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    with zipfile.ZipFile(wheel.filename or "") as opened:
        metadata = Parser().parsestr(opened.read(name).decode())
    needed = [line for line in metadata.get_all("Requires-Dist") or [] if "extra ==" not in line]
    assert {line.replace(">", "<").partition("<")[0] for line in needed} == CORE
    assert set(metadata.get_all("Provides-Extra") or []) == EXTRAS
    assert metadata["Requires-Python"] == ">=3.10"
    assert metadata["License"] == "Apache-2.0" or metadata["License-Expression"] == "Apache-2.0"
