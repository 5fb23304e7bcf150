"""The wake-up probe listener, over real sockets."""

from __future__ import annotations

import contextlib
import json
import os
import random
import socket
import struct
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from probed import LIMIT_SECONDS, Probed, eventually, exactly, needs_ipv6, probed, received

from kiwi_worker.errors import ProbePortError, SettingsError
from kiwi_worker.kiwi.probe import ProbeListener, pull_signal
from kiwi_worker.kiwi.probe.datagrams import DatagramSocket
from kiwi_worker.kiwi.probe.ports import bind_pair


class TestSentencesOfThePage:
    def test_the_worker_listens_on_all_addresses_at_the_wakeup_probe_service_port(self) -> None:
        with probed("0.0.0.0") as probe:
            assert probe.ask("a", "127.0.0.1") == b"ACK:a"
            assert probe.ask("b", "127.0.0.2") == b"ACK:b"

    def test_it_listens_for_udp_and_tcp_on_one_port(self, probe: Probed) -> None:
        assert probe.ask("udp") == b"ACK:udp"
        with probe.tcp() as sock:
            sock.sendall(pull_signal("tcp"))
            assert exactly(sock, 7) == b"ACK:tcp"

    @pytest.mark.parametrize("parameters", [None, "request-1"])
    def test_one_ascii_json_packet_wakes_with_or_without_a_request_id(
        self, probe: Probed, parameters: str | None
    ) -> None:
        with probe.udp() as sock:
            sock.send(pull_signal("6f1d6c1e-5a0e-4a6e-9f0b-0d1f6f9c4a55", parameters))
            assert sock.recv(65_536) == b"ACK:6f1d6c1e-5a0e-4a6e-9f0b-0d1f6f9c4a55"
        eventually(lambda: probe.wakes == 1)

    def test_the_reply_comes_on_the_same_socket(self, probe: Probed) -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.settimeout(LIMIT_SECONDS)
            sock.bind(("127.0.0.1", 0))
            sock.sendto(pull_signal("same"), ("127.0.0.1", probe.port))
            assert sock.recvfrom(65_536) == (b"ACK:same", ("127.0.0.1", probe.port))

    def test_reply_and_drain_in_that_order_over_udp(self) -> None:
        acknowledged = threading.Event()
        with probed(on_wake=lambda: assert_set(acknowledged)) as probe:
            assert probe.ask("first") == b"ACK:first"
            acknowledged.set()
            eventually(lambda: probe.counters.wakes == 1)

    def test_reply_and_drain_in_that_order_over_tcp(self) -> None:
        acknowledged = threading.Event()
        with probed(on_wake=lambda: assert_set(acknowledged)) as probe, probe.tcp() as sock:
            sock.sendall(pull_signal("first"))
            assert exactly(sock, 9) == b"ACK:first"
            acknowledged.set()
            eventually(lambda: probe.counters.wakes == 1)


def assert_set(event: threading.Event) -> None:
    """Waking holds the listener up until the sender has its answer; were the order wrong, it never came."""
    assert event.wait(LIMIT_SECONDS)


