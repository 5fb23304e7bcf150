"""What a failed call is reported as: the one place where lower errors become ours."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kiwi_worker.errors import Ambiguous, NotSent

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kiwi_worker.transport.endpoint import Endpoint

_LONGEST_PATH = 200


class Interrupted(Exception):
    """Another thread ended the call."""


class Unconnected(Exception):
    """The connection could not be opened; its cause says why."""


def not_sent(call: str, endpoint: Endpoint, error: BaseException) -> NotSent:
    """The error of a call that failed before any byte of its request was sent.

    Args:
        call: the name that `call_name` gave it.
        error: what happened; its causes are looked through for the one that says most.
    """
    return NotSent(f"{call} was not sent: {_connecting_problem(error, endpoint)}")


def ambiguous(call: str, error: BaseException, status: int | None, partial_body: bytes) -> Ambiguous:
    """The error of a call that was sent and got no whole answer.

    Args:
        call: the name that `call_name` gave it.
        error: what happened.
        status: the status, when a head came.
        partial_body: what came of the body.
    """
    came = "no answer came"
    if status is not None:
        came = f"the answer (status {status}) broke off after {len(partial_body)} bytes of its body"
    text = f"{call} was sent and {came}: {_reading_problem(error)}. The server may have acted on it"
    return Ambiguous(text, status=status, partial_body=partial_body)


def check_proxy_answer(method: str, path: str, endpoint: Endpoint) -> None:
    """Look at a 407: it is no answer of the server's, which never saw the request, but of a proxy.

    Raises:
        NotSent: the endpoint has a proxy, and that wants other credentials.
    """
    if endpoint.via is not None:
        name = call_name(method, path, endpoint)
        raise NotSent(
            f"{name} was not sent: the proxy refused it (407); check the user and password in proxy"
        )


def call_name(method: str, path: str, endpoint: Endpoint) -> str:
    """How a call is named in errors: method, path and origin, and the proxy it goes through."""
    shown = path if len(path) <= _LONGEST_PATH else path[:_LONGEST_PATH] + "…"
    via = f" through the proxy {endpoint.via.address.origin}" if endpoint.via is not None else ""
    return f"{method} {endpoint.prefix}{shown} at {endpoint.origin}{via}"


def _connecting_problem(error: BaseException, endpoint: Endpoint) -> str:
    import socket
    import ssl

    setting = endpoint.setting if endpoint.via is None else f"{endpoint.setting} and proxy"
    causes = list(_causes(error))
    for cause in causes:
        if isinstance(cause, Interrupted):
            return "it was interrupted"
        if isinstance(cause, TimeoutError):
            return f"no connection in time; check {setting} and that the server is up"
        if isinstance(cause, ssl.SSLCertVerificationError):
            return (
                f"the server's certificate was refused ({cause.verify_message}); check ca_file and {setting}"
            )
        if isinstance(cause, ssl.SSLError):
            return f"TLS failed ({cause.reason or 'cut off'}); check {setting}, client_cert and client_key"
        if isinstance(cause, socket.gaierror):
            return f"the host name was not found ({cause.strerror}); check {setting}"
    return f"no connection ({_innermost(causes)}); check {setting} and that the server is up"


def _reading_problem(error: BaseException) -> str:
    import ssl

    causes = list(_causes(error))
    for cause in causes:
        if isinstance(cause, Interrupted):
            return "it was interrupted"
        # BlockingIOError is how the kernel's own time limit shows.
        if isinstance(cause, (BlockingIOError, TimeoutError)):
            return "the time for it was over"
        if isinstance(cause, ssl.SSLEOFError):
            return "the connection was cut off"
        if isinstance(cause, ssl.SSLError) and "CERT" in (cause.reason or ""):
            return f"the server refused our certificate ({cause.reason}); check client_cert and client_key"
    return _innermost(causes)


def _innermost(causes: list[BaseException]) -> str:
    """The text of the cause that lies deepest, which is the one that names the system's reason."""
    for cause in reversed(causes):
        text = getattr(cause, "reason", None) or getattr(cause, "strerror", None) or str(cause)
        if isinstance(text, str) and text:
            return text
    return type(causes[-1]).__name__


def _causes(error: BaseException) -> Iterator[BaseException]:
    """An error and all it wraps, outermost first; requests and urllib3 hide theirs in fields."""
    found: list[BaseException] = [error]
    for cause in found:
        yield cause
        hidden = (cause.__cause__, cause.__context__, getattr(cause, "reason", None), *cause.args)
        found.extend(e for e in hidden if isinstance(e, BaseException) and e not in found)
