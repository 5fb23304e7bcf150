"""A token endpoint that answers what a test tells it to, and remembers what it was asked."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl

import jwt

from kiwi_worker.errors import KiwiWorkerError
from kiwi_worker.kiwi.tokens import TokenManager

KEY = "a key that is long enough for HS256, which wants 32 bytes"
SECRET = "a+b/c=%41&é "
LIMIT_SECONDS = 20.0

Make = Callable[..., TokenManager]
Reply = tuple[int, Mapping[str, str], bytes]


def jwt_for(worker_id: str = "worker-1", **claims: Any) -> str:
    now = int(time.time())
    content = {
        "sub": worker_id,
        "role": "worker",
        "service_id": "svc",
        "iat": now,
        "exp": now + 3600,
        **claims,
    }
    return jwt.encode({k: v for k, v in content.items() if v is not None}, KEY, algorithm="HS256")


def given(*, status: int = 200, headers: Mapping[str, str] | None = None, **members: Any) -> Reply:
    return status, headers or {}, json.dumps(members).encode()


def raw(body: bytes, status: int = 200, **headers: str) -> Reply:
    return status, headers, body


def opaque(name: str, **members: Any) -> Reply:
    return given(access_token=name, **members)


class TokenEndpoint:
    """Each request gets the next of `replies`, the last of them for ever; a reply may be a function."""

    def __init__(self) -> None:
        self.replies: list[Reply | Callable[[dict[str, str]], Reply]] = []
        self.forms: list[dict[str, str]] = []
        self.bodies: list[bytes] = []
        self.content_types: list[str | None] = []
        self.authorizations: list[str | None] = []
        self.paths: list[str] = []
        self.date: float | None = None
        self.open = threading.Event()
        self.open.set()
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = False
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.02,), name="token-endpoint"
        )
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def reply_with(self, *replies: Reply | Callable[[dict[str, str]], Reply]) -> None:
        with self._lock:
            self.replies = list(replies)

    def close(self) -> None:
        self.open.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def reply_to(self, path: str, body: bytes, headers: Any) -> Reply:
        form = dict(parse_qsl(body.decode("ascii"), keep_blank_values=True, strict_parsing=bool(body)))
        with self._lock:
            self.paths.append(path)
            self.bodies.append(body)
            self.forms.append(form)
            self.content_types.append(headers["Content-Type"])
            self.authorizations.append(headers["Authorization"])
            reply = self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]
        self.open.wait(20)
        return reply(form) if callable(reply) else reply

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            timeout = 20

            def do_POST(self) -> None:
                length = int(self.headers["Content-Length"] or 0)
                self._answer(endpoint.reply_to(self.path, self.rfile.read(length), self.headers))

            def do_GET(self) -> None:
                self._answer(endpoint.reply_to(self.path, b"", self.headers))

            def _answer(self, reply: Reply) -> None:
                status, headers, body = reply
                self.send_response_only(status)
                if headers.get("Date") != "":
                    self.send_header("Date", formatdate(endpoint.date or time.time(), usegmt=True))
                for name, value in headers.items():
                    if value:
                        self.send_header(name, value)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        return Handler


class Clock:
    """A monotonic clock that a test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def eventually(condition: Callable[[], object]) -> None:
    end = time.monotonic() + LIMIT_SECONDS
    while not condition():
        assert time.monotonic() < end, "it did not come about"
        time.sleep(0.002)


def in_threads(count: int, what: Callable[[], object]) -> list[object]:
    """What each of so many threads got, or the error it met."""
    results: list[object] = []
    gate = threading.Barrier(count)

    def run() -> None:
        gate.wait(LIMIT_SECONDS)
        try:
            results.append(what())
        except KiwiWorkerError as error:
            results.append(error)

    threads = [threading.Thread(target=run, name=f"caller-{number}") for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_SECONDS)
    assert len(results) == count
    return results
