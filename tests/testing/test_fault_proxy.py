"""The proxy: each way a link can break, seen by a plain client in front of a real server."""

from __future__ import annotations

import http.client
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from kiwi_worker.testing import FaultProxy, KiwiServer

from .conftest import LIMIT, KiwiClient, PlainClient, read_all

HEARTBEAT = "/worker/heartbeat/w1"


@pytest.fixture
def proxy(kiwi: KiwiServer) -> Iterator[FaultProxy]:
    with FaultProxy(kiwi.url) as proxy:
        yield proxy


@pytest.fixture
def client(proxy: FaultProxy, worker: KiwiClient) -> Iterator[PlainClient]:
    client = PlainClient(proxy.address, dict(worker.headers))
    yield client
    client.close()


def test_it_passes_everything_on(kiwi: KiwiServer, proxy: FaultProxy, client: PlainClient) -> None:
    kiwi.enqueue("hello", "x" * 500_000)
    assert len(client.call("GET", "/worker/messages")[1]) > 500_000
    assert client.call("GET", HEARTBEAT)[1] == b"true"
    assert proxy.open_connections == 1
    assert proxy.struck == []
    host, port = proxy.address
    assert proxy.url == f"http://{host}:{port}"


@pytest.mark.parametrize("how", ["reset", "close"])
def test_cut_ends_connections_and_refuses_new_ones_until_restored(
    proxy: FaultProxy, client: PlainClient, how: str
) -> None:
    client.call("GET", HEARTBEAT)
    sock = client.connection.sock
    proxy.cut(how)  # type: ignore[arg-type]
    if how == "reset":
        with pytest.raises(ConnectionResetError):
            sock.recv(1)
    else:
        assert sock.recv(1) == b""
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(proxy.address, LIMIT)
    client.close()
    proxy.restore()
    assert client.call("GET", HEARTBEAT)[1] == b"true"


def test_a_silent_cut_holds_data_back_and_restore_lets_it_through(
    kiwi: KiwiServer, proxy: FaultProxy, client: PlainClient
) -> None:
    client.call("GET", HEARTBEAT)
    proxy.cut("silent")
    client.send("GET", HEARTBEAT)
    client.connection.sock.settimeout(0.1)
    with pytest.raises(TimeoutError):
        client.connection.sock.recv(1)
    assert len(kiwi.calls_named("heartbeat")) == 1
    proxy.restore()
    client.connection.sock.settimeout(LIMIT)
    assert client.connection.getresponse().read() == b"true"


def test_half_open_connections_stay_and_new_ones_work(
    kiwi: KiwiServer, proxy: FaultProxy, client: PlainClient
) -> None:
    client.call("GET", HEARTBEAT)
    proxy.half_open()
    client.send("GET", HEARTBEAT)
    client.connection.sock.settimeout(0.1)
    with pytest.raises(TimeoutError):
        client.connection.sock.recv(1)
    client.close()
    assert client.call("GET", HEARTBEAT)[1] == b"true"
    assert len(kiwi.calls_named("heartbeat")) == 2


def test_dropped_connections_can_be_opened_again(proxy: FaultProxy, client: PlainClient) -> None:
    client.call("GET", HEARTBEAT)
    proxy.drop_connections()
    with pytest.raises(ConnectionResetError):
        client.connection.sock.recv(1)
    client.close()
    assert client.call("GET", HEARTBEAT)[1] == b"true"


def test_delay_and_throttle(proxy: FaultProxy, client: PlainClient) -> None:
    proxy.delay(0.1)
    started = time.monotonic()
    client.call("GET", HEARTBEAT)
    assert time.monotonic() - started >= 0.2
    proxy.delay(0)
    proxy.throttle(2000)
    started = time.monotonic()
    answer, body = client.call("GET", HEARTBEAT)
    assert time.monotonic() - started >= len(str(answer.headers)) / 2000
    assert body == b"true"
    proxy.throttle(None)


def test_idle_links_are_dropped(kiwi: KiwiServer, worker: KiwiClient) -> None:
    with FaultProxy(kiwi.url, idle_seconds=0.1) as proxy:
        client = PlainClient(proxy.address, dict(worker.headers))
        client.call("GET", HEARTBEAT)
        assert client.connection.sock.recv(1) == b""
        client.close()


def test_a_random_partial_answer_is_a_part(kiwi: KiwiServer, worker: KiwiClient) -> None:
    whole = read_all(_closing(kiwi.address, worker))
    with FaultProxy(kiwi.url, fault_rate=1.0, faults=["partial_answer"]) as proxy:
        part = read_all(_closing(proxy.address, worker))
    assert 0 < len(part) < len(whole)
    assert len(kiwi.calls_named("heartbeat")) == 2


