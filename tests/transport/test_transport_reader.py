"""The strict reader: what it takes, what it refuses, and that it never hangs on anything."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kiwi_worker.transport.reader import MAX_HEAD_BYTES, Malformed, Reader

MAX_BODY = 100_000

GOOD = {
    "length": (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", 200, b"hello", True),
    "empty": (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", 200, b"", True),
    "no reason": (b"HTTP/1.1 200 \r\ncontent-length:2\r\n\r\n{}", 200, b"{}", True),
    "no reason, no space": (b"HTTP/1.1 200\r\ncontent-length:2\t\r\n\r\n{}", 200, b"{}", True),
    "same length twice": (
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\ncontent-length: 2\r\n\r\n{}",
        200,
        b"{}",
        True,
    ),
    "204": (b"HTTP/1.1 204 No Content\r\nX: y\r\n\r\n", 204, b"", True),
    "204 with length 0": (b"HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n\r\n", 204, b"", True),
    "304": (b"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n", 304, b"", False),
    "error": (b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 6\r\n\r\n<html>", 502, b"<html>", True),
    "close": (
        b"HTTP/1.1 200 OK\r\nConnection: Keep-Alive , Close\r\nContent-Length: 2\r\n\r\n{}",
        200,
        b"{}",
        False,
    ),
    "1.0": (b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\n{}", 200, b"{}", False),
    "until close": (b"HTTP/1.1 200 OK\r\nX: y\r\n\r\nall of it", 200, b"all of it", False),
    "continued": (
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"
        b"HTTP/1.1 201 Created\r\nContent-Length: 2\r\n\r\n{}",
        201,
        b"{}",
        True,
    ),
    "chunked": (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n5\r\nhello\r\n06;a=b\r\n world\r\n0\r\n\r\n",
        200,
        b"hello world",
        True,
    ),
    "trailers": (
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\n01234\r\n000\r\nT: 1\r\nU: 2\r\n\r\n",
        200,
        b"01234",
        True,
    ),
    "latin-1": (b"HTTP/1.1 200 \xe9\r\nX: \xe9\r\nContent-Length: 1\r\n\r\nx", 200, b"x", True),
}

_LENGTH = b"Content-Length: 2\r\n"
_CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"

BAD = {
    "not http": b"SSH-2.0-OpenSSH_9.0\r\n",
    "0.9": b"<html>",
    "http/2": b"HTTP/2 200 OK\r\n" + _LENGTH + b"\r\n{}",
    "1.2": b"HTTP/1.2 200 OK\r\n" + _LENGTH + b"\r\n{}",
    "lower case": b"http/1.1 200 OK\r\n" + _LENGTH + b"\r\n{}",
    "status of two digits": b"HTTP/1.1 20 OK\r\n" + _LENGTH + b"\r\n{}",
    "status of four digits": b"HTTP/1.1 2000 OK\r\n" + _LENGTH + b"\r\n{}",
    "status 600": b"HTTP/1.1 600 OK\r\n" + _LENGTH + b"\r\n{}",
    "status 0": b"HTTP/1.1 000 OK\r\n" + _LENGTH + b"\r\n{}",
    "status glued": b"HTTP/1.1 200OK\r\n" + _LENGTH + b"\r\n{}",
    "two spaces": b"HTTP/1.1  200 OK\r\n" + _LENGTH + b"\r\n{}",
    "NUL in the reason": b"HTTP/1.1 200 O\0K\r\n" + _LENGTH + b"\r\n{}",
    "CR in the reason": b"HTTP/1.1 200 O\rK\r\n" + _LENGTH + b"\r\n{}",
    "bare line feeds": b"HTTP/1.1 200 OK\n" + b"Content-Length: 2\n\n{}" + b"\r\n\r\n",
    "folded line": b"HTTP/1.1 200 OK\r\nX: y\r\n z\r\n" + _LENGTH + b"\r\n{}",
    "folded with a tab": b"HTTP/1.1 200 OK\r\nX: y\r\n\tz\r\n" + _LENGTH + b"\r\n{}",
    "no colon": b"HTTP/1.1 200 OK\r\nnonsense\r\n" + _LENGTH + b"\r\n{}",
    "no name": b"HTTP/1.1 200 OK\r\n: y\r\n" + _LENGTH + b"\r\n{}",
    "space before the colon": b"HTTP/1.1 200 OK\r\nContent-Length : 2\r\n\r\n{}",
    "NUL in a field": b"HTTP/1.1 200 OK\r\nX: \0\r\n" + _LENGTH + b"\r\n{}",
    "CR in a field": b"HTTP/1.1 200 OK\r\nX: a\rb\r\n" + _LENGTH + b"\r\n{}",
    "LF in a field": b"HTTP/1.1 200 OK\r\nX: a\nContent-Length: 1\r\n" + _LENGTH + b"\r\n{}",
    "two lengths": b"HTTP/1.1 200 OK\r\n" + _LENGTH + b"Content-Length: 3\r\n\r\n{}x",
    "list of lengths": b"HTTP/1.1 200 OK\r\nContent-Length: 2, 2\r\n\r\n{}",
    "negative length": b"HTTP/1.1 200 OK\r\nContent-Length: -2\r\n\r\n{}",
    "signed length": b"HTTP/1.1 200 OK\r\nContent-Length: +2\r\n\r\n{}",
    "hex length": b"HTTP/1.1 200 OK\r\nContent-Length: 0x2\r\n\r\n{}",
    "empty length": b"HTTP/1.1 200 OK\r\nContent-Length:\r\n\r\n{}",
    "endless length": b"HTTP/1.1 200 OK\r\nContent-Length: " + b"9" * 40 + b"\r\n\r\n{}",
    "both": b"HTTP/1.1 200 OK\r\n" + _LENGTH + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "gzip, chunked": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "chunked twice": b"HTTP/1.1 200 OK\r\n" + b"Transfer-Encoding: chunked\r\n" * 2 + b"\r\n0\r\n\r\n",
    "identity": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n",
    "chunked in 1.0": b"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "204 with a body": b"HTTP/1.1 204 No Content\r\nContent-Length: 2\r\n\r\n{}",
    "204 chunked": b"HTTP/1.1 204 No Content\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "100 with a body": b"HTTP/1.1 100 Continue\r\nContent-Length: 2\r\n\r\n{}",
    "switching protocols": b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n",
    "bytes after the answer": b"HTTP/1.1 200 OK\r\n" + _LENGTH + b"\r\n{}HTTP/1.1 200 OK\r\n",
    "bytes after the chunks": _CHUNKED + b"0\r\n\r\nX",
    "chunk size no number": _CHUNKED + b"x\r\n\r\n",
    "chunk size negative": _CHUNKED + b"-1\r\n\r\n",
    "chunk size with 0x": _CHUNKED + b"0x1\r\na\r\n0\r\n\r\n",
    "chunk size empty": _CHUNKED + b"\r\n\r\n",
    "chunk size endless": _CHUNKED + b"f" * 17 + b"\r\n",
    "chunk size with a space before": _CHUNKED + b" 1\r\na\r\n0\r\n\r\n",
    "chunk with a bare line feed": _CHUNKED + b"1\na\r\n0\r\n\r\n",
    "chunk longer than it says": _CHUNKED + b"1\r\nab\r\n0\r\n\r\n",
    "chunk line too long": _CHUNKED + b"1;" + b"x" * 5000 + b"\r\na\r\n0\r\n\r\n",
    "trailer malformed": _CHUNKED + b"0\r\nno colon\r\n\r\n",
    "trailers too long": _CHUNKED + b"0\r\n" + (b"X: " + b"y" * 1000 + b"\r\n") * 70 + b"\r\n",
    "head too long": b"HTTP/1.1 200 OK\r\nX: " + b"y" * MAX_HEAD_BYTES + b"\r\n" + _LENGTH + b"\r\n{}",
    "head without end": b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 20_000,
    "1xx without end": b"HTTP/1.1 100 Continue\r\n\r\n" * 10_000,
    "body too long": b"HTTP/1.1 200 OK\r\nContent-Length: 100001\r\n\r\n" + b"x" * 100_001,
    "chunks too long": _CHUNKED + (b"ff\r\n" + b"x" * 255 + b"\r\n") * 400 + b"0\r\n\r\n",
    "until close too long": b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 100_001,
}


def read_pieces(pieces: list[bytes]) -> tuple[Reader, bool]:
    """Read an answer that comes in these pieces; also says whether the connection may be kept."""
    left = [piece for piece in pieces if piece]
    reader = Reader(lambda size: left.pop(0) if left else b"", MAX_BODY)
    head = reader.read(left.pop(0) if left else b"")
    if left and head.keeps:
        raise Malformed("more came")
    return reader, head.keeps


def split(data: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({min(cut, len(data)) for cut in cuts} | {0, len(data)})
    return [data[a:b] for a, b in pairwise(places)]


@pytest.mark.parametrize(("data", "status", "body", "keeps"), GOOD.values(), ids=GOOD)
def test_a_good_answer_is_read_however_it_is_split(
    data: bytes, status: int, body: bytes, keeps: bool
) -> None:
    bytewise = [data[i : i + 1] for i in range(len(data))]
    for pieces in [[data], bytewise, *([data[:i], data[i:]] for i in range(len(data)))]:
        reader, kept = read_pieces(pieces)
        assert (reader.status, bytes(reader.body), kept) == (status, body, keeps)


@pytest.mark.parametrize("data", BAD.values(), ids=BAD)
def test_an_odd_answer_is_refused(data: bytes) -> None:
    with pytest.raises(Malformed):
        read_pieces([data])


@pytest.mark.parametrize("data", [d for d in BAD.values() if len(d) < 500])
def test_an_odd_answer_is_refused_byte_by_byte(data: bytes) -> None:
    with pytest.raises(Malformed):
        read_pieces([data[i : i + 1] for i in range(len(data))])


@pytest.mark.parametrize(("data", "body"), [(d, b) for n, (d, _, b, _) in GOOD.items() if n != "until close"])
def test_a_truncated_answer_keeps_what_came_of_its_body(data: bytes, body: bytes) -> None:
    for end in range(len(data)):
        reader = Reader(lambda size: b"", MAX_BODY)
        with pytest.raises(Malformed, match="closed before the answer was whole"):
            reader.read(data[:end])
        assert body.startswith(reader.body)


def test_what_is_no_http_is_not_waited_for() -> None:
    def receive(size: int) -> bytes:
        raise AssertionError("it waited")

    with pytest.raises(Malformed, match="status line"):
        Reader(receive, MAX_BODY).read(b"\x15\x03\x01\x00\x02")


@pytest.mark.parametrize("name", ["body too long", "chunks too long", "until close too long"])
def test_of_a_body_that_is_too_long_as_much_is_kept_as_fits(name: str) -> None:
    data = BAD[name]
    reader = Reader(lambda size: b"", MAX_BODY)
    with pytest.raises(Malformed, match="longer than 100000 bytes"):
        reader.read(data)
    assert bytes(reader.body) == b"x" * MAX_BODY


def test_a_field_of_blanks_is_read_in_linear_time() -> None:
    blanks = b" " * 60_000
    data = b"HTTP/1.1 200 OK\r\nConnection: a" + blanks + b"b\r\nContent-Length: 1\r\n\r\nx"
    reader, keeps = read_pieces([data])
    assert (bytes(reader.body), keeps) == (b"x", True)


_fragments = st.sampled_from(
    [
        b"HTTP/1.1 200 OK\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n",
        b"HTTP/1.0 502 \r\n",
        b"Content-Length: 5\r\n",
        b"Content-Length: 0\r\n",
        b"Transfer-Encoding: chunked\r\n",
        b"Connection: close\r\n",
        b"\r\n",
        b"5\r\nhello\r\n",
        b"0\r\n\r\n",
        b"hello",
        b"\n",
        b"\r",
        b"\0",
        b" ",
        b":",
    ]
)
_wild = st.lists(st.one_of(_fragments, st.binary(max_size=8)), max_size=12).map(b"".join)
_cuts = st.lists(st.integers(0, 300), max_size=6)


@given(data=st.one_of(_wild, st.binary(max_size=300)), cuts=_cuts)
@settings(max_examples=400, deadline=None)
def test_random_bytes_are_an_answer_or_refused_and_the_split_does_not_matter(
    data: bytes, cuts: list[int]
) -> None:
    def outcome(pieces: list[bytes]) -> tuple[int | None, bytes, bool] | None:
        try:
            reader, keeps = read_pieces(pieces)
        except Malformed:
            return None
        return reader.status, bytes(reader.body), keeps

    assert outcome([data]) == outcome(split(data, cuts))


@given(body=st.binary(max_size=400), sizes=st.lists(st.integers(1, 50), min_size=1, max_size=40), cuts=_cuts)
@settings(max_examples=200, deadline=None)
def test_any_body_in_any_chunks_in_any_pieces(body: bytes, sizes: list[int], cuts: list[int]) -> None:
    data, at = _CHUNKED, 0
    for size in sizes:
        piece = body[at : at + size]
        at += size
        if piece:
            data += b"%x\r\n%b\r\n" % (len(piece), piece)
    data += b"0\r\n\r\n"
    reader, keeps = read_pieces(split(data, cuts))
    assert (bytes(reader.body), keeps) == (body[:at], True)