class TestPackets:
    def test_a_packet_seen_before_is_acknowledged_again_and_does_not_wake(self, probe: Probed) -> None:
        assert [probe.ask("again") for _ in range(3)] == [b"ACK:again"] * 3
        with probe.tcp() as sock:
            sock.sendall(pull_signal("again"))
            assert exactly(sock, 9) == b"ACK:again"
        eventually(lambda: probe.counters.repeated == 3)
        assert (probe.wakes, probe.counters.packets) == (1, 4)

    def test_waking_that_raises_is_logged_and_may_be_repeated(self, caplog: pytest.LogCaptureFixture) -> None:
        def fails() -> None:
            raise RuntimeError("not now")

        with probed(on_wake=fails) as probe:
            assert probe.ask("a") == b"ACK:a"
            assert probe.ask("a") == b"ACK:a"
            eventually(lambda: probe.wakes == 2)
        assert [record.action for record in caplog.records] == ["probe_wake_failed"] * 2  # type: ignore[attr-defined]

    def test_what_is_no_packet_gets_no_answer_and_is_counted(self, probe: Probed) -> None:
        hostile = {
            b"": "empty",
            b"x": "not_json",
            b"{" * 2_000: "not_json",
            b"\xff" * 2_000: "not_json",
            b"A" * 65_507: "not_json",
            b'{"PacketId":"' + b"a" * 65_000 + b'"}': "bad_packet_id",
            b'[{"PacketId":"a"}]': "not_an_object",
            b'{"Message":{}}': "no_packet_id",
            b'{"PacketId":"a\\r\\nb"}': "bad_packet_id",
        }
        with probe.udp() as sock:
            for data in hostile:
                sock.send(data)
            sock.send(pull_signal("the only valid one"))
            assert sock.recv(65_536) == b"ACK:the only valid one"
            sock.setblocking(False)
            with pytest.raises(BlockingIOError):
                sock.recv(65_536)
        assert sum(probe.counters.ignored.values()) == len(hostile)
        assert {reason for reason, count in probe.counters.ignored.items() if count} == set(hostile.values())
        eventually(lambda: probe.wakes == 1)

    def test_a_packet_as_long_as_a_datagram_can_be_is_heard(self, probe: Probed) -> None:
        packet = b'{"PacketId":"long","Message":"' + b"x" * (65_507 - 32) + b'"}'
        with probe.udp() as sock:
            sock.send(packet)
            assert sock.recv(65_536) == b"ACK:long"

    def test_each_reason_for_ignoring_is_reported_once(
        self, probe: Probed, caplog: pytest.LogCaptureFixture
    ) -> None:
        with probe.udp() as sock:
            for _ in range(5):
                sock.send(b"nonsense that nobody wants in a log")
        probe.still_works()
        assert [record.action for record in caplog.records] == ["probe_not_json"]  # type: ignore[attr-defined]
        assert "nonsense" not in caplog.text

    def test_a_flood_of_ten_thousand_packets_is_survived(self, probe: Probed) -> None:
        with probe.udp() as sock:
            for number in range(10_000):
                sock.send(pull_signal(f"{number}") if number % 2 else b"flood %d" % number)
        probe.still_works()
        counters = probe.counters
        assert counters.packets + counters.ignored["not_json"] <= 10_100
        eventually(lambda: counters.wakes == counters.packets)

    @settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(
        st.binary(max_size=400)
        | st.text(max_size=100).map(lambda text: json.dumps({"PacketId": text}).encode())
    )
    def test_whatever_arrives_the_next_packet_is_served(self, probe: Probed, data: bytes) -> None:
        with probe.udp() as sock:
            sock.send(data)
        with probe.tcp() as sock, contextlib.suppress(OSError):
            sock.sendall(data)
            sock.shutdown(socket.SHUT_WR)
            received(sock)
        probe.still_works()


