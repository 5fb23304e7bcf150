"""Proxies: absolute form, CONNECT, TLS inside TLS, and credentials that are sent but never told."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable
from typing import Any

import pytest
from raw_server import LIMIT_SECONDS, OK, Peer, Request, answering, serving, wait_until
from small_proxy import proxying
from transport_certificates import Authority

from kiwi_worker.errors import Ambiguous, NotSent, ProtocolError
from kiwi_worker.transport import Channel

Call = Callable[..., Any]

BASIC = "Basic dXNlcjpwQHNz"  # user:p@ss


def with_credentials(url: str) -> str:
    return url.replace("://", "://user:p%40ss@")


@pytest.fixture(scope="session")
def proxy_context(authority: Authority) -> ssl.SSLContext:
    context = authority.server_context("proxy", "127.0.0.1")
    context.num_tickets = 0
    return context


@pytest.fixture(scope="session")
def server_context(authority: Authority) -> ssl.SSLContext:
    context = authority.server_context("proxied", "localhost")
    context.num_tickets = 0
    return context


@pytest.mark.parametrize("tls", [False, True], ids=["http proxy", "https proxy"])
def test_plain_requests_go_to_a_proxy_in_absolute_form(
    call: Call, authority: Authority, proxy_context: ssl.SSLContext, tls: bool
) -> None:
    requests: list[Request] = []
    with (
        serving(answering(OK, requests=requests)) as server,
        proxying(authorization=BASIC, context=proxy_context if tls else None) as (proxy, proxy_server),
    ):
        calling = call(
            server.url + "/base", proxy=with_credentials(proxy_server.url), ca_file=str(authority.file)
        )
        for _ in range(2):
            assert calling("GET", "/x?a=%20", authorization="Bearer t").status == 200
    assert len(proxy_server.peers) == 1
    for head in proxy.heads:
        assert head.startswith(f"GET {server.url}/base/x?a=%20 HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\n")
        assert head.count("Proxy-Authorization") == 1
        assert "Authorization: Bearer t\r\n" in head
    assert [request.target for request in requests] == ["/base/x?a=%20"] * 2


@pytest.mark.parametrize("tls", [False, True], ids=["http proxy", "https proxy"])
def test_tls_requests_go_through_a_tunnel_that_hides_them(
    call: Call, authority: Authority, proxy_context: ssl.SSLContext, server_context: ssl.SSLContext, tls: bool
) -> None:
    requests: list[Request] = []
    with (
        serving(answering(OK, requests=requests), context=server_context) as server,
        proxying(authorization=BASIC, context=proxy_context if tls else None) as (proxy, proxy_server),
    ):
        url = f"https://localhost:{server.port}"
        calling = call(url, proxy=with_credentials(proxy_server.url), ca_file=str(authority.file))
        for _ in range(3):
            assert calling("POST", "/x", b"{}", authorization="Bearer t").status == 200
    assert len(proxy.heads) == 1
    assert proxy.heads[0].startswith(f"CONNECT localhost:{server.port} HTTP/1.")
    assert f"Proxy-Authorization: {BASIC}\r\n" in proxy.heads[0]
    assert "Bearer" not in proxy.heads[0]
    assert [request.target for request in requests] == ["/x"] * 3
    assert all(request.header("Proxy-Authorization") is None for request in requests)


def test_the_client_certificate_is_for_the_server_and_not_for_the_proxy(
    call: Call, authority: Authority
) -> None:
    context = authority.server_context("asking-proxied", "localhost", ask_client=True)
    asking_proxy = authority.server_context("curious-proxy", "127.0.0.1")
    asking_proxy.verify_mode = ssl.CERT_OPTIONAL
    asking_proxy.load_verify_locations(authority.file)
    shown: list[Any] = []

    def note(peer: Peer) -> None:
        assert isinstance(peer.sock, ssl.SSLSocket)
        shown.append(peer.sock.getpeercert())
        answering(OK)(peer)

    cert, key = authority.issue("proxied-client")
    with serving(note, context=context) as server, proxying(context=asking_proxy) as (_, proxy_server):
        url = f"https://localhost:{server.port}"
        how = {"ca_file": str(authority.file), "client_cert": cert, "client_key": key}
        assert call(url, proxy=proxy_server.url, **how)("GET", "/").status == 200
        assert shown[0]["subject"] == ((("commonName", "proxied-client"),),)
        proxy_sock = proxy_server.peers[0].sock
        assert isinstance(proxy_sock, ssl.SSLSocket)
    assert len(shown) == 1


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_wrong_credentials_are_not_sent_and_not_told(call: Call, scheme: str) -> None:
    with proxying(authorization="Basic other") as (_, proxy_server):
        calling = call(f"{scheme}://localhost:1", proxy=with_credentials(proxy_server.url))
        with pytest.raises(NotSent, match="407") as caught:
            calling("POST", "/x", b"{}", authorization="Bearer t")
    for told in (str(caught.value), repr(caught.value.__cause__)):
        assert "p@ss" not in told
        assert "p%40ss" not in told
        assert "dXNlcjpwQHNz" not in told
    assert f"through the proxy {proxy_server.url}" in str(caught.value)


def test_a_407_without_a_proxy_is_an_answer(call: Call) -> None:
    raw = b"HTTP/1.1 407 x\r\nContent-Length: 0\r\n\r\n"
    with serving(answering(raw)) as server:
        assert call(server.url)("GET", "/").status == 407


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_proxy_that_is_not_there_is_not_sent_anything(call: Call, scheme: str) -> None:
    with serving(answering(OK)) as gone:
        pass
    with pytest.raises(NotSent, match="check middleware_url and proxy"):
        call(f"{scheme}://localhost:1", proxy=gone.url)("GET", "/")


def test_an_untrusted_proxy_is_not_sent_the_credentials(
    call: Call, authority: Authority, stranger: Authority
) -> None:
    context = stranger.server_context("false-proxy", "127.0.0.1")
    with serving(answering(OK)) as server, proxying(context=context) as (proxy, proxy_server):
        calling = call(server.url, proxy=with_credentials(proxy_server.url), ca_file=str(authority.file))
        with pytest.raises(NotSent, match="certificate was refused"):
            calling("GET", "/")
    assert proxy.heads == []


def test_the_environment_names_no_proxy(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    with serving(answering(OK)) as server:
        assert call(server.url)("GET", "/").status == 200


def test_a_redirect_through_a_plain_proxy_stays_in_absolute_form(call: Call) -> None:
    moved = b"HTTP/1.1 307 x\r\nLocation: /b?c\r\nContent-Length: 0\r\n\r\n"
    with serving(answering(moved, OK)) as server, proxying() as (proxy, proxy_server):
        assert call(server.url, proxy=proxy_server.url)("GET", "/a").status == 200
    assert [head.split(" ")[1] for head in proxy.heads] == [f"{server.url}/a", f"{server.url}/b?c"]


def test_a_login_page_of_a_proxy_is_no_answer(call: Call) -> None:
    page = b"HTTP/1.1 302 Found\r\nLocation: http://login.example/?u=x\r\nContent-Length: 0\r\n\r\n"
    with serving(answering(page)) as captive, pytest.raises(ProtocolError, match=r"http://login\.example/"):
        call("http://localhost:1", proxy=captive.url)("GET", "/a")


def test_a_proxy_that_drips_its_answer_to_connect_is_given_up(channel: Callable[..., Channel]) -> None:
    given_up = threading.Event()

    def handle(peer: Peer) -> None:
        peer.read_head()
        peer.send(b"HTTP/1.1 200 OK\r\n")
        while not given_up.wait(0.05):
            peer.send(b"X: y\r\n")

    with serving(handle) as server:
        kept = channel("https://localhost:1", proxy=server.url, connect_timeout=0.2)
        with pytest.raises(NotSent, match="no connection in time"):
            kept.call("GET", "/", authorization=None, read_timeout=60)
        given_up.set()


# --- TLS inside TLS ---


@pytest.fixture
def nested(
    channel: Callable[..., Channel],
    authority: Authority,
    proxy_context: ssl.SSLContext,
    server_context: ssl.SSLContext,
) -> Any:
    """Runs `test(channel, server)` with a channel whose TLS is inside the TLS of a proxy."""

    def run(handler: Callable[[Peer], None], test: Callable[[Channel, Any], None]) -> None:
        with (
            serving(handler, context=server_context) as server,
            proxying(context=proxy_context) as (_, proxy_server),
        ):
            url = f"https://localhost:{server.port}"
            test(channel(url, proxy=proxy_server.url, ca_file=str(authority.file)), server)

    return run


def get(kept: Channel, *, read_timeout: float = 10.0) -> Any:
    return kept.call("GET", "/", authorization=None, read_timeout=read_timeout)


def test_large_bodies_pass_both_ways_inside(nested: Any) -> None:
    body = bytes(range(256)) * 4000

    def echo(peer: Peer) -> None:
        while (request := peer.read_request()) is not None:
            peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(request.body), request.body))

    def test(kept: Channel, server: Any) -> None:
        for size in (100, 16_000, 60_000, len(body)):
            answer = kept.call("POST", "/", body[:size], authorization=None, read_timeout=10)
            assert answer.body == body[:size]
        assert len(server.peers) == 1

    nested(echo, test)


def test_a_connection_closed_while_idle_is_noticed_inside(nested: Any) -> None:
    ended = threading.Event()

    def once(peer: Peer) -> None:
        peer.read_request()
        peer.send(OK)
        if peer.number == 0:
            peer.sock.close()
            ended.set()
        peer.until_closed()

    def test(kept: Channel, server: Any) -> None:
        get(kept)
        assert ended.wait(LIMIT_SECONDS)
        sock: Any = kept._connection.sock
        # The proxy passes the end on, which the layer below then has.
        wait_until(lambda: bool(_readable(sock.socket)))
        assert get(kept).status == 200
        assert len(server.peers) == 2

    nested(once, test)


def _readable(sock: Any) -> bool:
    import select

    return bool(select.select([sock], [], [], 0)[0])


def test_a_cut_answer_is_ambiguous_inside(nested: Any) -> None:
    def cut(peer: Peer) -> None:
        peer.read_request()
        peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n[1, ")

    def test(kept: Channel, server: Any) -> None:
        with pytest.raises(Ambiguous) as caught:
            get(kept)
        assert (caught.value.status, caught.value.partial_body) == (200, b"[1, ")

    nested(cut, test)


def test_limits_and_interrupts_hold_inside(nested: Any) -> None:
    asked: list[Request | None] = []

    def silent(peer: Peer) -> None:
        asked.append(peer.read_request())
        peer.until_closed()

    def test(kept: Channel, server: Any) -> None:
        with pytest.raises(Ambiguous, match="the time for it was over"):
            get(kept, read_timeout=0.2)
        wait_until(lambda: len(asked) == 1)
        caught: list[BaseException] = []

        def run() -> None:
            try:
                get(kept, read_timeout=60)
            except BaseException as error:
                caught.append(error)

        thread = threading.Thread(target=run, name="interrupted")
        thread.start()
        wait_until(lambda: len(asked) == 2)
        kept.interrupt()
        thread.join(LIMIT_SECONDS)
        assert not thread.is_alive()
        assert "it was interrupted" in str(caught[0])

    nested(silent, test)
