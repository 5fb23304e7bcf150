"""Plain clients: nothing of the package under test between the test and the wire."""

from __future__ import annotations

import http.client
import json
import socket
import urllib.parse
from collections.abc import Iterator
from typing import Any

import pytest

from kiwi_worker.testing import KiwiServer, MisbehavingServer, OrbitServer

LIMIT = 10.0


class PlainClient:
    """One `http.client` connection that is opened again when it was closed."""

    def __init__(self, address: tuple[str, int], headers: dict[str, str] | None = None) -> None:
        self.address = address
        self.headers = headers or {}
        self.connection = http.client.HTTPConnection(*address, timeout=LIMIT)

    def send(self, method: str, path: str, body: bytes | None = None, **headers: str) -> None:
        self.connection.request(method, path, body, {**self.headers, **headers})

    def call(
        self, method: str, path: str, body: bytes | None = None, **headers: str
    ) -> tuple[http.client.HTTPResponse, bytes]:
        self.send(method, path, body, **headers)
        answer = self.connection.getresponse()
        return answer, answer.read()

    def close(self) -> None:
        self.connection.close()


class KiwiClient(PlainClient):
    """A worker in plain calls."""

    def __init__(self, server: KiwiServer, worker_id: str = "w1") -> None:
        super().__init__(server.address)
        self.server = server
        self.worker_id = worker_id

    def token(self, **form: str) -> dict[str, Any]:
        fields = {
            "grant_type": "client_credentials",
            "service_id": self.server.service_id,
            "auth_secret": self.server.auth_secret,
            "worker_id": self.worker_id,
            **form,
        }
        answer, body = self.call(
            "POST",
            "/worker/auth_token",
            urllib.parse.urlencode(fields).encode(),
            **{"Content-Type": "application/x-www-form-urlencoded"},
        )
        assert answer.status == 200, body
        decoded: dict[str, Any] = json.loads(body)
        return decoded

    def log_in(self) -> KiwiClient:
        self.headers["Authorization"] = "Bearer " + self.token()["access_token"]
        return self

    def register(self, **fields: object) -> int:
        body = {
            "worker_id": self.worker_id,
            "service_id": self.server.service_id,
            "run_mode": "Eager",
            "methods": ["hello"],
            **fields,
        }
        return self.post("/worker/registration", body)[0].status

    def post(self, path: str, body: object) -> tuple[http.client.HTTPResponse, bytes]:
        return self.call("POST", path, json.dumps(body).encode(), **{"Content-Type": "application/json"})

    def drain(self, query: str = "") -> list[dict[str, Any]]:
        answer, body = self.call("GET", f"/worker/messages{query}")
        assert answer.status == 200, body
        messages: list[dict[str, Any]] = json.loads(body)
        return messages

    def response(self, request_id: str, result: object = 1) -> bytes:
        fields = {"request_id": request_id, "status": "success", "error_text": None, "result": result}
        return json.dumps(fields).encode()

    def respond(self, request_id: str, result: object = 1) -> int:
        return self.post("/worker/response", json.loads(self.response(request_id, result)))[0].status

    def raw(self, method: str, path: str, body: bytes = b"") -> socket.socket:
        """A request on a socket of its own, to read the answer's bytes from."""
        sock = socket.create_connection(self.address, LIMIT)
        head = f"{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n"
        head += "".join(f"{name}: {value}\r\n" for name, value in self.headers.items())
        sock.sendall(head.encode() + b"\r\n" + body)
        return sock


class OrbitClient(PlainClient):
    """An ORBIT worker in plain calls."""

    def __init__(self, server: OrbitServer, **headers: str) -> None:
        super().__init__(server.address, {"content-type": "application/json", **headers})
        self.session_id = ""

    def post(self, path: str, **fields: object) -> tuple[int, Any]:
        answer, body = self.call("POST", f"/v1/{path}", json.dumps(fields).encode())
        is_json = (answer.getheader("content-type") or "").startswith("application/json")
        return answer.status, json.loads(body) if is_json else body

    def register(self, *names: str) -> dict[str, Any]:
        contracts = [{"task_name": name, "contract_version": "1.0.0"} for name in names or ("t",)]
        status, answer = self.post("workers/register", worker_id="o1", runtime="python", contracts=contracts)
        assert status == 200, answer
        self.session_id = answer["worker_session_id"]
        registered: dict[str, Any] = answer
        return registered

    def poll(self, wait_ms: int = 5000) -> tuple[int, Any]:
        return self.post("workers/poll", worker_session_id=self.session_id, wait_ms=wait_ms)

    def heartbeat(self) -> tuple[int, Any]:
        return self.post("workers/heartbeat", worker_session_id=self.session_id)


@pytest.fixture
def kiwi() -> Iterator[KiwiServer]:
    with MisbehavingServer.kiwi() as server:
        yield server


@pytest.fixture
def worker(kiwi: KiwiServer) -> Iterator[KiwiClient]:
    client = KiwiClient(kiwi).log_in()
    client.register()
    yield client
    client.close()


@pytest.fixture
def orbit() -> Iterator[OrbitServer]:
    with MisbehavingServer.orbit() as server:
        yield server


@pytest.fixture
def orbit_worker(orbit: OrbitServer) -> Iterator[OrbitClient]:
    client = OrbitClient(orbit)
    client.register()
    yield client
    client.close()


def read_all(sock: socket.socket) -> bytes:
    """Everything until the other side ends; closes the socket."""
    with sock:
        data = b""
        while piece := sock.recv(65536):
            data += piece
        return data