class TestAddresses:
    @pytest.mark.parametrize("address", ["127.0.0.1", "127.0.0.2", "127.77.0.3"])
    def test_the_answer_comes_from_the_address_that_was_probed(self, address: str) -> None:
        with probed("0.0.0.0") as probe:
            assert probe.ask("from", address) == b"ACK:from"

    @needs_ipv6
    @pytest.mark.parametrize("address", ["::1", "127.0.0.1", "127.0.0.2"])
    def test_bound_to_both_families_it_answers_both(self, address: str) -> None:
        with probed("::") as probe:
            assert probe.ask("both", address) == b"ACK:both"
            with probe.tcp(address) as sock:
                sock.sendall(pull_signal("tcp"))
                assert exactly(sock, 7) == b"ACK:tcp"

    def test_a_system_that_does_not_tell_the_probed_address_is_good_enough(self) -> None:
        class TellsNothing(socket.socket):
            def setsockopt(self, level: int, *rest: Any) -> None:
                if level == socket.IPPROTO_IP:
                    raise OSError("unknown option")
                super().setsockopt(level, *rest)

        with (
            TellsNothing(socket.AF_INET, socket.SOCK_DGRAM) as sock,
            socket.socket(type=socket.SOCK_DGRAM) as peer,
        ):
            sock.bind(("127.0.0.1", 0))
            peer.settimeout(LIMIT_SECONDS)
            peer.connect(sock.getsockname())
            datagrams = DatagramSocket(sock)
            peer.send(b"question")
            datagrams.answer(datagrams.receive(), b"answer")
            assert peer.recv(100) == b"answer"

    def test_an_address_that_is_no_source_leaves_the_choice_to_the_system(self) -> None:
        with socket.socket(type=socket.SOCK_DGRAM) as sock, socket.socket(type=socket.SOCK_DGRAM) as peer:
            sock.bind(("127.0.0.1", 0))
            peer.settimeout(LIMIT_SECONDS)
            peer.connect(sock.getsockname())
            datagrams = DatagramSocket(sock)
            peer.send(b"question")
            datagram = datagrams.receive()
            elsewhere = struct.pack("=I4s4s", 0, socket.inet_aton("203.0.113.9"), bytes(4))
            foreign = [(level, kind, elsewhere) for level, kind, _ in datagram.control]
            datagrams.answer(datagram._replace(control=foreign), b"answer")
            assert peer.recv(100) == b"answer"

    def test_only_allowed_senders_are_heard(self) -> None:
        with probed("0.0.0.0", allow=["127.0.0.2", "10.0.0.0/8"]) as probe:
            with probe.tcp() as stranger:
                assert received(stranger) == b""
            with probe.udp() as stranger:
                stranger.send(pull_signal("from 127.0.0.1"))
                with socket.socket(type=socket.SOCK_DGRAM) as friend:
                    friend.settimeout(LIMIT_SECONDS)
                    friend.bind(("127.0.0.2", 0))
                    friend.sendto(pull_signal("from 127.0.0.2"), ("127.0.0.1", probe.port))
                    assert friend.recv(100) == b"ACK:from 127.0.0.2"
                stranger.setblocking(False)
                with pytest.raises(BlockingIOError):
                    stranger.recv(100)
            assert probe.counters.ignored["sender_not_allowed"] == 2

    @needs_ipv6
    def test_an_allowed_ipv4_network_is_known_behind_a_socket_of_both_families(self) -> None:
        with probed("::", allow=["127.0.0.0/8"]) as probe:
            assert probe.ask("mapped") == b"ACK:mapped"

    def test_an_allowed_sender_that_is_no_address_is_refused_by_name(self) -> None:
        with pytest.raises(
            SettingsError, match="probe_allow: 'middleware' is neither an address nor a network"
        ):
            ProbeListener("127.0.0.1", 0, lambda: None, allow=["middleware"])


