"""The HTTP binding of the dev runtime, over real sockets and with real processes."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from kiwi_worker.testing.orbit_runtime import RunningRuntime, running_runtime

from .certificates import Authority, Pair

JSON = {"content-type": "application/json"}
REGISTRATION = {
    "worker_id": "w",
    "runtime": "ruby",
    "contracts": [{"task_name": "greeting.compose", "contract_version": "1.0.0"}],
}
WORKERS = """
[[workers]]
worker_id = "by-dns"
client_cert = "worker.example"
"""


@dataclass(frozen=True)
class Answer:
    """What came back."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        return str(self.json["error"]["code"])

    @property
    def is_plain_text(self) -> bool:
        return self.headers["content-type"].startswith("text/plain")


def connect(runtime: RunningRuntime, tls: ssl.SSLContext | None = None) -> http.client.HTTPConnection:
    place = urlsplit(runtime.url)
    if tls is not None:
        return http.client.HTTPSConnection(place.hostname or "", place.port, timeout=30, context=tls)
    return http.client.HTTPConnection(place.hostname or "", place.port, timeout=30)


def call(
    runtime: RunningRuntime,
    path: str,
    body: Any = None,
    *,
    token: str | None = "admin",
    method: str | None = None,
    headers: dict[str, str] = JSON,
    tls: ssl.SSLContext | None = None,
) -> Answer:
    content = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
    bearer = {} if token is None else {"authorization": f"Bearer {token}"}
    with contextlib.closing(connect(runtime, tls)) as connection:
        connection.request(method or ("GET" if body is None else "POST"), path, content, headers | bearer)
        response = connection.getresponse()
        names = {name.lower(): value for name, value in response.getheaders()}
        return Answer(response.status, names, response.read())


@pytest.fixture(scope="module")
def runtime() -> Iterator[RunningRuntime]:
    deploy = Path(__file__).parent / "greet.toml"
    with running_runtime(deploy, token="admin", worker_token="worker", max_body=2000) as running:
        yield running


def session(runtime: RunningRuntime) -> str:
    return str(call(runtime, "/v1/workers/register", REGISTRATION).json["worker_session_id"])


def start(runtime: RunningRuntime, execution_id: str, name: str = "Ada") -> None:
    body = {"workflow": "Greet", "input": {"name": name}, "execution_id": execution_id}
    assert call(runtime, "/v1/executions", body).json == {"execution_id": execution_id, "created": True}


def poll(runtime: RunningRuntime, session_id: str, wait_ms: int = 5000) -> Any:
    answer = call(runtime, "/v1/workers/poll", {"worker_session_id": session_id, "wait_ms": wait_ms})
    return answer.json if answer.status == 200 else None


WORKER_PATHS = [
    "/v1/workers/register",
    "/v1/workers/poll",
    "/v1/workers/heartbeat",
    "/v1/workers/unregister",
    "/v1/tasks/complete",
    "/v1/tasks/fail",
]


@pytest.mark.parametrize("path", WORKER_PATHS)
@pytest.mark.parametrize("headers", [{}, {"content-type": "text/plain"}])
def test_a_body_that_is_not_said_to_be_json_is_415(
    runtime: RunningRuntime, path: str, headers: dict[str, str]
) -> None:
    answer = call(runtime, path, b"{}", headers=headers)
    assert answer.status == 415
    assert answer.headers["x-orbit-api-version"] == "orbit-api/1"


@pytest.mark.parametrize("path", WORKER_PATHS)
@pytest.mark.parametrize("body", [b"", b"{", b"not json", b'{"token": NaN}', b"\xff"])
def test_what_is_no_json_is_400_in_plain_text(runtime: RunningRuntime, path: str, body: bytes) -> None:
    answer = call(runtime, path, body)
    assert (answer.status, answer.is_plain_text) == (400, True)
    assert answer.headers["x-orbit-api-version"] == "orbit-api/1"


@pytest.mark.parametrize(
    ("path", "body", "named"),
    [
        ("/v1/workers/register", {"runtime": "r", "contracts": []}, "worker_id"),
        ("/v1/workers/register", {"worker_id": "w", "contracts": []}, "runtime"),
        ("/v1/workers/register", {"worker_id": "w", "runtime": "r"}, "contracts"),
        ("/v1/workers/register", REGISTRATION | {"contracts": [{"task_name": "t"}]}, "contract_version"),
        ("/v1/workers/poll", {}, "worker_session_id"),
        ("/v1/workers/heartbeat", {}, "worker_session_id"),
        ("/v1/workers/unregister", {}, "worker_session_id"),
        ("/v1/tasks/complete", {"output": {}}, "token"),
        ("/v1/tasks/fail", {"error_code": "X"}, "token"),
        ("/v1/tasks/fail", {"token": "t"}, "error_code"),
        ("/v1/tasks/fail", {"token": 5, "error_code": "X"}, "token"),
        ("/v1/workers/poll", {"worker_session_id": "s", "wait_ms": True}, "wait_ms"),
    ],
)
def test_a_missing_or_mistyped_field_is_422_in_plain_text(
    runtime: RunningRuntime, path: str, body: Any, named: str
) -> None:
    answer = call(runtime, path, body)
    assert (answer.status, answer.is_plain_text) == (422, True)
    assert named in answer.body.decode()


