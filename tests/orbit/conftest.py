"""What the tests of the ORBIT side share."""

from __future__ import annotations

from pathlib import Path

import pytest

from .certificates import Authority


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """An authority for the whole run, as making keys takes time."""
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture
def greet() -> Path:
    """The page's example workflow."""
    return Path(__file__).parent / "greet.toml"
