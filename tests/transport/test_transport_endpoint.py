"""Endpoints: which addresses are taken, how they are refused, and what is never printed."""

from __future__ import annotations

import dataclasses
import subprocess
import sys

import pytest

from kiwi_worker.errors import SettingsError
from kiwi_worker.transport import Endpoint


@pytest.mark.parametrize(
    ("url", "parts"),
    [
        ("http://h", ("http", "h", 80, "", "http://h")),
        ("http://h/", ("http", "h", 80, "", "http://h")),
        ("HTTP://H:80/a/b/", ("http", "h", 80, "/a/b", "http://h")),
        ("https://h.example:8443/x", ("https", "h.example", 8443, "/x", "https://h.example:8443")),
        ("https://h:443", ("https", "h", 443, "", "https://h")),
        ("http://[::1]:8420/%7Ea", ("http", "::1", 8420, "/%7Ea", "http://[::1]:8420")),
        ("http://127.0.0.1:8420", ("http", "127.0.0.1", 8420, "", "http://127.0.0.1:8420")),
        (
            "http://b\u00fccher.example",
            ("http", "xn--bcher-kva.example", 80, "", "http://xn--bcher-kva.example"),
        ),
        ("http://my_service:1", ("http", "my_service", 1, "", "http://my_service:1")),
    ],
)
def test_an_address_is_taken_apart(url: str, parts: tuple[str, str, int, str, str]) -> None:
    endpoint = Endpoint(url)
    found = (endpoint.scheme, endpoint.host, endpoint.port, endpoint.prefix, endpoint.origin)
    assert found == parts


@pytest.mark.parametrize(
    "url",
    [
        "",
        "h:80",
        "//h",
        "/x",
        "ftp://h",
        "grpc://h",
        "http://",
        "http:///x",
        "http://:80",
        "http://h:port",
        "http://h:99999",
        "http://h:0",
        "http://h:-1",
        "http://[::1",
        "http://h/a b",
        "http://h/\r\nX: y",
        "http://h\n",
        " http://h",
        "http://h/\xe4",
        "http://h/x?secret=1",
        "http://h/x?",
        "http://h#x",
        "http://user:secret@h",
        "http://secret@h",
        "http://h!/",
        "http://[fe80::1%25eth0]/",
        "http://h\\secret",
        "http://\ud800",
        "http://" + "\u00fc" * 80,
    ],
)
def test_an_address_that_cannot_be_used_names_its_setting_and_not_its_content(url: str) -> None:
    with pytest.raises(SettingsError) as caught:
        Endpoint(url, setting="server")
    assert caught.value.key == "server"
    assert "secret" not in str(caught.value)
    with pytest.raises(SettingsError) as caught:
        Endpoint("http://h", proxy=url if "@" not in url else "ftp://user:secret@h")
    assert caught.value.key == "proxy"
    assert "secret" not in str(caught.value)


def test_the_credentials_of_a_proxy_are_never_printed() -> None:
    endpoint = Endpoint("http://h", proxy="http://user:se%63ret@proxy:3128")
    assert endpoint.via is not None
    shown = [
        f(x) for x in (endpoint, endpoint.proxy, endpoint.via, endpoint.via.address) for f in (repr, str)
    ]
    shown += [repr(vars(endpoint)), repr(vars(endpoint.via)), f"{endpoint.proxy}", str(endpoint.proxy)]
    shown += [repr(dataclasses.asdict(endpoint)["via"])]
    for text in shown:
        assert "secret" not in text
        assert "%63" not in text
        assert "dXNlc" not in text
    assert endpoint.via.headers() == {"Proxy-Authorization": "Basic dXNlcjpzZWNyZXQ="}


def test_a_copy_for_another_address_keeps_the_proxy() -> None:
    endpoint = Endpoint("http://h", proxy="http://user:secret@proxy:3128")
    copy = dataclasses.replace(endpoint, url="http://other")
    assert copy.via is not None
    assert endpoint.via is not None
    assert copy.via.headers() == endpoint.via.headers()
    assert copy.host == "other"


def test_equal_settings_are_equal_endpoints() -> None:
    assert Endpoint("http://h", ca_file="x") == Endpoint("http://h", ca_file="x")
    assert hash(Endpoint("http://h")) == hash(Endpoint("http://h"))
    assert Endpoint("http://h") != Endpoint("http://h", ca_file="x")


def test_importing_the_transport_loads_no_http_library() -> None:
    program = (
        "import sys, kiwi_worker.transport as t\n"
        "e = t.Endpoint('https://h'); t.Channel(e, user_agent='x'); t.SeldomClient(e, user_agent='x')\n"
        "print([m for m in ('requests', 'urllib3', 'ssl', 'http.client', 'email') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "[]"