@pytest.mark.parametrize("body", [[], "text", 1, None])
def test_a_body_that_is_no_object_is_422(runtime: RunningRuntime, body: Any) -> None:
    assert call(runtime, "/v1/workers/poll", json.dumps(body).encode()).status == 422


def test_unknown_fields_are_ignored(runtime: RunningRuntime) -> None:
    assert call(runtime, "/v1/workers/register", REGISTRATION | {"more": {"of": "it"}}).status == 200


def test_a_content_type_with_a_charset_is_json(runtime: RunningRuntime) -> None:
    headers = {"content-type": "Application/JSON; charset=utf-8"}
    assert call(runtime, "/v1/workers/register", REGISTRATION, headers=headers).status == 200


def test_a_body_over_the_limit_is_413_and_the_connection_lives_on(runtime: RunningRuntime) -> None:
    large = json.dumps({"token": "t", "output": {"message": "x" * 2000}}).encode()
    with contextlib.closing(connect(runtime)) as connection:
        headers = JSON | {"authorization": "Bearer worker"}
        for _ in range(2):
            connection.request("POST", "/v1/tasks/complete", large, headers)
            response = connection.getresponse()
            assert (response.status, response.getheader("x-orbit-api-version")) == (413, "orbit-api/1")
            response.read()


def test_a_chunked_body_over_the_limit_is_413(runtime: RunningRuntime) -> None:
    with contextlib.closing(connect(runtime)) as connection:
        headers = JSON | {"authorization": "Bearer worker"}
        connection.request(
            "POST", "/v1/tasks/complete", iter([b"x" * 1500] * 2), headers, encode_chunked=True
        )
        assert connection.getresponse().status == 413


@pytest.mark.parametrize("token", [None, "wrong", ""])
def test_without_a_valid_credential_everything_is_401_without_version(
    runtime: RunningRuntime, token: str | None
) -> None:
    for path, body in (("/v1/workers/register", REGISTRATION), ("/v1/workers", None), ("/nowhere", None)):
        answer = call(runtime, path, body, token=token)
        assert (answer.status, answer.code) == (401, "UNAUTHENTICATED")
        assert "x-orbit-api-version" not in answer.headers


def test_credentials_are_checked_before_anything_else(runtime: RunningRuntime) -> None:
    assert call(runtime, "/v1/tasks/complete", b"{", token=None, headers={}).status == 401


@pytest.mark.parametrize(
    "path", ["/v1/executions", "/v1/executions/x", "/v1/workers", "/v1/dev/leader", "/x"]
)
def test_worker_credentials_call_worker_endpoints_only(runtime: RunningRuntime, path: str) -> None:
    answer = call(runtime, path, token="worker")
    assert answer.status == 403
    message = "worker credentials may only call /v1/workers/* and /v1/tasks/*"
    assert answer.json == {"error": {"code": "FORBIDDEN", "message": message}}
    assert "x-orbit-api-version" not in answer.headers


def test_the_admin_token_calls_everything(runtime: RunningRuntime) -> None:
    assert call(runtime, "/v1/workers/register", REGISTRATION, token="admin").status == 200
    assert call(runtime, "/v1/executions").status == 200


def test_an_unknown_path_and_a_wrong_method_are_said_to_be_so(runtime: RunningRuntime) -> None:
    unknown = call(runtime, "/v2/workers/register", REGISTRATION)
    assert (unknown.status, unknown.code) == (404, "NOT_FOUND")
    wrong = call(runtime, "/v1/workers/poll", method="GET")
    assert (wrong.status, wrong.code, wrong.headers["allow"]) == (405, "METHOD_NOT_ALLOWED", "POST")


def test_an_execution_id_may_hold_an_escaped_slash(runtime: RunningRuntime) -> None:
    start(runtime, "a/b c")
    assert call(runtime, "/v1/executions/a%2Fb%20c").json["id"] == "a/b c"
    assert call(runtime, "/v1/executions/a%2Fb%20c/cancel", b"", headers={}).json["status"] == "CANCELLED"


