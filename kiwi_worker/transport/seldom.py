"""Calls that happen seldom (tokens, registration, heartbeat): requests makes them."""

from __future__ import annotations

import threading
from time import monotonic
from typing import TYPE_CHECKING, NamedTuple

from kiwi_worker.transport.answer import Answer
from kiwi_worker.transport.channel import DEFAULT_MAX_BODY
from kiwi_worker.transport.failures import Unconnected, ambiguous, call_name, check_proxy_answer, not_sent
from kiwi_worker.transport.heads import check_path, checked_seconds, checked_value, method_bytes
from kiwi_worker.transport.reader import Malformed
from kiwi_worker.transport.redirects import MAX_REDIRECTS, is_redirect, redirected_target, too_many_redirects

if TYPE_CHECKING:
    import ssl
    from collections.abc import Mapping

    import requests
    import urllib3

    from kiwi_worker.transport.endpoint import Endpoint

_READ_BYTES = 65536


class _Call(NamedTuple):
    method: str
    path: str
    data: Mapping[str, str] | bytes | None
    headers: dict[str, str]
    read_timeout: float


class SeldomClient:
    """Calls through one `requests.Session`, from any number of threads; requests is loaded by the first.

    Nothing is taken from the environment: no proxy, no authority file, and no user and password from a
    .netrc, which would take the place of the token. Cookies are not kept.

    Args:
        endpoint: the server.
        user_agent: the `User-Agent` of every request.
        connect_timeout: seconds for opening a connection, for each address that the host name has.
        max_body: the most bytes of a body that are read.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        user_agent: str,
        connect_timeout: float = 5.0,
        max_body: int = DEFAULT_MAX_BODY,
    ) -> None:
        self._endpoint = endpoint
        self._user_agent = checked_value("user_agent", user_agent)
        self._connect_timeout = checked_seconds(connect_timeout)
        self._max_body = max_body
        self._lock = threading.Lock()
        self._session: requests.Session | None = None
        self._context: ssl.SSLContext | None = None

    def call(
        self,
        method: str,
        path: str,
        *,
        form: Mapping[str, str] | None = None,
        json: bytes | None = None,
        authorization: str | None = None,
        read_timeout: float = 15.0,
    ) -> Answer:
        """Send one request and read its whole answer.

        Args:
            method: GET, POST, PUT, PATCH or DELETE.
            path: percent-encoded, with its query, without the endpoint's prefix.
            form: fields for an `application/x-www-form-urlencoded` body; given as they are, encoded here.
            json: a body that is JSON already.
            authorization: the whole header value.
            read_timeout: seconds for each wait for the head, and for the whole body.

        Raises:
            NotSent: it failed before any byte of the request was sent.
            Ambiguous: it was sent and no whole answer came.
            ProtocolError: a redirect other than a 307 or 308 to the same origin.
            SettingsError: a certificate file cannot be used.
            ValueError: an argument that would not fit on the wire.
        """
        method_bytes(method)
        check_path(path)
        checked_seconds(read_timeout)
        data = json if form is None else form
        call = _Call(method, path, data, self._headers(json, authorization), read_timeout)
        target = first = self._endpoint.prefix + path
        for _ in range(MAX_REDIRECTS + 1):
            answer = self._exchange(call, target)
            if answer.status == 407:
                check_proxy_answer(method, path, self._endpoint)
            if not is_redirect(answer.status):
                return answer
            target = redirected_target(self._endpoint, method, target, answer)
        raise too_many_redirects(self._endpoint, method, first, target)

    def close(self) -> None:
        """Close the kept connections. The client can be used again."""
        with self._lock:
            session, self._session = self._session, None
        if session is not None:
            session.close()

    def _headers(self, json: bytes | None, authorization: str | None) -> dict[str, str]:
        headers = {"Accept": "application/json"}
        if json is not None:
            headers["Content-Type"] = "application/json"
        if authorization is not None:
            headers["Authorization"] = checked_value("authorization", authorization)
        return headers

    def _exchange(self, call: _Call, target: str) -> Answer:
        session = self._ready_session()
        # Only here, since both are loaded by the first session.
        from requests import RequestException
        from urllib3.exceptions import HTTPError

        name = call_name(call.method, call.path, self._endpoint)
        body = _Body(call.read_timeout, self._max_body)
        try:
            with self._send(session, call, target) as response:
                body.read(response)
                return Answer(response.status_code, bytes(body.received), _head(response))
        except Unconnected as error:
            raise not_sent(name, self._endpoint, error) from error
        except (RequestException, HTTPError, OSError, Malformed) as error:
            raise ambiguous(name, error, body.status, bytes(body.received)) from error

    def _send(self, session: requests.Session, call: _Call, target: str) -> requests.Response:
        return session.request(
            call.method,
            self._endpoint.origin + target,
            data=call.data,
            headers=call.headers,
            timeout=(self._connect_timeout, call.read_timeout),
            allow_redirects=False,
            stream=True,
        )

    def _ready_session(self) -> requests.Session:
        with self._lock:
            context = self._endpoint.tls_context() if self._endpoint.uses_tls else None
            if self._session is None or context is not self._context:
                from kiwi_worker.transport.seldom_session import new_session

                self._session, self._context = new_session(self._endpoint, self._user_agent), context
            return self._session


class _Body:
    """A body as far as it was received, and the limits for it."""

    def __init__(self, limit_seconds: float, max_bytes: int) -> None:
        self.status: int | None = None
        self.received = bytearray()
        self._limit_seconds = limit_seconds
        self._max_bytes = max_bytes

    def read(self, response: requests.Response) -> None:
        self.status = response.status_code
        deadline = monotonic() + self._limit_seconds
        while piece := _what_is_there(response.raw):
            room = self._max_bytes - len(self.received)
            self.received += piece[:room]
            if len(piece) > room:
                raise Malformed(f"its body is longer than {self._max_bytes} bytes")
            if monotonic() > deadline:
                raise TimeoutError


def _what_is_there(raw: urllib3.BaseHTTPResponse) -> bytes:
    """Bytes of the body without waiting for many: `read` waits for all it is asked for, however it drips."""
    read1 = getattr(raw, "read1", None)
    if read1 is None:  # before urllib3 2.1
        return raw.read(1, decode_content=True)
    piece: bytes = read1(_READ_BYTES, decode_content=True)
    return piece


def _head(response: requests.Response) -> bytes:
    lines = [f"HTTP/1.1 {response.status_code}", *(f"{k}: {v}" for k, v in response.headers.items())]
    return "\r\n".join(lines).encode("latin-1", "replace")
