"""Redirects: 307 and 308 to the same origin are followed, the rest are errors that name both addresses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from raw_server import OK, Peer, Request, answering, serving

from kiwi_worker.errors import ProtocolError


def redirect(status: int, location: str | None) -> bytes:
    line = f"Location: {location}\r\n" if location is not None else ""
    return f"HTTP/1.1 {status} Moved\r\n{line}Content-Length: 0\r\n\r\n".encode("latin-1")


@pytest.mark.parametrize("status", [307, 308])
@pytest.mark.parametrize("how", ["/v2/x?a=1#part", "x2", "http://127.0.0.1:{port}/y", "//127.0.0.1:{port}/y"])
def test_a_redirect_within_the_origin_is_followed_with_method_and_body(
    call: Callable[..., Any], status: int, how: str
) -> None:
    requests: list[Request] = []

    def handle(peer: Peer) -> None:
        while (request := peer.read_request()) is not None:
            requests.append(request)
            location = how.format(port=peer.sock.getsockname()[1])
            peer.send(redirect(status, location) if len(requests) == 1 else OK)

    with serving(handle) as server:
        answer = call(server.url + "/base")("POST", "/x", b'{"a":1}', authorization="Bearer t")
    assert answer.status == 200
    targets = {"/v2/x?a=1#part": "/v2/x?a=1", "x2": "/base/x2"}
    assert [request.target for request in requests] == ["/base/x", targets.get(how, "/y")]
    for request in requests:
        assert (request.method, request.body) == ("POST", b'{"a":1}')
        assert request.header("Authorization") == "Bearer t"
    assert len(server.peers) == 1


@pytest.mark.parametrize("status", [300, 301, 302, 303, 304, 305, 306, 309])
def test_report_13_no_other_redirect_turns_a_post_into_something_else(
    call: Callable[..., Any], status: int
) -> None:
    requests: list[Request] = []
    with serving(answering(redirect(status, "/elsewhere"), requests=requests)) as server:
        with pytest.raises(ProtocolError) as caught:
            call(server.url)("POST", "/x", b"{}")
        assert f"POST {server.url}/x was redirected ({status}) to {server.url}/elsewhere" in str(caught.value)
    assert [request.method for request in requests] == ["POST"]


@pytest.mark.parametrize("status", [301, 307, 308])
def test_the_token_never_goes_to_another_server(call: Callable[..., Any], status: int) -> None:
    elsewhere: list[Request] = []
    with (
        serving(answering(OK, requests=elsewhere)) as other,
        serving(answering(redirect(status, f"{other.url}/x"))) as server,
    ):
        with pytest.raises(ProtocolError, match="not followed; set middleware_url") as caught:
            call(server.url)("POST", "/x", b"{}", authorization="Bearer secret")
        assert f"{server.url}/x" in str(caught.value)
        assert f"{other.url}/x" in str(caught.value)
    assert elsewhere == []
    assert other.peers == []
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "location",
    [
        "https://127.0.0.1:{port}/x",
        "http://localhost:{port}/x",
        "http://127.0.0.1/x",
        "http://127.0.0.1:{port}@evil.example/x",
        "http://user:pass@127.0.0.1:{port}/x",
        "http://127.0.0.1:{port}.evil.example/x",
        "http://127.0.0.1:{port}\\@evil.example/x",
        "//evil.example/x",
        "ftp://127.0.0.1:{port}/x",
        "javascript:alert(1)",
        "http://[::1/x",
        "http://",
        "/with space",
        "/\xe4",
    ],
)
def test_a_location_that_is_not_plainly_here_is_not_followed(call: Callable[..., Any], location: str) -> None:
    def handle(peer: Peer) -> None:
        while peer.read_request() is not None:
            peer.send(redirect(307, location.format(port=peer.sock.getsockname()[1])))

    with serving(handle) as server:
        with pytest.raises(ProtocolError, match="was redirected") as caught:
            call(server.url)("GET", "/x")
        assert "pass" not in str(caught.value)
    assert len(server.peers) == 1


def test_a_redirect_without_an_aim_is_an_error(call: Callable[..., Any]) -> None:
    with serving(answering(redirect(307, None))) as server, pytest.raises(ProtocolError, match="no Location"):
        call(server.url)("GET", "/x")


def test_redirects_in_a_circle_end(call: Callable[..., Any]) -> None:
    requests: list[Request] = []
    circle = answering(redirect(308, "/x"), requests=requests)
    with serving(circle) as server, pytest.raises(ProtocolError, match="more than 5 times"):
        call(server.url)("GET", "/x")
    assert len(requests) == 6


def test_a_channel_goes_on_after_a_redirect_that_was_refused(call: Callable[..., Any]) -> None:
    with serving(answering(redirect(302, "/y"), OK)) as server:
        calling = call(server.url)
        with pytest.raises(ProtocolError):
            calling("GET", "/x")
        assert calling("GET", "/x").status == 200
    assert len(server.peers) == 1
