"""The fixed bytes of requests, and which arguments of a call are refused."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kiwi_worker.transport.endpoint import Endpoint

METHODS = {name: name.encode("ascii") + b" " for name in ("GET", "POST", "PUT", "PATCH", "DELETE")}
"""The methods that are spoken, as a request line begins with them."""

BODILESS = frozenset({METHODS["GET"], METHODS["DELETE"]})
"""The methods for which no body is the rule, so that not even its length is announced."""

MAX_SECONDS = 1e6
"""The longest time limit."""

_FIELD_VALUE = re.compile(r"[!-~]+(?: [!-~]+)*")


class RequestHeads:
    """The part of a request between its target and its body, made once per authorization.

    Attributes:
        json: for a request with a body; its length and an empty line follow.
        empty: for a request whose method has a body, but that has none.
        bare: for a request whose method has no body.
    """

    __slots__ = ("bare", "empty", "json")

    def __init__(self, endpoint: Endpoint, user_agent: str, authorization: str | None) -> None:
        fields = [
            f"Host: {endpoint.address.authority}",
            f"User-Agent: {checked_value('user_agent', user_agent)}",
            "Accept: application/json",
            "Accept-Encoding: identity",
        ]
        if authorization is not None:
            fields.append(f"Authorization: {checked_value('authorization', authorization)}")
        if endpoint.via is not None and endpoint.scheme == "http":
            fields.extend(f"{name}: {value}" for name, value in endpoint.via.headers().items())
        common = " HTTP/1.1\r\n" + "\r\n".join(fields) + "\r\n"
        self.bare = common.encode("ascii") + b"\r\n"
        self.empty = common.encode("ascii") + b"Content-Length: 0\r\n\r\n"
        self.json = common.encode("ascii") + b"Content-Type: application/json\r\nContent-Length: "


def target_prefix(endpoint: Endpoint) -> bytes:
    """What comes before a call's path in the request line: the prefix, and for a plain proxy the origin."""
    return (_origin_form(endpoint) + endpoint.prefix).encode("ascii")


def origin_of_target(endpoint: Endpoint) -> bytes:
    """What comes before a path that has its prefix already, as a redirected one has."""
    return _origin_form(endpoint).encode("ascii")


def _origin_form(endpoint: Endpoint) -> str:
    return endpoint.origin if endpoint.via is not None and endpoint.scheme == "http" else ""


def checked_value(name: str, value: str) -> str:
    """A header value that is sure to stay one.

    Raises:
        ValueError: it holds something that could end the field, or is not ASCII. The text never shows it.
    """
    if not _FIELD_VALUE.fullmatch(value):
        raise ValueError(f"{name} must be visible ASCII characters with single spaces between")
    return value


def check_path(path: str) -> None:
    """Refuse a path that could break out of the request line.

    Raises:
        ValueError: it does not begin with a slash, or has a character that must be percent-encoded.
    """
    if not (path.isascii() and path.isprintable() and path.startswith("/")) or " " in path:
        raise ValueError(f"a path begins with / and is percent-encoded: {path[:200]!a}")


def method_bytes(method: str) -> bytes:
    """The method as a request line begins with it.

    Raises:
        ValueError: a method that is not spoken here (HEAD and CONNECT have answers of another form).
    """
    try:
        return METHODS[method]
    except KeyError:
        raise ValueError(f"method must be one of {', '.join(METHODS)}: {method[:20]!a}") from None


def checked_seconds(seconds: float) -> float:
    """A time limit that ends.

    Raises:
        ValueError: no finite, positive number of seconds.
    """
    if not 0 < seconds <= MAX_SECONDS:
        raise ValueError(f"a time limit is over 0 and at most {MAX_SECONDS:.0f} seconds: {seconds!r}")
    return seconds
