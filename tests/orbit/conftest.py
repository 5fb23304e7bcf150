"""What the tests of the ORBIT side share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kiwi_worker.testing import MisbehavingServer

from .certificates import Authority
from .links import LINKS, Link, linked
from .workers import Server


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """An authority for the whole run, as making keys takes time."""
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture
def greet() -> Path:
    """The page's example workflow."""
    return Path(__file__).parent / "greet.toml"


@pytest.fixture(params=LINKS)
def link(request: pytest.FixtureRequest, tmp_path: Path, authority: Authority) -> Iterator[Link]:
    """A runtime, reached in each way a worker can reach it."""
    if request.param.startswith("grpc"):
        pytest.importorskip("grpc")
    with linked(request.param, tmp_path, authority) as running:
        yield running


@pytest.fixture
def server() -> Iterator[Server]:
    """A misbehaving server; the heartbeat interval is a sixth of the session time-out."""
    with MisbehavingServer.orbit(session_timeout_seconds=3) as running:
        yield running
