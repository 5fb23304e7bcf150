"""Channels and seldom clients that are closed when their test ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from transport_certificates import Authority

from kiwi_worker.transport import Channel, Endpoint, SeldomClient


@pytest.fixture
def channel() -> Iterator[Callable[..., Channel]]:
    """Makes channels: `channel(url, max_body=…, proxy=…)`."""
    made: list[Channel] = []

    def make(url: str, *, connect_timeout: float = 5.0, max_body: int = 1 << 24, **how: Any) -> Channel:
        endpoint = Endpoint(url, **how)
        made.append(
            Channel(endpoint, user_agent="test/1", connect_timeout=connect_timeout, max_body=max_body)
        )
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def seldom() -> Iterator[Callable[..., SeldomClient]]:
    """Makes seldom clients: `seldom(url, proxy=…)`."""
    made: list[SeldomClient] = []

    def make(url: str, *, connect_timeout: float = 5.0, max_body: int = 1 << 24, **how: Any) -> SeldomClient:
        endpoint = Endpoint(url, **how)
        made.append(
            SeldomClient(endpoint, user_agent="test/1", connect_timeout=connect_timeout, max_body=max_body)
        )
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture(params=["channel", "seldom"])
def call(
    request: pytest.FixtureRequest, channel: Callable[..., Channel], seldom: Callable[..., SeldomClient]
) -> Callable[..., Any]:
    """Makes calls in either way: `call(url, **endpoint)(method, path, body=…, authorization=…)`."""

    def make(url: str, **how: Any) -> Callable[..., Any]:
        if request.param == "channel":
            kept = channel(url, **how)
            return lambda method, path, body=None, authorization=None, read_timeout=10.0: kept.call(
                method, path, body, authorization=authorization, read_timeout=read_timeout
            )
        client = seldom(url, **how)
        return lambda method, path, body=None, authorization=None, read_timeout=10.0: client.call(
            method, path, json=body, authorization=authorization, read_timeout=read_timeout
        )

    return make


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """The private authority that tests trust by its file."""
    return Authority(tmp_path_factory.mktemp("authority"), "authority")


@pytest.fixture(scope="session")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """An authority that nobody trusts."""
    return Authority(tmp_path_factory.mktemp("stranger"), "stranger")
