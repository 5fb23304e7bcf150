"""A worker that says exactly what a test tells it to: nothing of the worker side of this package is in it."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

LIMIT = 20.0


class PlainWorker:
    """One worker: a token, one registration, calls over one connection for each thread.

    `call` gives the status and the decoded body.
    """

    def __init__(self, url: str, service_id: str, secret: str, worker_id: str) -> None:
        self.address = urlsplit(url).netloc
        self.service_id = service_id
        self.worker_id = worker_id
        self.secret = secret
        self.local = threading.local()
        self.connections: list[http.client.HTTPConnection] = []
        self.udp: socket.socket | None = None
        self.token = self.authenticate()["access_token"]

    def authenticate(self, **fields: str) -> dict[str, Any]:
        form = {
            "grant_type": "client_credentials",
            "service_id": self.service_id,
            "auth_secret": self.secret,
            "worker_id": self.worker_id,
            **fields,
        }
        status, answer = self.post_form("/worker/auth_token", form)
        assert status == 200, answer
        return answer

    def post_form(self, path: str, form: dict[str, str]) -> tuple[int, Any]:
        headers = {"Content-Type": "application/x-www-form-urlencoded"}
        return self.send("POST", path, urlencode(form).encode(), headers)

    def call(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        data = None if body is None else json.dumps(body).encode()
        return self.send(method, path, data, {"Authorization": f"Bearer {self.token}"})

    def send(self, method: str, path: str, data: bytes | None, headers: dict[str, str]) -> tuple[int, Any]:
        connection = self.connection()
        try:
            connection.request(method, path, data, headers)
            answer = connection.getresponse()
            body = answer.read()
        except Exception:
            connection.close()
            raise
        return answer.status, json.loads(body) if body else None

    def connection(self) -> http.client.HTTPConnection:
        if not hasattr(self.local, "connection"):
            self.local.connection = http.client.HTTPConnection(self.address, timeout=LIMIT)
            self.connections.append(self.local.connection)
        return self.local.connection

    def registration(self, *methods: str, run_mode: str = "Eager", **fields: Any) -> dict[str, Any]:
        return {
            "worker_id": self.worker_id,
            "service_id": self.service_id,
            "run_mode": run_mode,
            "methods": list(methods),
            "ip": "127.0.0.1",
            "port": 9,
            "version": "1.0.0",
            "tags": {},
            "supported_executors": [],
            "platform": "linux",
            "interactive_desktop": False,
            "browser_runtime": False,
            **fields,
        }

    def register(self, *methods: str, **fields: Any) -> dict[str, str]:
        status, answer = self.call("POST", "/worker/registration", self.registration(*methods, **fields))
        assert status == 200, answer
        return answer

    def register_lazy(self, *methods: str, **fields: Any) -> socket.socket:
        """Bind a UDP socket and register it for the wake-up probe."""
        self.udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.udp.bind(("127.0.0.1", 0))
        self.udp.settimeout(LIMIT)
        self.register(*methods, run_mode="Lazy", port=self.udp.getsockname()[1], **fields)
        return self.udp

    def drain(self, wait: float | None = None) -> list[dict[str, Any]]:
        status, messages = self.call("GET", "/worker/messages" + ("" if wait is None else f"?wait={wait}"))
        assert status == 200, messages
        return messages

    def drain_some(self) -> list[dict[str, Any]]:
        """Drain until there is something."""
        return until(self.drain)

    def lock(self, request_id: str) -> int:
        return self.call("PUT", f"/worker/lock_request/{request_id}")[0]

    def respond(self, request_id: str, status: str = "success", **fields: Any) -> int:
        body = {"request_id": request_id, "status": status, "error_text": None, "result": None, **fields}
        return self.call("POST", "/worker/response", body)[0]

    def feedback(self, request_id: str, content: Any, **fields: Any) -> int:
        body = {"rid": request_id, "st": 1, "sn": "m", "ft": 0, "pr": False, "fc": content, **fields}
        return self.call("POST", "/worker/feedback", body)[0]

    def beat(self) -> Any:
        return self.call("GET", f"/worker/heartbeat/{quote(self.worker_id, safe='')}")[1]

    def leave(self) -> int:
        return self.call("PUT", f"/worker/notify_worker_shutdown/{quote(self.worker_id, safe='')}")[0]

    def close(self) -> None:
        for connection in self.connections:
            connection.close()
        if self.udp is not None:
            self.udp.close()


def until(condition: Callable[[], Any], limit: float = LIMIT) -> Any:
    """What the condition gives as soon as it is true."""
    end = time.monotonic() + limit
    while not (value := condition()):
        assert time.monotonic() < end, f"not within {limit} s"
        time.sleep(0.01)
    return value


class Background:
    """A function on a thread; `result` waits for it."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self.value: Any = None
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self.run, args=(function,), name="background", daemon=True)
        self.thread.start()

    def run(self, function: Callable[[], Any]) -> None:
        try:
            self.value = function()
        except BaseException as error:  # handed to whoever asks for the result
            self.error = error

    def result(self, limit: float = LIMIT) -> Any:
        self.thread.join(limit)
        assert not self.thread.is_alive(), f"not within {limit} s"
        if self.error is not None:
            raise self.error
        return self.value
