"""The address that is registered for the probe: the near end of the route to the middleware."""

from __future__ import annotations

import logging
import socket

import pytest

from kiwi_worker.errors import UnreachableError
from kiwi_worker.kiwi.probe import route_address


def own_address() -> str | None:
    """An address of this machine that is no loopback address, if it has one."""
    with socket.socket(type=socket.SOCK_DGRAM) as sock:
        try:
            sock.connect(("203.0.113.1", 9))
        except OSError:
            return None
        return str(sock.getsockname()[0])


def test_the_route_to_a_middleware_on_this_machine_starts_here(caplog: pytest.LogCaptureFixture) -> None:
    assert route_address("127.0.0.1", 8420) == "127.0.0.1"
    assert route_address("localhost", 8420) in ("127.0.0.1", "::1")
    assert not caplog.records


def test_the_route_is_asked_and_not_the_host_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where /etc/hosts maps the host name to 127.0.1.1."""
    own = own_address()
    if own is None:
        pytest.skip("no network here")
    monkeypatch.setattr(socket, "gethostname", lambda: "localhost")
    monkeypatch.setattr(socket, "gethostbyname", lambda _: "127.0.1.1")
    assert route_address("203.0.113.1", 8420) == own
    assert route_address(own, 8420) == own


def test_a_route_over_ipv6_gives_an_ipv6_address() -> None:
    try:
        assert route_address("[::1]", 8420) == route_address("::1", 8420) == "::1"
    except UnreachableError:
        pytest.skip("no IPv6 here")


def test_nothing_is_sent() -> None:
    with socket.socket(type=socket.SOCK_DGRAM) as listening:
        listening.bind(("127.0.0.1", 0))
        route_address(*listening.getsockname())
        listening.setblocking(False)
        with pytest.raises(BlockingIOError):
            listening.recv(1)


def test_an_unknown_name_is_an_error_that_says_what_to_set() -> None:
    with pytest.raises(
        UnreachableError, match=r"middleware, no\.such\.host\.invalid, is not known.*advertised_ip"
    ):
        route_address("no.such.host.invalid", 8420)


def test_no_route_is_an_error_that_says_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    class NoRoute(socket.socket):
        def connect(self, _: object) -> None:
            raise OSError(101, "Network is unreachable")

    monkeypatch.setattr(socket, "socket", NoRoute)
    with pytest.raises(
        UnreachableError, match=r"no route .*203\.0\.113\.1: Network is unreachable.*advertised_ip"
    ):
        route_address("203.0.113.1", 8420)


def test_the_second_address_of_a_name_is_tried_when_the_first_has_no_route(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class NoIpv6Route(socket.socket):
        def connect(self, address: tuple[object, ...]) -> None:
            if len(address) == 4:
                raise OSError(101, "Network is unreachable")
            super().connect(address)

    both = [
        (socket.AF_INET6, socket.SOCK_DGRAM, 17, "", ("2001:db8::1", 8420, 0, 0)),
        (socket.AF_INET, socket.SOCK_DGRAM, 17, "", ("127.0.0.1", 8420)),
    ]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: both)
    monkeypatch.setattr(socket, "socket", NoIpv6Route)
    assert route_address("middleware", 8420) == "127.0.0.1"


def test_a_loopback_route_to_another_machine_is_warned_about(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Loopback(socket.socket):
        def getsockname(self) -> tuple[str, int]:
            return ("127.0.0.1", 9)

        def connect(self, _: object) -> None:
            pass

    monkeypatch.setattr(socket, "socket", Loopback)
    with caplog.at_level(logging.WARNING, "kiwi_worker"):
        assert route_address("203.0.113.1", 8420) == "127.0.0.1"
    assert "set advertised_ip" in caplog.text
