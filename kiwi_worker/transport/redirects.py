"""The one policy for redirects: a call stays with the server it was meant for."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from urllib.parse import urljoin

from kiwi_worker.errors import ProtocolError, SettingsError
from kiwi_worker.transport.endpoint import parse_address

if TYPE_CHECKING:
    from kiwi_worker.transport.answer import Answer
    from kiwi_worker.transport.endpoint import Endpoint

MAX_REDIRECTS = 5

_TARGET = re.compile(r"/[!-~]*")


def is_redirect(status: int) -> bool:
    """Whether an answer is for this module: every 3xx, a 304 too, which was never asked for."""
    return 300 <= status < 400


def redirected_target(endpoint: Endpoint, method: str, target: str, answer: Answer) -> str:
    """Where a redirected call goes on: the path, prefix and query included, at the same origin.

    Args:
        target: the path, prefix and query included, that gave `answer`.

    Raises:
        ProtocolError: the redirect is not 307 or 308, leads to another server, or says not where to.
            Other codes may turn a POST into a GET, and another server must not get the token.
    """
    address = endpoint.origin + target
    location = answer.header("location")
    if location is None:
        raise ProtocolError(f"{method} {address} was answered with {answer.status} and no Location")
    aim = _absolute(address, location)
    found = _target_at(endpoint, aim)
    if answer.status not in (307, 308) or found is None:
        raise ProtocolError(
            f"{method} {address} was redirected ({answer.status}) to {_shown(aim)}, which is not followed; "
            f"set {endpoint.setting} to the address that the server is really at"
        )
    return found


def too_many_redirects(endpoint: Endpoint, method: str, first: str, last: str) -> ProtocolError:
    """The error of a call that was redirected over and over."""
    origin = endpoint.origin
    return ProtocolError(
        f"{method} {origin}{first} was redirected more than {MAX_REDIRECTS} times, last to {origin}{last}; "
        f"check the server and {endpoint.setting}"
    )


def _absolute(address: str, location: str) -> str:
    try:
        return urljoin(address, location).partition("#")[0]
    except ValueError:
        return location


def _target_at(endpoint: Endpoint, aim: str) -> str | None:
    """The path of an address when it is at the endpoint's own origin and fit for a request line."""
    path_start = aim.find("/", aim.find("://") + 3)
    origin, target = (aim, "/") if path_start < 0 else (aim[:path_start], aim[path_start:])
    try:
        same = parse_address(origin, "redirect").origin == endpoint.origin
    except SettingsError:
        return None
    return target if same and _TARGET.fullmatch(target) else None


def _shown(aim: str) -> str:
    """An address for an error text: without user info, and nothing that could break a log line."""
    scheme, separator, rest = aim.partition("://")
    host, slash, path = rest.partition("/")
    shown = scheme + separator + host.rpartition("@")[2] + slash + path
    return "".join(c if c.isprintable() else "?" for c in shown[:300])
