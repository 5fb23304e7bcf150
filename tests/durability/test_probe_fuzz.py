"""Whatever is sent to the wake-up probe, and however much: it lives, accounts for it, and keeps nothing.

50,000 packets over real sockets; `SOAK_PACKETS` says how many instead. A million go to the parser alone.
"""

from __future__ import annotations

import contextlib
import gc
import json
import logging
import os
import random
import socket
import sys
from collections import Counter

import pytest
from probe_packets import PacketMaker
from probed import Probed, eventually, probed

from kiwi_worker.kiwi.probe import NotAPacket, packet_id, pull_signal, reception
from kiwi_worker.kiwi.probe.packets import IGNORED_REASONS, PacketSplitter

PACKETS = int(os.environ.get("SOAK_PACKETS", "50000"))
PARSED = max(1_000_000, PACKETS)
BATCH = 50
"""So few at once that the system has room for all of them and drops none."""
BATCHES_PER_STREAM = 5
FEW_BLOCKS = 2000

pytestmark = pytest.mark.timeout(240 + PACKETS / 500)


class Account:
    """What the counters of a probe have to come to."""

    def __init__(self) -> None:
        self.packets = 0
        self.ignored = dict.fromkeys(IGNORED_REASONS, 0)

    def take(self, packet: bytes) -> bytes:
        """The answer to a packet; empty when it gets none."""
        try:
            identity = packet_id(packet)
        except NotAPacket as error:
            self.ignored[error.reason] += 1
            return b""
        self.packets += 1
        return b"ACK:" + identity.encode()

    def take_stream(self, stream: bytes) -> tuple[bytes, bool]:
        """The answers to a stream, and whether all of it is read."""
        splitter, answers = PacketSplitter(), b""
        try:
            for packet in splitter.feed(stream):
                answers += self.take(packet)
        except NotAPacket as error:
            self.ignored[error.reason] += 1
            return answers, False
        self.ignored["incomplete"] += splitter.partial
        return answers, True


def test_the_probe_lives_through_a_flood_of_mutated_packets(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    maker, account = PacketMaker(seeded()), Account()
    # What it remembers is bounded: let the bound be reached before anything is measured.
    monkeypatch.setattr(reception, "REMEMBERED_PACKETS", 500)
    with caplog.at_level(logging.DEBUG), probed(idle_limit=60) as probe, probe.udp() as sock:
        blocks = Blocks()
        for sent in range(0, PACKETS, BATCH):
            if sent // BATCH % (BATCHES_PER_STREAM + 1) == BATCHES_PER_STREAM:
                send_stream(probe, maker, account)
            else:
                send_datagrams(sock, maker, account, sent)
            blocks.look(sent / PACKETS)
        counters = probe.counters
        eventually(lambda: counters.wakes + counters.repeated == account.packets)
        print(counters, blocks)
        assert (counters.packets, counters.ignored) == (account.packets, account.ignored)
        assert (counters.acknowledged, counters.unacknowledged) == (account.packets, 0)
        assert (counters.receive_errors, counters.cut_connections) == (0, 0)
        assert probe.wakes == counters.wakes > PACKETS // 10
        assert counters.repeated > 0
        assert probe.ask("afterwards") == b"ACK:afterwards"
        assert blocks.grown() < FEW_BLOCKS, blocks
    # Each kind of nonsense is reported once, and nothing else is.
    reported = Counter(record.action for record in caplog.records)  # type: ignore[attr-defined]
    assert reported == {f"probe_{reason}": 1 for reason, count in account.ignored.items() if count}


def send_datagrams(sock: socket.socket, maker: PacketMaker, account: Account, number: int) -> None:
    """Send a batch, and read what it is answered with; the answer to the last one says that all are heard."""
    batch = [*(maker.any() for _ in range(BATCH - 1)), pull_signal(f"batch-{number}")]
    for packet in batch:
        sock.send(packet)
    expected = [answer for answer in map(account.take, batch) if answer]
    assert [sock.recv(65_536) for _ in expected] == expected


def send_stream(probe: Probed, maker: PacketMaker, account: Account) -> None:
    stream = maker.stream(BATCH)
    expected, is_read = account.take_stream(stream)
    with probe.tcp() as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with contextlib.suppress(OSError):  # nonsense ends the connection, whatever is still to be sent
            for piece in maker.cuts(stream):
                sock.sendall(piece)
            sock.shutdown(socket.SHUT_WR)
        answers = received_before_reset(sock)
    assert answers == expected if is_read else expected.startswith(answers)


def received_before_reset(sock: socket.socket) -> bytes:
    answers = b""
    with contextlib.suppress(ConnectionError):
        while part := sock.recv(65_536):
            answers += part
    return answers


def test_a_million_packets_are_packets_or_none_and_leave_nothing_behind() -> None:
    maker, blocks, found = PacketMaker(seeded()), Blocks(), Counter[str]()
    for number in range(PARSED):
        packet = maker.any()
        try:
            identity = packet_id(packet)
        except NotAPacket as error:
            found[error.reason] += 1
            # The standard library is slow, and asked about one in ten.
            assert number % 10 or not is_packet(packet), packet
        else:
            found["packet"] += 1
            assert json.loads(packet)["PacketId"] == identity
        if not number % 10_000:
            blocks.look(number / PARSED)
    print(found, blocks)
    assert found["packet"] > PARSED // 5
    assert blocks.grown() < FEW_BLOCKS, blocks


def checked(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """An object; every value can be written again, also one that a later one of its name hides."""
    json.dumps(pairs, ensure_ascii=False, allow_nan=False).encode()
    return dict(pairs)


def test_a_lone_surrogate_under_a_name_that_comes_twice_is_no_json() -> None:
    packet = pull_signal("a").replace(b'"Message"', rb'"x":"\ud800","x":1,"Message"')
    assert not is_packet(packet)
    with pytest.raises(NotAPacket, match="not_json"):
        packet_id(packet)


def is_packet(data: bytes) -> bool:
    """Whether it is one, in the reading of another parser, which takes more for JSON than is."""
    try:
        value = json.loads(data.decode(), object_pairs_hook=checked)
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError):
        return False
    identity = value.get("PacketId") if isinstance(value, dict) else None
    if not isinstance(identity, str):
        return False
    return 0 < len(identity) <= 128 and identity.isascii() and identity.isprintable()


def test_streams_are_told_apart_alike_however_they_are_cut() -> None:
    maker = PacketMaker(seeded())
    for _ in range(PARSED // 200):
        stream = maker.stream(10)
        assert split(maker.cuts(stream)) == split([stream])


def split(pieces: list[bytes]) -> tuple[list[bytes], str]:
    """The packets of a stream that comes in such pieces, and how it ended."""
    splitter, packets = PacketSplitter(), list[bytes]()
    try:
        for piece in pieces:
            packets += splitter.feed(piece)
    except NotAPacket as error:
        return packets, error.reason
    return packets, "incomplete" if splitter.partial else ""


class Blocks:
    """How many blocks of memory this process has, from a tenth of the way on."""

    def __init__(self) -> None:
        self.first: int | None = None
        self.last = 0

    def look(self, way: float) -> None:
        if way < 0.1 or (self.first is not None and way < 0.98):
            return
        gc.collect()
        self.last = sys.getallocatedblocks()
        if self.first is None:
            self.first = self.last

    def grown(self) -> int:
        assert self.first is not None
        return self.last - self.first

    def __str__(self) -> str:
        return f"{self.first} blocks, then {self.last}"


def seeded() -> int:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    return seed
