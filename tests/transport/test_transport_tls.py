"""TLS: who is trusted, what is shown, and that a kept connection behaves under it as without."""

from __future__ import annotations

import os
import shutil
import socket
import ssl
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from raw_server import LIMIT_SECONDS, OK, Peer, Request, answering, serving, wait_until
from transport_certificates import Authority

from kiwi_worker.errors import Ambiguous, NotSent, SettingsError, TransportError
from kiwi_worker.transport import Channel, Endpoint

Call = Callable[..., Any]


@pytest.fixture(scope="session")
def context(authority: Authority) -> ssl.SSLContext:
    return authority.server_context("server", "localhost", "127.0.0.1", "::1")


def test_a_private_authority_is_trusted_by_its_file(
    call: Call, authority: Authority, context: ssl.SSLContext
) -> None:
    requests: list[Request] = []
    with serving(answering(OK, requests=requests), context=context) as server:
        calling = call(server.url, ca_file=str(authority.file))
        for _ in range(3):
            assert calling("POST", "/x", b"{}", authorization="Bearer t").body == b"{}"
    assert [request.header("Authorization") for request in requests] == ["Bearer t"] * 3
    assert len(server.peers) == 1


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_localhost_is_checked_by_its_name_on_either_family(
    call: Call, authority: Authority, host: str
) -> None:
    context = authority.server_context("by-name", "localhost")
    with serving(answering(OK), host=host, context=context) as server:
        url = f"https://localhost:{server.port}"
        assert call(url, ca_file=str(authority.file))("GET", "/").status == 200


def test_an_unknown_authority_is_not_sent_anything(call: Call, context: ssl.SSLContext) -> None:
    requests: list[Request] = []
    handler, problem = answering(OK, requests=requests), r"certificate was refused.*check ca_file"
    with serving(handler, context=context) as server, pytest.raises(NotSent, match=problem):
        call(server.url)("GET", "/", authorization="Bearer t")
    assert requests == []


def test_another_authority_is_not_sent_anything(
    call: Call, stranger: Authority, context: ssl.SSLContext
) -> None:
    with (
        serving(answering(OK), context=context) as server,
        pytest.raises(NotSent, match="certificate was refused"),
    ):
        call(server.url, ca_file=str(stranger.file))("GET", "/")


def test_a_certificate_for_another_host_is_refused(call: Call, authority: Authority) -> None:
    context = authority.server_context("elsewhere", "elsewhere.example")
    with (
        serving(answering(OK), context=context) as server,
        pytest.raises(NotSent, match="certificate was refused"),
    ):
        call(server.url, ca_file=str(authority.file))("GET", "/")