class TestErrorsOfTheSystem:
    def test_a_sender_that_is_gone_before_its_answer_harms_nobody(self, probe: Probed) -> None:
        for number in range(20):
            with probe.udp() as sock:
                sock.send(pull_signal(f"gone-{number}"))
        probe.still_works()
        eventually(lambda: probe.wakes == 21)

    @pytest.mark.skipif(sys.platform != "linux", reason="asks Linux to report undeliverable answers")
    def test_undeliverable_answers_that_the_system_reports_do_not_make_it_deaf(self) -> None:
        listener = ProbeListener("127.0.0.1", 0, lambda: None)
        port = listener.bind()
        assert listener._sockets is not None
        listener._sockets.udp._socket.setsockopt(socket.IPPROTO_IP, 11, 1)  # IP_RECVERR
        for number in range(5):
            with socket.socket(type=socket.SOCK_DGRAM) as sock:
                sock.sendto(pull_signal(f"gone-{number}"), ("127.0.0.1", port))
        thread = threading.Thread(target=listener.serve, name="probe", daemon=True)
        thread.start()
        try:
            with socket.socket(type=socket.SOCK_DGRAM) as sock:
                sock.settimeout(LIMIT_SECONDS)
                sock.connect(("127.0.0.1", port))
                sock.send(pull_signal("here"))
                assert sock.recv(100) == b"ACK:here"
            assert listener.counters.receive_errors + listener.counters.unacknowledged > 0
        finally:
            listener.stop()
            thread.join(LIMIT_SECONDS)

    @pytest.mark.parametrize("error", [ConnectionResetError(10054, "reset"), OSError(10040, "too long")])
    @pytest.mark.parametrize("times", [1, 18])
    def test_errors_from_receiving_never_end_it(
        self, monkeypatch: pytest.MonkeyPatch, error: OSError, times: int
    ) -> None:
        class Failing(socket.socket):
            failures = 0

            def recvmsg(self, *arguments: Any) -> Any:
                if Failing.failures < times:
                    Failing.failures += 1
                    raise error
                return super().recvmsg(*arguments)

        with monkeypatch.context() as patch:
            patch.setattr(socket, "socket", Failing)
            probe = Probed()
        try:
            probe.still_works()
            assert probe.counters.receive_errors == times
        finally:
            probe.stop()

    def test_an_answer_that_cannot_be_sent_wakes_all_the_same(self, monkeypatch: pytest.MonkeyPatch) -> None:
        class Mute(socket.socket):
            def sendmsg(self, *arguments: Any) -> int:
                raise OSError(1, "not permitted")

            def sendto(self, *arguments: Any) -> int:
                raise OSError(1, "not permitted")

        with monkeypatch.context() as patch:
            patch.setattr(socket, "socket", Mute)
            probe = Probed()
        try:
            with socket.socket(type=socket.SOCK_DGRAM) as sock:
                sock.connect(("127.0.0.1", probe.port))
                sock.send(pull_signal("a"))
            eventually(lambda: probe.wakes == 1)
            assert probe.counters.unacknowledged == 1
        finally:
            probe.stop()

    def test_no_file_descriptor_left_for_a_connection_does_not_end_it(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        class Exhausted(socket.socket):
            refusals = 0

            def accept(self) -> Any:
                if Exhausted.refusals < 20:
                    Exhausted.refusals += 1
                    raise OSError(24, "too many open files")
                return super().accept()

        with monkeypatch.context() as patch:
            patch.setattr(socket, "socket", Exhausted)
            probe = Probed()
        try:
            with probe.tcp() as sock:
                sock.sendall(pull_signal("late"))
                assert exactly(sock, 8) == b"ACK:late"
            assert probe.counters.receive_errors == 20
        finally:
            probe.stop()


@contextlib.contextmanager
def taken_for_one_only(kind: socket.SocketKind) -> Iterator[socket.socket]:
    """A bound socket of a port below those that systems give out: nobody takes it for the other transport."""
    other = socket.SOCK_STREAM if kind == socket.SOCK_DGRAM else socket.SOCK_DGRAM
    for port in random.sample(range(20_000, 32_000), 1000):
        with socket.socket(type=kind) as taken, socket.socket(type=other) as free:
            try:
                taken.bind(("127.0.0.1", port))
                free.bind(("127.0.0.1", port))
            except OSError:
                continue
            free.close()
            yield taken
            return
    raise AssertionError("no port was free")


class TestPort:
    def test_port_0_binds_the_same_free_port_for_udp_and_tcp(self) -> None:
        udp, tcp = bind_pair("127.0.0.1", 0)
        with udp, tcp:
            assert udp.getsockname() == tcp.getsockname()

    def test_port_0_passes_over_a_port_that_is_free_for_one_of_them_only(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with taken_for_one_only(socket.SOCK_DGRAM) as taken:
            offered = iter([taken.getsockname()])

            class Offers(socket.socket):
                def bind(self, address: Any) -> None:
                    first = self.type == socket.SOCK_STREAM and next(offered, None)
                    super().bind(first or address)

            with monkeypatch.context() as patch:
                patch.setattr(socket, "socket", Offers)
                udp, tcp = bind_pair("127.0.0.1", 0)
            with udp, tcp:
                assert udp.getsockname() == tcp.getsockname() != taken.getsockname()

    @pytest.mark.parametrize(("kind", "transport"), [(socket.SOCK_DGRAM, "UDP"), (socket.SOCK_STREAM, "TCP")])
    def test_a_port_in_use_is_an_error_that_names_it_and_what_to_do(
        self, kind: socket.SocketKind, transport: str
    ) -> None:
        with taken_for_one_only(kind) as taken:
            if kind == socket.SOCK_STREAM:
                taken.listen()
            port = taken.getsockname()[1]
            with pytest.raises(ProbePortError) as caught:
                ProbeListener("127.0.0.1", port, lambda: None).bind()
        text = str(caught.value)
        assert f"{transport} port {port} at address 127.0.0.1" in text
        assert "set wakeup_probe_service_port" in text
        assert (caught.value.port, caught.value.address, caught.value.exit_status) == (port, "127.0.0.1", 78)

    @pytest.mark.parametrize("address", ["203.0.113.7", "no.such.host.invalid"])
    def test_an_address_that_is_not_ours_is_an_error_that_names_it(self, address: str) -> None:
        with pytest.raises(ProbePortError, match=f"at address {address} .*set wakeup_probe_bind"):
            ProbeListener(address, 0, lambda: None).bind()

    def test_the_port_is_free_again_at_once_after_stop(self) -> None:
        with probed() as probe, probe.tcp() as sock:
            sock.sendall(pull_signal("a"))
            assert exactly(sock, 5) == b"ACK:a"
            probe.stop()
            again = ProbeListener("127.0.0.1", probe.port, lambda: None)
            assert again.bind() == probe.port
            again.stop()


class TestStop:
    def test_stop_ends_it_at_once_and_may_come_twice(self, probe: Probed) -> None:
        probe.stop()
        probe.stop()

    def test_stop_before_serve_is_not_forgotten(self) -> None:
        listener = ProbeListener("127.0.0.1", 0, lambda: None)
        listener.bind()
        listener.stop()
        listener.serve()

    def test_stop_before_bind_is_not_forgotten(self) -> None:
        listener = ProbeListener("127.0.0.1", 0, lambda: None)
        listener.stop()
        listener.bind()
        listener.serve()

    def test_stop_from_within_a_wake_up(self) -> None:
        listener = ProbeListener("127.0.0.1", 0, lambda: listener.stop())
        port = listener.bind()
        with socket.socket(type=socket.SOCK_DGRAM) as sock:
            sock.sendto(pull_signal("a"), ("127.0.0.1", port))
            listener.serve()

    def test_stop_closes_open_connections(self, probe: Probed) -> None:
        with probe.tcp() as sock:
            sock.sendall(pull_signal("a"))
            assert exactly(sock, 5) == b"ACK:a"
            probe.stop()
            assert received(sock) == b""

    @pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
    def test_idle_it_sleeps_without_a_timer(self, probe: Probed) -> None:
        with probe.tcp() as sock:
            sock.sendall(pull_signal("a"))
            assert exactly(sock, 5) == b"ACK:a"
        eventually(lambda: probe.listener._sockets.connections.seconds_to_wait() is None)  # type: ignore[union-attr]
        status = f"/proc/{os.getpid()}/task/{probe.thread.native_id}/status"

        def turns() -> str:
            with open(status) as lines:
                return next(line for line in lines if line.startswith("voluntary_ctxt_switches"))

        eventually(lambda: settled(turns))
        before = turns()
        threading.Event().wait(0.5)
        assert turns() == before


def settled(reading: Callable[[], str]) -> bool:
    before = reading()
    threading.Event().wait(0.05)
    return reading() == before
