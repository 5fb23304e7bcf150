"""The process form, and the control path it is driven by."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

from kiwi_worker.testing.control import described
from kiwi_worker.testing.faults import Stall, Status, fault_named

from .conftest import LIMIT, PlainClient

COMMAND = (sys.executable, "-W", "error", "-m", "kiwi_worker.testing.server")


@pytest.fixture
def process() -> Iterator[subprocess.Popen[str]]:
    arguments = ("--fault", "token:Status:status=503,body=later", "--set", "auth_secret=s3")
    with subprocess.Popen((*COMMAND, *arguments), stdout=subprocess.PIPE, text=True) as running:
        yield running
        running.kill()


@pytest.fixture
def client(process: subprocess.Popen[str]) -> Iterator[PlainClient]:
    assert process.stdout is not None
    parts = urlsplit(process.stdout.readline().strip())
    assert parts.hostname is not None
    assert parts.port is not None
    client = PlainClient((parts.hostname, parts.port))
    yield client
    client.close()


def test_a_server_process_is_driven_by_its_control_path(
    process: subprocess.Popen[str], client: PlainClient
) -> None:
    answer, body = client.call("POST", "/worker/auth_token", b"")
    assert (answer.status, body) == (503, b"later")
    form = b"grant_type=client_credentials&service_id=test-service&auth_secret=s3&worker_id=w1"
    token = json.loads(client.call("POST", "/worker/auth_token", form)[1])["access_token"]
    client.headers["Authorization"] = f"Bearer {token}"

    request_id = _control(client, "POST", "/_enqueue", {"method": "hello", "params": [1]})
    assert json.loads(client.call("GET", "/worker/messages")[1])[0]["request_id"] == request_id

    armed = _control(client, "POST", "/_faults", {"call": "respond", "fault": "Html502", "times": "always"})
    assert (armed["moment"], armed["left"]) == ("before", None)
    assert len(_control(client, "GET", "/_faults")) == 1
    response = json.dumps({"request_id": request_id, "status": "success"}).encode()
    assert client.call("POST", "/worker/response", response)[0].status == 502
    assert _control(client, "DELETE", "/_faults") == []
    assert client.call("POST", "/worker/response", response)[0].status == 200

    assert [body["request_id"] for body in _control(client, "GET", "/_answers")] == [request_id]
    calls = _control(client, "GET", "/_calls")
    assert [call["name"] for call in calls] == ["token", "token", "drain", "respond", "respond"]
    assert calls[3]["fault"] == "Html502()"

    process.send_signal(signal.SIGTERM)
    assert process.wait(LIMIT) == 0


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"{}", "'call' is missing"),
        (b'{"call": "drain", "fault": "Nonsense"}', "there is no fault 'Nonsense'; the faults are"),
        (b'{"call": "drain", "fault": "Stall"}', "seconds"),
        (b'{"call": "x", "fault": "Html502"}', "no call is named 'x'"),
        (b"nonsense", "Expecting value"),
    ],
)
def test_the_control_path_says_what_was_wrong(client: PlainClient, body: bytes, text: str) -> None:
    answer, error = client.call("POST", "/_faults", body)
    assert answer.status == 400
    assert text in json.loads(error)["error"]


def test_there_are_no_other_control_paths(client: PlainClient) -> None:
    assert client.call("GET", "/_nonsense")[0].status == 404


@pytest.mark.parametrize("text", ["nonsense", "drain:Stall:seconds", "drain:Nonsense"])
def test_a_wrong_fault_option_is_a_usage_error(text: str) -> None:
    done = subprocess.run((*COMMAND, "--fault", text), capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert text.split(":")[-1] in done.stderr


def test_an_orbit_process_starts_too() -> None:
    command = (*COMMAND, "--protocol", "orbit")
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        assert running.stdout.readline().startswith("http://127.0.0.1:")
        running.send_signal(signal.SIGINT)
        assert running.wait(LIMIT) == 0


def test_the_text_form_of_a_fault() -> None:
    assert described("respond:Status:status=503,times=2,after=true") == {
        "call": "respond",
        "fault": "Status",
        "status": 503,
        "times": 2,
        "after": True,
    }
    assert described("/worker/*:Html502") == {"call": "/worker/*", "fault": "Html502"}
    assert fault_named("Stall", seconds=1) == Stall(1)
    assert fault_named("Status", status=503, body="x", headers=[["A", "b"]]) == Status(
        503, b"x", headers=(("A", "b"),)
    )


def _control(client: PlainClient, method: str, path: str, body: object = None) -> Any:
    answer, answered = client.call(method, path, None if body is None else json.dumps(body).encode())
    assert answer.status == 200, answered
    return json.loads(answered)
