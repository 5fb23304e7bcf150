"""The seldom calls: forms, what the environment may not do, many threads, limits."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from urllib.parse import parse_qsl

import pytest
from raw_server import LIMIT_SECONDS, OK, Peer, Request, answering, serving

from kiwi_worker.errors import Ambiguous
from kiwi_worker.transport import SeldomClient

MakeSeldom = Callable[..., SeldomClient]


def test_report_5_a_form_is_encoded_exactly_once(seldom: MakeSeldom) -> None:
    requests: list[Request] = []
    form = {"client_secret": "a+b/c=%41&\u00e9 \u20ac\n", "grant_type": "client_credentials"}
    with serving(answering(OK, requests=requests)) as server:
        seldom(server.url).call("POST", "/token", form=form)
    assert requests[0].header("Content-Type") == "application/x-www-form-urlencoded"
    assert dict(parse_qsl(requests[0].body.decode("ascii"), strict_parsing=True)) == form


def test_a_body_of_json_is_sent_as_it_is(seldom: MakeSeldom) -> None:
    requests: list[Request] = []
    with serving(answering(OK, requests=requests)) as server:
        seldom(server.url + "/base").call("PUT", "/x", json=b'{"a": "\xc3\xa9"}', authorization="Bearer t")
        seldom(server.url).call("PUT", "/y")
    first, second = requests
    assert first.body == b'{"a": "\xc3\xa9"}'
    assert first.target == "/base/x"
    assert first.header("Content-Type") == "application/json"
    assert first.header("User-Agent") == "test/1"
    assert second.header("Content-Length") == "0"
    assert second.header("Authorization") is None


@pytest.mark.parametrize(
    "content", ["machine 127.0.0.1 login u password p", "default login u password p", ""]
)
def test_report_11_a_netrc_does_not_replace_the_token(
    seldom: MakeSeldom, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, content: str
) -> None:
    netrc = tmp_path / ".netrc"
    netrc.write_text(content)
    netrc.chmod(0o600)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(netrc))
    requests: list[Request] = []
    with serving(answering(OK, requests=requests)) as server:
        client = seldom(server.url)
        client.call("GET", "/x", authorization="Bearer t")
        client.call("POST", "/token", form={"a": "b"})
    assert [request.header("Authorization") for request in requests] == ["Bearer t", None]


def test_cookies_are_not_kept(seldom: MakeSeldom) -> None:
    requests: list[Request] = []
    raw = b"HTTP/1.1 200 OK\r\nSet-Cookie: a=b; Path=/\r\nContent-Length: 0\r\n\r\n"
    with serving(answering(raw, requests=requests)) as server:
        client = seldom(server.url)
        for _ in range(2):
            client.call("GET", "/")
    assert [request.header("Cookie") for request in requests] == [None, None]


def test_report_15_fifty_threads_share_a_client_without_a_warning(
    seldom: MakeSeldom, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    together = threading.Barrier(50)
    statuses: list[int] = []

    def handle(peer: Peer) -> None:
        while peer.read_request() is not None:
            together.wait(LIMIT_SECONDS)
            peer.send(OK)

    with serving(handle) as server:
        client = seldom(server.url)

        def run() -> None:
            for _ in range(2):
                statuses.append(client.call("GET", "/").status)

        threads = [threading.Thread(target=run, name=f"caller-{i}") for i in range(50)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LIMIT_SECONDS)
        assert len(server.peers) == 50
    assert statuses == [200] * 100
    assert [record.getMessage() for record in caplog.records] == []


def test_a_body_that_drips_cannot_stretch_a_call(seldom: MakeSeldom) -> None:
    given_up = threading.Event()

    def handle(peer: Peer) -> None:
        peer.read_request()
        peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\n")
        while not given_up.wait(0.02):
            peer.send(b"x")

    with serving(handle) as server:
        with pytest.raises(Ambiguous, match="the time for it was over") as caught:
            seldom(server.url).call("GET", "/", read_timeout=0.3)
        given_up.set()
    assert caught.value.status == 200
    assert set(caught.value.partial_body) == {ord("x")}


def test_a_client_can_be_used_again_after_close(seldom: MakeSeldom) -> None:
    with serving(answering(OK)) as server:
        client = seldom(server.url)
        client.close()
        for _ in range(2):
            assert client.call("GET", "/").status == 200
            client.close()
            client.close()
    assert len(server.peers) == 2


@pytest.mark.parametrize("raw", [b"garbage\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n[1"])
def test_odd_and_cut_answers_are_ambiguous(seldom: MakeSeldom, raw: bytes) -> None:
    def handle(peer: Peer) -> None:
        peer.read_request()
        peer.send(raw)

    with serving(handle) as server, pytest.raises(Ambiguous, match=f"GET / at {server.url} was sent"):
        seldom(server.url).call("GET", "/")
