"""The TCP side of the wake-up probe, over real sockets."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import threading
import time

from probed import LIMIT_SECONDS, Probed, eventually, exactly, probed, received

from kiwi_worker.kiwi.probe import pull_signal
from kiwi_worker.kiwi.probe.connections import MAX_CONNECTIONS


class TestConnections:
    def test_a_packet_split_over_segments_is_one_packet(self, probe: Probed) -> None:
        with probe.tcp() as sock:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for byte in pull_signal("split '}{' here"):
                sock.sendall(bytes([byte]))
            assert exactly(sock, 19) == b"ACK:split '}{' here"

    def test_two_packets_in_one_segment_are_two_packets(self, probe: Probed) -> None:
        with probe.tcp() as sock:
            sock.sendall(pull_signal("one") + b"\r\n" + pull_signal("two"))
            assert exactly(sock, 14) == b"ACK:oneACK:two"
            sock.sendall(pull_signal("three"))
            assert exactly(sock, 9) == b"ACK:three"
        eventually(lambda: probe.wakes == 3)

    def test_strings_and_escapes_do_not_fool_the_balance(self, probe: Probed) -> None:
        tricky = json.dumps({"Message": '}{"\\', "PacketId": "tr{ick}y\\"}).encode()
        with probe.tcp() as sock:
            sock.sendall(tricky + tricky)
            assert exactly(sock, 26) == b"ACK:tr{ick}y\\ACK:tr{ick}y\\"

    def test_a_sender_that_has_closed_its_half_gets_its_answers(self, probe: Probed) -> None:
        with probe.tcp() as sock:
            sock.sendall(pull_signal("a") + pull_signal("b"))
            sock.shutdown(socket.SHUT_WR)
            assert received(sock) == b"ACK:aACK:b"

    def test_a_packet_cut_short_is_counted(self, probe: Probed) -> None:
        with probe.tcp() as sock:
            sock.sendall(pull_signal("a")[:-1])
            sock.shutdown(socket.SHUT_WR)
            assert received(sock) == b""
        assert probe.counters.ignored["incomplete"] == 1

    def test_a_value_that_is_no_packet_is_skipped(self, probe: Probed) -> None:
        with probe.tcp() as sock:
            sock.sendall(b'[{"PacketId":"inner"}]{"PacketId":7}' + pull_signal("next"))
            assert exactly(sock, 8) == b"ACK:next"

    def test_what_is_no_json_ends_the_connection(self, probe: Probed) -> None:
        with probe.tcp() as sock:
            sock.sendall(pull_signal("a") + b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            assert received(sock) == b"ACK:a"
        assert probe.counters.ignored["not_json"] == 1

    def test_a_packet_over_64_kib_ends_the_connection(self, probe: Probed) -> None:
        with probe.tcp() as sock, contextlib.suppress(ConnectionError):
            sock.sendall(b'{"PacketId":"' + b"a" * 200_000)
            assert received(sock) == b""
        eventually(lambda: probe.counters.ignored["too_long"] == 1)
        probe.still_works()

    def test_a_slow_sender_is_cut_off_however_busy_it_looks(self) -> None:
        with probed(idle_limit=0.3) as probe, probe.tcp() as sock:
            sock.sendall(b"{")
            closed = threading.Event()

            def drip() -> None:
                with contextlib.suppress(OSError):
                    while not closed.wait(0.02):
                        sock.sendall(b" ")

            dripping = threading.Thread(target=drip, name="drip")
            dripping.start()
            with contextlib.suppress(ConnectionError):
                assert received(sock) == b""
            closed.set()
            dripping.join(LIMIT_SECONDS)
            assert probe.counters.cut_connections == 1
            assert probe.counters.ignored["incomplete"] == 1
            probe.still_works()

    def test_an_idle_connection_is_closed_and_its_answers_were_sent(self) -> None:
        with probed(idle_limit=0.2) as probe, probe.tcp() as sock:
            sock.sendall(pull_signal("a"))
            assert received(sock) == b"ACK:a"

    def test_a_connection_that_goes_on_sending_packets_outlives_the_idle_limit(self) -> None:
        with probed(idle_limit=2.0) as probe, probe.tcp() as sock:
            end = time.monotonic() + 2.5
            while time.monotonic() < end:
                sock.sendall(pull_signal("a"))
                assert exactly(sock, 5) == b"ACK:a"
                time.sleep(0.05)
            assert probe.counters.cut_connections == 0

    def test_held_connections_shut_nobody_out(self, probe: Probed) -> None:
        with contextlib.ExitStack() as held:
            for _ in range(MAX_CONNECTIONS + 10):
                held.enter_context(probe.tcp())
            with probe.tcp() as sock:
                sock.sendall(pull_signal("in"))
                assert exactly(sock, 6) == b"ACK:in"
            assert probe.counters.cut_connections == 11
            assert probe.ask("udp") == b"ACK:udp"

    def test_a_sender_that_takes_no_answers_is_not_read_for_ever(self) -> None:
        packet = json.dumps({"PacketId": "x" * 128}).encode()
        with probed(idle_limit=1.0) as probe, probe.tcp() as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.settimeout(0.2)
            with contextlib.suppress(OSError):
                while True:
                    sock.sendall(packet * 400)
            eventually(lambda: probe.counters.cut_connections == 1)
            probe.still_works()

    def test_a_connection_that_is_reset_harms_nobody(self, probe: Probed) -> None:
        for data in (b"", b"{", pull_signal("reset")):
            with probe.tcp() as sock:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                sock.sendall(data)
        probe.still_works()