def test_http_spoken_on_a_tls_port_and_the_other_way_round(
    call: Call, authority: Authority, context: ssl.SSLContext
) -> None:
    with serving(answering(OK), context=context) as server, pytest.raises(TransportError):
        call(server.url.replace("https", "http"))("GET", "/")

    def garbage(peer: Peer) -> None:
        peer.sock.recv(100)
        peer.send(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    with serving(garbage) as server, pytest.raises(NotSent, match="TLS failed"):
        call(server.url.replace("http", "https"), ca_file=str(authority.file))("GET", "/")


# --- client certificates ---


def test_a_client_certificate_is_shown(call: Call, authority: Authority) -> None:
    context = authority.server_context("asking", "127.0.0.1", ask_client=True)
    subjects: list[Any] = []

    def handle(peer: Peer) -> None:
        assert isinstance(peer.sock, ssl.SSLSocket)
        subjects.append((peer.sock.getpeercert() or {}).get("subject"))
        answering(OK)(peer)

    cert, key = authority.issue("client")
    both = Path(cert).with_suffix(".both")
    both.write_bytes(Path(cert).read_bytes() + Path(key).read_bytes())
    with serving(handle, context=context) as server:
        ca_file = str(authority.file)
        assert call(server.url, ca_file=ca_file, client_cert=cert, client_key=key)("GET", "/").status == 200
        assert call(server.url, ca_file=ca_file, client_cert=str(both))("GET", "/").status == 200
    assert subjects == [((("commonName", "client"),),)] * 2


def test_a_server_that_wants_a_certificate_says_so(call: Call, authority: Authority) -> None:
    context = authority.server_context("asking-in-vain", "127.0.0.1", ask_client=True)
    with serving(answering(OK), context=context) as server, pytest.raises(TransportError) as caught:
        call(server.url, ca_file=str(authority.file))("GET", "/")
    # The server's own word may be lost with the connection.
    assert any(word in str(caught.value) for word in ("client_cert", "cut off", "reset"))


def _files(authority: Authority, folder: Path) -> dict[str, str]:
    cert, key = authority.issue("files")
    _, other_key = authority.issue("other")
    _, locked_key = authority.issue("locked", password=b"p")
    text = folder / "text"
    text.write_text("no certificate")
    return {
        "ca": str(authority.file),
        "cert": cert,
        "key": key,
        "other": other_key,
        "locked": locked_key,
        "text": str(text),
        "empty": os.devnull,
        "missing": str(folder / "missing"),
        "folder": str(folder),
    }


@pytest.mark.parametrize(
    ("given", "setting", "problem"),
    [
        ({"ca_file": "missing"}, "ca_file", "cannot be read: No such file"),
        ({"ca_file": "folder"}, "ca_file", "cannot be read: Is a directory"),
        ({"ca_file": "text"}, "ca_file", "no certificates"),
        ({"ca_file": "empty"}, "ca_file", "no certificates"),
        ({"client_cert": "missing", "client_key": "key"}, "client_cert", "cannot be read"),
        ({"client_cert": "cert", "client_key": "missing"}, "client_key", "cannot be read"),
        ({"client_cert": "text", "client_key": "key"}, "client_cert", "PEM"),
        ({"client_cert": "cert", "client_key": "text"}, "client_cert", "PEM"),
        ({"client_cert": "cert"}, "client_cert", "PEM"),
        ({"client_cert": "cert", "client_key": "other"}, "client_key", "does not belong to"),
        ({"client_cert": "cert", "client_key": "locked"}, "client_key", "encrypted"),
        ({"client_key": "key"}, "client_key", "without client_cert"),
    ],
)
def test_a_file_that_cannot_be_used_names_its_setting(
    call: Call, authority: Authority, tmp_path: Path, given: dict[str, str], setting: str, problem: str
) -> None:
    files = _files(authority, tmp_path)
    how = {"ca_file": "ca", **given}
    how = {key: files[value] for key, value in how.items()}
    with pytest.raises(SettingsError, match=problem) as caught:
        Endpoint("https://127.0.0.1:1", **how).check()
    assert caught.value.key == setting
    with pytest.raises(SettingsError) as caught:
        call("https://127.0.0.1:1", **how)("GET", "/")
    assert caught.value.key == setting


def test_without_tls_the_files_are_not_asked_for() -> None:
    Endpoint("http://h", ca_file="/no/such/file").check()
    with pytest.raises(SettingsError):
        Endpoint("http://h", ca_file="/no/such/file", proxy="https://proxy").check()


def test_a_renewed_file_is_read_at_the_next_connection_and_a_broken_one_is_not(
    call: Call, authority: Authority, stranger: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ca_file = tmp_path / "ca.pem"
    shutil.copy(stranger.file, ca_file)
    context = authority.server_context("renewed", "127.0.0.1")
    closing = OK.replace(b"OK\r\n", b"OK\r\nConnection: close\r\n")
    with serving(answering(closing), context=context) as server:
        calling = call(server.url, ca_file=str(ca_file))
        with pytest.raises(NotSent):
            calling("GET", "/")
        shutil.copy(authority.file, ca_file)
        os.utime(ca_file, ns=(1, 1))
        assert calling("GET", "/").status == 200
        ca_file.write_text("half writ")
        for _ in range(2):
            assert calling("GET", "/").status == 200
    assert [
        record.__dict__["action"] for record in caplog.records if record.name == "kiwi_worker.transport"
    ] == ["tls_reload_failed"]


# --- kept connections under TLS ---


def test_session_tickets_that_arrive_while_idle_do_not_end_a_connection(
    channel: Callable[..., Channel], authority: Authority
) -> None:
    context = authority.server_context("tickets", "127.0.0.1")
    context.num_tickets = 5
    with serving(answering(OK), context=context) as server:
        kept = channel(server.url, ca_file=str(authority.file))
        for _ in range(5):
            assert kept.call("GET", "/", authorization=None, read_timeout=5).status == 200
    assert len(server.peers) == 1


@pytest.mark.parametrize("ending", ["farewell", "cut", "reset", "bytes"])
def test_a_connection_closed_while_idle_is_noticed_under_tls(
    channel: Callable[..., Channel], authority: Authority, ending: str
) -> None:
    context = authority.server_context("without-tickets", "127.0.0.1")
    context.num_tickets = 0
    bodies: list[bytes] = []

    def handle(peer: Peer) -> None:
        while (request := peer.read_request()) is not None:
            bodies.append(request.body)
            peer.send(OK)
            if peer.number == 0:
                break
        assert isinstance(peer.sock, ssl.SSLSocket)
        if ending == "farewell":
            peer.sock.unwrap()
        if ending == "reset":
            peer.reset()
        if ending == "bytes":
            peer.send(OK)
            peer.until_closed()

    with serving(handle, context=context) as server:
        kept = channel(server.url, ca_file=str(authority.file))
        for body in (b"1", b"2"):
            assert kept.call("POST", "/", body, authorization=None, read_timeout=5).status == 200
            if body == b"1":
                wait_until(lambda: bool(kept._connection.readable()))
    assert bodies == [b"1", b"2"]


def test_the_shorter_limit_of_an_earlier_call_does_not_last_under_tls(
    channel: Callable[..., Channel], authority: Authority, context: ssl.SSLContext
) -> None:
    def handle(peer: Peer) -> None:
        peer.read_request()
        peer.send(OK)
        peer.read_request()
        time.sleep(0.4)
        peer.send(OK)

    with serving(handle, context=context) as server:
        kept = channel(server.url, ca_file=str(authority.file))
        for seconds in (0.3, 10):
            assert kept.call("POST", "/", b"1", authorization=None, read_timeout=seconds).status == 200
        assert len(server.peers) == 1


def test_an_end_without_farewell_is_no_end_of_a_body_under_tls(
    channel: Callable[..., Channel], authority: Authority, context: ssl.SSLContext
) -> None:
    def handle(peer: Peer) -> None:
        peer.read_request()
        peer.send(b"HTTP/1.1 200 OK\r\n\r\n[1, 2")
        if peer.number == 0:
            socket.socket.shutdown(peer.sock, socket.SHUT_RDWR)
        else:
            assert isinstance(peer.sock, ssl.SSLSocket)
            peer.sock.unwrap()

    with serving(handle, context=context) as server:
        kept = channel(server.url, ca_file=str(authority.file))
        with pytest.raises(Ambiguous) as caught:
            kept.call("GET", "/", authorization=None, read_timeout=5)
        assert (caught.value.status, caught.value.partial_body) == (200, b"[1, 2")
        assert kept.call("GET", "/", authorization=None, read_timeout=5).body == b"[1, 2"


def test_limits_hold_under_tls(
    channel: Callable[..., Channel], authority: Authority, context: ssl.SSLContext
) -> None:
    given_up = threading.Event()

    def handle(peer: Peer) -> None:
        peer.read_request()
        for byte in b"HTTP/1.1 200 OK\r\n" * 100:
            peer.send(bytes([byte]))
            if given_up.wait(0.05):
                return

    with serving(handle, context=context) as server:
        kept = channel(server.url, ca_file=str(authority.file))
        with pytest.raises(Ambiguous, match="the time for it was over"):
            kept.call("GET", "/", authorization=None, read_timeout=0.3)
        given_up.set()


def test_large_bodies_pass_both_ways_under_tls(
    call: Call, authority: Authority, context: ssl.SSLContext
) -> None:
    body = bytes(range(256)) * 4000

    def handle(peer: Peer) -> None:
        while (request := peer.read_request()) is not None:
            peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(request.body), request.body))

    with serving(handle, context=context) as server:
        calling = call(server.url, ca_file=str(authority.file))
        for size in (100, 16_000, 60_000, len(body)):
            assert calling("POST", "/", body[:size]).body == body[:size]
    assert len(server.peers) == 1