def test_an_unknown_execution_or_workflow_is_404(runtime: RunningRuntime) -> None:
    assert call(runtime, "/v1/executions/nope").code == "UNKNOWN_EXECUTION"
    assert call(runtime, "/v1/executions/nope/wait?timeout_ms=1").code == "UNKNOWN_EXECUTION"
    assert call(runtime, "/v1/executions", {"workflow": "Nope"}).code == "UNKNOWN_WORKFLOW"


def test_waiting_ends_with_the_running_execution_when_the_time_is_over(runtime: RunningRuntime) -> None:
    start(runtime, "unserved")
    answer = call(runtime, "/v1/executions/unserved/wait?timeout_ms=50")
    assert (answer.status, answer.json["status"]) == (200, "RUNNING")
    call(runtime, "/v1/executions/unserved/cancel", {})
    assert call(runtime, "/v1/executions/unserved/wait?timeout_ms=x").status == 400


def test_a_poll_whose_client_went_away_takes_no_task(runtime: RunningRuntime) -> None:
    session_id = session(runtime)
    body = json.dumps({"worker_session_id": session_id, "wait_ms": 20_000}).encode()
    with contextlib.closing(connect(runtime)) as connection:
        connection.request("POST", "/v1/workers/poll", body, JSON | {"authorization": "Bearer worker"})
    # the runtime hears of the closed connection before it hears of this one, or the next poll finds the task
    call(runtime, "/v1/workers")
    start(runtime, "not-lost")
    task = poll(runtime, session_id)
    assert task["execution_id"] == "not-lost"
    assert call(runtime, "/v1/tasks/complete", {"token": task["token"], "output": {"message": "m"}}).json == {
        "accepted": True
    }


def test_the_list_of_workers_tells_who_is_online_with_what(runtime: RunningRuntime) -> None:
    session_id = call(
        runtime, "/v1/workers/register", REGISTRATION | {"worker_id": "listed", "sdk": "s/1"}
    ).json["worker_session_id"]
    start(runtime, "held")
    task = poll(runtime, session_id)
    [listed] = [
        each for each in call(runtime, "/v1/workers").json["workers"] if each["worker_id"] == "listed"
    ]
    assert listed.pop("last_contact_ms") > 1_500_000_000_000
    assert listed == {
        "worker_id": "listed",
        "runtime": "ruby",
        "sdk": "s/1",
        "contracts": REGISTRATION["contracts"],
        "online": True,
        "sessions": 1,
        "in_flight": 1,
    }
    call(runtime, "/v1/tasks/complete", {"token": task["token"], "output": {"message": "m"}})
    call(runtime, "/v1/workers/unregister", {"worker_session_id": session_id})
    [listed] = [
        each for each in call(runtime, "/v1/workers").json["workers"] if each["worker_id"] == "listed"
    ]
    assert (listed["online"], listed["sessions"], listed["in_flight"]) == (False, 0, 0)


def test_the_leader_switch_refuses_everything_with_503(runtime: RunningRuntime) -> None:
    assert call(runtime, "/v1/dev/leader", {"leader": False}).json == {"leader": False}
    try:
        answer = call(runtime, "/v1/workers/register", REGISTRATION)
    finally:
        call(runtime, "/v1/dev/leader", {"leader": True})
    assert (answer.status, answer.code) == (503, "NOT_LEADER")
    assert answer.headers["x-orbit-api-version"] == "orbit-api/1"
    assert call(runtime, "/v1/workers/register", REGISTRATION).status == 200


@pytest.mark.parametrize("ending", ["kill", "stop"])
def test_a_restart_keeps_tokens_and_forgets_sessions(greet: Path, tmp_path: Path, ending: str) -> None:
    with running_runtime(greet, token="admin", db=tmp_path / "o.db", session_timeout="300ms") as running:
        session_id = session(running)
        start(running, "early")
        start(running, "late")
        tokens = [poll(running, session_id)["token"] for _ in range(2)]
        getattr(running, ending)()
        running.start()
        lost = call(running, "/v1/workers/heartbeat", {"worker_session_id": session_id})
        assert (lost.status, lost.code) == (404, "UNKNOWN_SESSION")
        done = call(running, "/v1/tasks/complete", {"token": tokens[0], "output": {"message": "m"}})
        assert done.json == {"accepted": True}
        again = poll(running, session(running))
        assert (again["execution_id"], again["attempt"], again["redelivery"]) == ("late", 1, True)
        assert call(running, "/v1/executions/early").json["status"] == "COMPLETED"


