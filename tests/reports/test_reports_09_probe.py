"""Field reports on the wake-up probe: errors while receiving, floods of nonsense, the wrong address."""

from __future__ import annotations

import contextlib
import json
import logging
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from worker_tools import eventually

from kiwi_worker import Worker
from kiwi_worker.kiwi.probe import datagrams, route_address
from kiwi_worker.testing import KiwiServer

NewWorker = Callable[..., Worker]


@pytest.fixture
def address(server: KiwiServer, new_worker: NewWorker) -> Iterator[tuple[str, int]]:
    """Where the probe of a running worker is awaited."""
    with new_worker(server, probe_idle_limit=0.3) as worker:
        port = worker.probe_port
        assert port is not None
        yield "127.0.0.1", port
        assert acknowledged(server), "it goes on, whatever came"
        assert worker.failure is None


def acknowledged(server: KiwiServer) -> bool:
    """Whether a packet is answered; behind a flood the system may drop one, and it is sent again."""
    for _ in range(20):
        with contextlib.suppress(TimeoutError):
            return server.probe(timeout=0.5).startswith("ACK:")
    return False


def packet(identity: object) -> bytes:
    return json.dumps({"PacketId": identity, "Message": {"MessageText": "pull_signal"}}).encode()


def test_report_51_senders_that_close_before_their_ack_do_no_harm(
    server: KiwiServer, address: tuple[str, int]
) -> None:
    for number in range(50):
        with socket.socket(type=socket.SOCK_DGRAM) as sender:
            sender.sendto(packet(f"gone-{number}"), address)
    assert acknowledged(server)


@pytest.mark.parametrize("error", [ConnectionResetError, ConnectionRefusedError, OSError])
def test_report_51_errors_while_receiving_end_nothing(
    server: KiwiServer, new_worker: NewWorker, monkeypatch: pytest.MonkeyPatch, error: type[OSError]
) -> None:
    receive, raised = datagrams.DatagramSocket.receive, []

    def failing(sock: datagrams.DatagramSocket) -> Any:
        if len(raised) < 30:
            raised.append(error(10054, "reset"))
            raise raised[-1]
        return receive(sock)

    monkeypatch.setattr(datagrams.DatagramSocket, "receive", failing)
    with new_worker(server):
        assert acknowledged(server)
    assert len(raised) == 30


NONSENSE = [
    b"",
    b"{",
    b"x" * 2048,
    b"x" * 65_507,
    b"\xff\xfe\xfa",
    b"[1, 2]",
    b'{"Message": "no id"}',
    packet(""),
    packet(7),
    packet(None),
    packet("i" * 100_000)[:60_000],
    packet("i" * 10_000),
    packet("line\r\nbreak"),
]


def test_report_52_only_a_valid_packet_is_acknowledged(server: KiwiServer, address: tuple[str, int]) -> None:
    with socket.socket(type=socket.SOCK_DGRAM) as sender:
        sender.settimeout(10)
        for one in NONSENSE:
            sender.sendto(one, address)
        sender.sendto(packet("valid"), address)
        assert sender.recv(1000) == b"ACK:valid", "nothing before it was answered"


def test_report_52_a_flood_is_survived(server: KiwiServer, address: tuple[str, int]) -> None:
    with socket.socket(type=socket.SOCK_DGRAM) as sender:
        for number in range(10_000):
            sender.sendto(NONSENSE[number % 3] if number % 2 else packet(str(number)), address)
    server.assert_protocol_kept()


def test_report_52_tcp_in_every_cut(server: KiwiServer, address: tuple[str, int]) -> None:
    with socket.create_connection(address, 10) as sender:
        for byte in packet("split"):
            sender.sendall(bytes([byte]))
        assert received(sender, 9) == b"ACK:split"
        sender.sendall(packet("one") + packet("two"))
        assert received(sender, 14) == b"ACK:oneACK:two"
        sender.sendall(packet("half"))
        sender.shutdown(socket.SHUT_WR)
        assert received(sender, 100) == b"ACK:half"


def test_report_52_a_slow_sender_is_cut_off(server: KiwiServer, address: tuple[str, int]) -> None:
    with socket.create_connection(address, 10) as sender:
        sender.sendall(b'{"PacketId"')
        assert received(sender, 1) == b"", "it is closed at the idle limit"


def received(sock: socket.socket, most: int) -> bytes:
    answer = b""
    while len(answer) < most and (part := sock.recv(most - len(answer))):
        answer += part
    return answer


def test_report_53_the_registered_address_is_the_route_and_not_the_host_name(
    server: KiwiServer, new_worker: NewWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "some-host")
    monkeypatch.setattr(socket, "gethostbyname", lambda name: "127.0.1.1")
    with new_worker(server, worker_id="w") as worker:
        (registration,) = server.registrations
        assert (registration["ip"], registration["port"]) == ("127.0.0.1", worker.probe_port)
        assert acknowledged(server)


def test_report_53_what_is_advertised_and_what_is_bound_are_two_things(
    server: KiwiServer, new_worker: NewWorker
) -> None:
    with new_worker(server, advertised_ip="203.0.113.7", advertised_port=4711) as worker:
        (registration,) = server.registrations
        assert (registration["ip"], registration["port"]) == ("203.0.113.7", 4711)
        assert worker.probe_port not in (None, 4711)


def test_report_53_a_loopback_address_for_others_is_warned_about(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("kiwi_worker.kiwi.probe.route._near_end", lambda family, target: "127.0.0.1")
    with caplog.at_level(logging.WARNING):
        assert route_address("203.0.113.1", 8420) == "127.0.0.1"
    assert "loopback" in caplog.text


def test_report_53_many_probes_cost_few_drains(server: KiwiServer, address: tuple[str, int]) -> None:
    server.wait_for_calls("drain")
    before = len(server.calls_named("drain"))
    with socket.socket(type=socket.SOCK_DGRAM) as sender:
        for number in range(200):
            sender.sendto(packet(f"many-{number}"), address)
    server.wait_for_calls("drain", before + 1)
    assert acknowledged(server)
    since = time.monotonic()
    eventually(lambda: len(server.calls_named("drain")) > before or time.monotonic() - since > 5)
    assert len(server.calls_named("drain")) <= before + 202