def test_an_interrupt_ends_a_blocked_call_under_tls(
    channel: Callable[..., Channel], authority: Authority, context: ssl.SSLContext
) -> None:
    asked: list[Request | None] = []

    def handle(peer: Peer) -> None:
        asked.append(peer.read_request())
        if peer.number == 0:
            peer.until_closed()
        peer.send(OK)

    caught: list[BaseException] = []
    with serving(handle, context=context) as server:
        kept = channel(server.url, ca_file=str(authority.file))

        def run() -> None:
            try:
                kept.call("GET", "/", authorization=None, read_timeout=60)
            except BaseException as error:
                caught.append(error)

        thread = threading.Thread(target=run, name="interrupted")
        thread.start()
        wait_until(lambda: bool(asked))
        kept.interrupt()
        thread.join(LIMIT_SECONDS)
        assert not thread.is_alive()
        assert isinstance(caught[0], Ambiguous)
        assert "it was interrupted" in str(caught[0])
        assert kept.call("GET", "/", authorization=None, read_timeout=5).status == 200


def test_an_interrupt_ends_a_handshake_that_stalls(
    channel: Callable[..., Channel], authority: Authority
) -> None:
    begun = threading.Event()

    def handle(peer: Peer) -> None:
        peer.sock.recv(1)
        begun.set()
        peer.until_closed()

    caught: list[BaseException] = []
    with serving(handle) as server:
        url = server.url.replace("http", "https")
        kept = channel(url, ca_file=str(authority.file), connect_timeout=60.0)

        def run() -> None:
            try:
                kept.call("GET", "/", authorization=None, read_timeout=60)
            except BaseException as error:
                caught.append(error)

        thread = threading.Thread(target=run, name="interrupted")
        thread.start()
        assert begun.wait(LIMIT_SECONDS)
        kept.interrupt()
        thread.join(LIMIT_SECONDS)
        assert not thread.is_alive()
    assert isinstance(caught[0], NotSent)
    assert "it was interrupted" in str(caught[0])


def test_a_handshake_that_stalls_ends_with_the_connect_limit(call: Call, authority: Authority) -> None:
    with serving(lambda peer: peer.until_closed()) as server:
        url = server.url.replace("http", "https")
        with pytest.raises(NotSent, match="no connection in time"):
            call(url, ca_file=str(authority.file), connect_timeout=0.3)("GET", "/")