def test_stopping_answers_a_hanging_poll(greet: Path) -> None:
    with running_runtime(greet, token="admin") as running:
        body = json.dumps({"worker_session_id": session(running), "wait_ms": 60_000}).encode()
        with contextlib.closing(connect(running)) as connection:
            connection.request("POST", "/v1/workers/poll", body, JSON | {"authorization": "Bearer admin"})
            call(running, "/v1/workers")
            assert running.stop() == 0
            assert connection.getresponse().status == 204


def test_an_open_runtime_needs_no_credentials(greet: Path) -> None:
    with running_runtime(greet) as running:
        assert call(running, "/v1/workers/register", REGISTRATION, token=None).status == 200
        assert call(running, "/v1/executions", token="whatever").status == 200


@pytest.fixture(scope="module")
def mutual(authority: Authority) -> Iterator[RunningRuntime]:
    server = authority.sign("server-http", addresses=["127.0.0.1"])
    with running_runtime(
        Path(__file__).parent / "greet.toml",
        token="admin",
        workers=WORKERS,
        tls_cert=server.certificate,
        tls_key=server.key,
        tls_client_ca=authority.file,
    ) as running:
        yield running


def tls_of(authority: Authority, pair: Pair | None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(authority.file))
    if pair is not None:
        context.load_cert_chain(pair.certificate, pair.key)
    return context


def test_tls(greet: Path, authority: Authority) -> None:
    server = authority.sign("server-https", addresses=["127.0.0.1"])
    with running_runtime(greet, token="admin", tls_cert=server.certificate, tls_key=server.key) as running:
        assert running.url.startswith("https://")
        answer = call(running, "/v1/workers/register", REGISTRATION, tls=tls_of(authority, None))
        assert answer.status == 200


def test_mutual_tls_knows_a_worker_by_its_certificate(mutual: RunningRuntime, authority: Authority) -> None:
    tls = tls_of(authority, authority.sign("https-worker", ["worker.example"]))
    own = call(mutual, "/v1/workers/register", REGISTRATION | {"worker_id": "by-dns"}, token=None, tls=tls)
    assert own.status == 200
    other = call(mutual, "/v1/workers/register", REGISTRATION, token=None, tls=tls)
    assert (other.status, other.code) == (403, "FORBIDDEN")
    assert other.headers["x-orbit-api-version"] == "orbit-api/1"
    admin = call(mutual, "/v1/executions", token="admin", tls=tls)
    assert admin.status == 200
    worker = call(mutual, "/v1/executions", token=None, tls=tls)
    assert worker.status == 403


def test_a_valid_certificate_of_nobody_is_forbidden(mutual: RunningRuntime, authority: Authority) -> None:
    tls = tls_of(authority, authority.sign("https-nobody"))
    answer = call(mutual, "/v1/workers/register", REGISTRATION, token=None, tls=tls)
    assert (answer.status, answer.code) == (403, "FORBIDDEN")


def test_without_a_certificate_mutual_tls_gives_no_connection(
    mutual: RunningRuntime, authority: Authority
) -> None:
    with pytest.raises((ssl.SSLError, ConnectionError, http.client.RemoteDisconnected)):
        call(mutual, "/v1/executions", tls=tls_of(authority, None))


def refusal(*arguments: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "kiwi_worker.cli.orbit_runtime", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    return done.returncode, done.stderr


def test_an_address_that_others_reach_needs_a_token(greet: Path) -> None:
    status, text = refusal("--deploy", str(greet), "--host", "0.0.0.0", "--port", "0")
    assert status == 78
    assert "--token" in text
    assert refusal("--deploy", str(greet), "--port", "0", "--grpc-addr", "0.0.0.0:0")[0] == 78


def test_a_port_in_use_is_said_to_be_so(greet: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        status, text = refusal("--deploy", str(greet), "--port", port)
        assert (status, port in text) == (78, True)
        assert refusal("--deploy", str(greet), "--port", "0", "--grpc-addr", f"127.0.0.1:{port}")[0] == 78


def test_a_database_in_use_is_refused(greet: Path, tmp_path: Path) -> None:
    with running_runtime(greet, db=tmp_path / "o.db"):
        status, text = refusal("--deploy", str(greet), "--port", "0", "--db", str(tmp_path / "o.db"))
    assert status == 78
    assert "another runtime" in text


def test_a_mistake_in_the_deployment_is_named(tmp_path: Path) -> None:
    deploy = tmp_path / "bad.toml"
    deploy.write_text('[[workflow]]\nname = "A"\nstep = { task = "a", time_out = "3s" }\n')
    status, text = refusal("--deploy", str(deploy), "--port", "0")
    assert status == 78
    assert "deploy.workflow[0].step.time_out: unknown key; did you mean `timeout`?" in text
