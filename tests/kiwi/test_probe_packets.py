"""What is a wake-up packet, and where one ends and the next begins."""

from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kiwi_worker.kiwi.probe.packets import (
    MAX_PACKET_BYTES,
    NotAPacket,
    PacketSplitter,
    acknowledgement,
    packet_id,
    pull_signal,
)

PRINTABLE = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), min_size=1, max_size=128)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


def test_the_pull_signal_is_the_ascii_packet_of_the_page() -> None:
    assert pull_signal("<guid>") == (
        b'{"PacketId":"<guid>","Message":{"MessageText":"pull_signal","Parameters":null}}'
    )
    assert json.loads(pull_signal("1", "request ä"))["Message"]["Parameters"] == "request ä"
    assert pull_signal("1", "request ä").isascii()


def test_the_answer_is_ack_and_the_packet_id_without_newline() -> None:
    assert acknowledgement("guid-1") == b"ACK:guid-1"


@settings(deadline=None)
@given(PRINTABLE)
def test_every_printable_ascii_packet_id_is_taken(identity: str) -> None:
    assert packet_id(pull_signal(identity)) == identity


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "empty"),
        (b"x", "not_json"),
        (b"{", "not_json"),
        (b"\xff\xfe", "not_json"),
        (b'{"PacketId":"a","Message":"\xff"}', "not_json"),
        (b'{"PacketId":"a"}{"PacketId":"b"}', "not_json"),
        (b'{"PacketId":"a","n":NaN}', "not_json"),
        (b'[{"PacketId":"a"}]', "not_an_object"),
        (b"null", "not_an_object"),
        (b'"PacketId"', "not_an_object"),
        (b"{}", "no_packet_id"),
        (b'{"packetid":"a"}', "no_packet_id"),
        (b'{"PacketId":null}', "bad_packet_id"),
        (b'{"PacketId":7}', "bad_packet_id"),
        (b'{"PacketId":""}', "bad_packet_id"),
        (b'{"PacketId":"' + b"a" * 129 + b'"}', "bad_packet_id"),
        (b'{"PacketId":"a\\nACK:b"}', "bad_packet_id"),
        (b'{"PacketId":"\\u0000"}', "bad_packet_id"),
        ('{"PacketId":"ä"}'.encode(), "bad_packet_id"),
        (b'{"PacketId":["a"]}', "bad_packet_id"),
        (b"[" * 60_000, "not_json"),
        (b'{"PacketId":"a"}' + b" " * MAX_PACKET_BYTES, "too_long"),
    ],
)
def test_anything_else_is_no_packet(data: bytes, reason: str) -> None:
    with pytest.raises(NotAPacket) as caught:
        packet_id(data)
    assert caught.value.reason == reason


@settings(deadline=None)
@given(st.binary(max_size=300))
def test_no_bytes_do_anything_but_raise_not_a_packet(data: bytes) -> None:
    try:
        identity = packet_id(data)
    except NotAPacket:
        return
    assert json.loads(data)["PacketId"] == identity


@settings(deadline=None)
@given(st.lists(st.dictionaries(st.text(max_size=8), JSON, max_size=4), max_size=4), st.data())
def test_packets_are_told_apart_however_the_stream_is_cut(values: list[object], data: st.DataObject) -> None:
    gap = data.draw(st.sampled_from(["", " ", "\n", "\r\n\t "]))
    stream = gap.join(json.dumps(value, ensure_ascii=data.draw(st.booleans())) for value in values).encode()
    splitter = PacketSplitter()
    found: list[object] = []
    while stream:
        cut = data.draw(st.integers(1, len(stream)))
        found += [json.loads(packet) for packet in splitter.feed(stream[:cut])]
        stream = stream[cut:]
    assert found == values
    assert not splitter.partial


@settings(deadline=None)
@given(st.lists(st.binary(max_size=60), max_size=6))
def test_no_stream_does_anything_but_yield_or_raise_not_a_packet(chunks: list[bytes]) -> None:
    splitter = PacketSplitter()
    with contextlib.suppress(NotAPacket):
        for chunk in chunks:
            for value in splitter.feed(chunk):
                assert value[:1] in (b"{", b"[")


def test_an_escape_that_is_cut_in_two_does_not_end_the_string() -> None:
    splitter = PacketSplitter()
    assert list(splitter.feed(b'{"PacketId":"a\\')) == []
    assert list(splitter.feed(b'"}"}')) == [b'{"PacketId":"a\\"}"}']


def test_what_was_complete_before_the_nonsense_is_given_first() -> None:
    packets = PacketSplitter().feed(b'{"PacketId":"a"} GET / HTTP/1.1\r\n')
    assert next(packets) == b'{"PacketId":"a"}'
    with pytest.raises(NotAPacket):
        next(packets)


def test_a_packet_that_never_ends_is_given_up_after_64_kib() -> None:
    splitter = PacketSplitter()
    assert list(splitter.feed(b'{"a":"' + b"x" * (MAX_PACKET_BYTES - 6))) == []
    with pytest.raises(NotAPacket) as caught:
        list(splitter.feed(b"x"))
    assert caught.value.reason == "too_long"