@pytest.mark.parametrize("fault", ["drop_request", "drop_answer"])
def test_random_faults_by_request(kiwi: KiwiServer, worker: KiwiClient, fault: str) -> None:
    with FaultProxy(kiwi.url, fault_rate=1.0, faults=[fault], seed=1) as proxy:  # type: ignore[list-item]
        client = PlainClient(proxy.address, dict(worker.headers))
        with pytest.raises((ConnectionError, http.client.HTTPException)):
            client.call("GET", HEARTBEAT)
        client.close()
        struck = proxy.struck
    assert [found.fault for found in struck] == [fault]
    assert len(kiwi.calls_named("heartbeat")) == (0 if fault == "drop_request" else 1)


def test_a_random_stall_is_late_and_right(kiwi: KiwiServer, worker: KiwiClient) -> None:
    with FaultProxy(kiwi.url, fault_rate=1.0, faults=["stall"], stall_seconds=0.1) as proxy:
        client = PlainClient(proxy.address, dict(worker.headers))
        started = time.monotonic()
        assert client.call("GET", HEARTBEAT)[1] == b"true"
        assert time.monotonic() - started >= 0.1
        client.close()


def test_a_random_half_open_link_says_nothing(kiwi: KiwiServer, worker: KiwiClient) -> None:
    with FaultProxy(kiwi.url, fault_rate=1.0, faults=["half_open"]) as proxy:
        client = PlainClient(proxy.address, dict(worker.headers))
        client.send("GET", HEARTBEAT)
        client.connection.sock.settimeout(0.1)
        with pytest.raises(TimeoutError):
            client.connection.sock.recv(1)
        client.close()
    assert kiwi.calls_named("heartbeat") == []


def test_a_rate_by_request_is_repeatable(kiwi: KiwiServer, worker: KiwiClient) -> None:
    def pattern(seed: int) -> list[bool]:
        found = []
        with FaultProxy(kiwi.url, fault_rate=0.5, faults=["drop_request"], seed=seed) as proxy:
            client = PlainClient(proxy.address, dict(worker.headers))
            for _ in range(20):
                try:
                    found.append(client.call("GET", HEARTBEAT)[1] == b"true")
                except OSError:
                    found.append(False)
                    client.close()
            client.close()
        return found

    first = pattern(3)
    assert set(first) == {True, False}
    assert first == pattern(3)


def test_a_fault_by_connection_strikes_its_first_request(kiwi: KiwiServer, worker: KiwiClient) -> None:
    with FaultProxy(kiwi.url, fault_rate=0.0, per="connection", faults=["drop_answer"]) as proxy:
        client = PlainClient(proxy.address, dict(worker.headers))
        client.call("GET", HEARTBEAT)
        proxy.fault_rate = 1.0
        assert client.call("GET", HEARTBEAT)[1] == b"true"
        client.close()
        with pytest.raises((ConnectionError, http.client.HTTPException)):
            client.call("GET", HEARTBEAT)
        client.close()


def test_a_target_that_is_down_is_a_closed_connection() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = unused.getsockname()
    with FaultProxy(address) as proxy:
        assert read_all(socket.create_connection(proxy.address, LIMIT)) == b""


def test_an_address_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="is no address"):
        FaultProxy("nonsense")


def test_stopping_ends_every_thread_even_when_cut(kiwi: KiwiServer, worker: KiwiClient) -> None:
    before = set(threading.enumerate())
    socks = []
    with FaultProxy(kiwi.url) as proxy:
        client = PlainClient(proxy.address, dict(worker.headers))
        client.call("GET", HEARTBEAT)
        for _ in range(3):
            socks.append(socket.create_connection(proxy.address, LIMIT))
        proxy.cut("silent")
        client.send("GET", "/worker/messages?wait=60")
    for sock in socks:
        sock.close()
    client.close()
    kiwi.wait_until(lambda: kiwi.open_connections == 1)
    assert {thread for thread in threading.enumerate() if "proxy" in thread.name} - before == set()


def _closing(address: tuple[str, int], worker: KiwiClient) -> socket.socket:
    sock = socket.create_connection(address, LIMIT)
    head = (
        f"GET {HEARTBEAT} HTTP/1.1\r\nConnection: close\r\nAuthorization: {worker.headers['Authorization']}"
    )
    sock.sendall(f"{head}\r\n\r\n".encode())
    return sock
