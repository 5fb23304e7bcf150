"""The middleware's half of the lazy-mode wake-up probe."""

from __future__ import annotations

import json
import socket

from kiwi_worker.testing.middleware import MiddlewareProcess

from .conftest import Workers
from .plain_worker import Background


def packet_of(data: bytes) -> dict[str, object]:
    data.decode("ascii")
    packet = json.loads(data)
    assert set(packet) == {"PacketId", "Message"}
    assert set(packet["Message"]) == {"MessageText", "Parameters"}
    assert packet["Message"]["MessageText"] == "pull_signal"
    return packet


def test_packet_has_the_form_of_the_page(middleware: MiddlewareProcess, workers: Workers) -> None:
    worker = workers(middleware)
    udp = worker.register_lazy("m")
    request_id = middleware.client.start("m")
    data, sender = udp.recvfrom(65536)
    packet = packet_of(data)
    assert packet["Message"]["Parameters"] == request_id
    udp.sendto(f"ACK:{packet['PacketId']}".encode(), sender)
    assert [m["request_id"] for m in worker.drain()] == [request_id]


def test_probe_is_repeated_until_acked(middleware: MiddlewareProcess, workers: Workers) -> None:
    worker = workers(middleware)
    udp = worker.register_lazy("m")
    middleware.client.start("m")
    packets = [udp.recvfrom(65536) for _ in range(3)]
    assert len({packet_of(data)["PacketId"] for data, _ in packets}) == 1
    data, sender = packets[-1]
    udp.sendto(f"ACK:{packet_of(data)['PacketId']}".encode(), sender)
    udp.settimeout(1.0)  # less than the time in which a drain is expected after an ACK
    assert silent(udp)


def test_probe_stops_when_the_worker_drained(middleware: MiddlewareProcess, workers: Workers) -> None:
    worker = workers(middleware)
    udp = worker.register_lazy("m")
    middleware.client.start("m")
    udp.recvfrom(65536)
    assert len(worker.drain()) == 1
    udp.settimeout(1.0)
    assert silent(udp)


def test_ack_without_a_drain_is_probed_anew(middleware: MiddlewareProcess, workers: Workers) -> None:
    worker = workers(middleware)
    udp = worker.register_lazy("m")
    middleware.client.start("m")
    data, sender = udp.recvfrom(65536)
    first = packet_of(data)
    udp.sendto(f"ACK:{first['PacketId']}".encode(), sender)
    second = packet_of(udp.recvfrom(65536)[0])
    assert second["PacketId"] != first["PacketId"]


def test_each_call_after_a_drain_is_probed_for(middleware: MiddlewareProcess, workers: Workers) -> None:
    worker = workers(middleware)
    udp = worker.register_lazy("m")
    seen = set()
    for _ in range(20):
        request_id = middleware.client.start("m")
        data, sender = udp.recvfrom(65536)
        packet = packet_of(data)
        seen.add(packet["PacketId"])
        udp.sendto(f"ACK:{packet['PacketId']}".encode(), sender)
        assert [m["request_id"] for m in worker.drain_some()] == [request_id]
    assert len(seen) == 20


def test_tcp_where_udp_does_not_get_through(middleware: MiddlewareProcess, workers: Workers) -> None:
    """A firewall drops the datagrams: the port is only bound for TCP."""
    worker = workers(middleware)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(20)
        worker.register("m", run_mode="Lazy", port=listener.getsockname()[1])
        middleware.client.start("m")
        connection, _ = listener.accept()
        with connection:
            connection.settimeout(20)
            packet = packet_of(connection.recv(65536))
            connection.sendall(f"ACK:{packet['PacketId']}".encode())
            assert connection.recv(1) == b""
        listener.settimeout(1.0)
        assert silent_tcp(listener)
    assert len(worker.drain()) == 1


def test_foreign_acks_are_ignored(middleware: MiddlewareProcess, workers: Workers) -> None:
    worker = workers(middleware)
    udp = worker.register_lazy("m")
    middleware.client.start("m")
    data, sender = udp.recvfrom(65536)
    for nonsense in (b"", b"ACK:", b"ACK:other", b"\xff" * 1000, data):
        udp.sendto(nonsense, sender)
    assert packet_of(udp.recvfrom(65536)[0]) == packet_of(data)


def test_eager_worker_is_not_probed(middleware: MiddlewareProcess, workers: Workers) -> None:
    worker = workers(middleware)
    udp = worker.register_lazy("m")
    worker.register("m", run_mode="Eager", port=udp.getsockname()[1])
    middleware.client.start("m")
    udp.settimeout(0.5)
    assert silent(udp)
    assert len(worker.drain()) == 1


def test_lazy_worker_with_an_open_wait_is_not_probed(middleware: MiddlewareProcess, workers: Workers) -> None:
    worker = workers(middleware)
    udp = worker.register_lazy("m")
    drain = Background(lambda: worker.drain(wait=10))
    middleware.client.start("m")
    assert len(drain.result()) == 1
    assert worker.drain() == []
    udp.close()


def test_probe_over_ipv6(middleware: MiddlewareProcess, workers: Workers) -> None:
    worker = workers(middleware)
    with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as udp:
        udp.bind(("::1", 0))
        udp.settimeout(20)
        worker.register("m", run_mode="Lazy", ip="::1", port=udp.getsockname()[1])
        middleware.client.start("m")
        packet_of(udp.recvfrom(65536)[0])
    assert len(worker.drain()) == 1


def silent(udp: socket.socket) -> bool:
    try:
        udp.recvfrom(65536)
    except TimeoutError:
        return True
    return False


def silent_tcp(listener: socket.socket) -> bool:
    try:
        listener.accept()[0].close()
    except TimeoutError:
        return True
    return False
