"""The middleware as a process: start, address, stop; and what it never says."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from kiwi_worker.testing.middleware import MiddlewareProcess, running_middleware

from .conftest import Workers
from .plain_worker import Background, until

COMMAND = [sys.executable, "-m", "kiwi_worker.cli.middleware"]


def run(*arguments: str, **more: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=60, **more)  # type: ignore[call-overload,no-any-return]


def test_address_is_printed_on_one_line() -> None:
    with running_middleware() as middleware:
        assert [line for line in middleware.output if "listens" in line] == [
            f"middleware listens on {middleware.url}\n"
        ]
        parts = urlsplit(middleware.url)
        assert parts.hostname == "127.0.0.1"
        assert parts.port
        middleware.stop()


def test_it_binds_loopback_unless_told_otherwise() -> None:
    with running_middleware() as middleware:
        port = urlsplit(middleware.url).port
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect(("192.0.2.1", 9))
            outside = probe.getsockname()[0]
        if outside.startswith("127."):
            pytest.skip("this machine has no other address")
        with pytest.raises(OSError, match="refused"):
            socket.create_connection((outside, port), timeout=5)


def test_ipv6() -> None:
    with running_middleware(host="::1") as middleware:
        assert middleware.url.startswith("http://[::1]:")
        assert middleware.client.methods() == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_stop_answers_whoever_waits(workers: Workers, number: signal.Signals) -> None:
    with running_middleware() as middleware:
        worker = workers(middleware)
        worker.register("other")
        drain = Background(lambda: worker.drain(wait=60))
        client = middleware.new_client()
        started = client.start("m")
        caller = workers(middleware, "caller")
        form = {
            "grant_type": "client_credentials",
            "service_id": middleware.service_id,
            "auth_secret": middleware.client_secret,
        }
        caller.token = caller.post_form("/client/auth_token", form)[1]["access_token"]
        call = Background(lambda: caller.call("GET", f"/client/calls/{started}?wait=60"))
        until(lambda: client.workers()[0].seen_seconds_ago < 60)
        assert middleware.process is not None
        time.sleep(0.2)  # both hang by now; nothing else shows from outside that they do
        middleware.process.send_signal(number)
        assert drain.result() == []
        status, body = call.result()
        assert (status, body["request_id"], body["status"]) == (202, started, "pending")
        assert middleware.process.wait(20) == 0
        middleware.start()
        assert client.fetch(started).status == "pending"


def test_stop_is_quick_when_idle() -> None:
    with running_middleware() as middleware:
        assert middleware.client.methods() == []
        begun = time.monotonic()
        assert middleware.stop() == 0
        assert time.monotonic() - begun < 10


def test_port_that_is_taken(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ended = run("--db", str(tmp_path / "m.db"), "--port", str(port))
    assert ended.returncode == 78
    assert ended.stderr == (
        f"kiwi-worker middleware: port: cannot listen on 127.0.0.1:{port}: Address already in use\n"
    )


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["--port", "0", "--db", "/nowhere/m.db"], 78, "db: cannot use /nowhere/m.db"),
        (["--port", "70000"], 2, "--port"),
        (["--queue-length", "0"], 2, "--queue-length"),
        (["--time-to-life", "5"], 2, "--time-to-li"),
        (["--heartbeat-delay", "soon"], 2, "--heartbeat-delay"),
    ],
)
def test_wrong_setting(arguments: list[str], status: int, said: str) -> None:
    ended = run(*arguments)
    assert ended.returncode == status
    assert said in ended.stderr
    assert "Traceback" not in ended.stderr


def test_variable_of_another_kubernetes_service_is_no_port(tmp_path: Path) -> None:
    import os

    environ = {**os.environ, "KIWI_MIDDLEWARE_PORT": "tcp://10.0.0.1:8420"}
    ended = run("--db", str(tmp_path / "none" / "m.db"), env=environ)
    # Or the default port, should somebody have it.
    assert "db: " in ended.stderr or "port 8420" in ended.stderr


@pytest.mark.prints_secrets
def test_services_by_command(tmp_path: Path) -> None:
    import json

    db = str(tmp_path / "m.db")
    added = run("service", "add", "demo", "--db", db, "--json")
    assert added.returncode == 0
    made = json.loads(added.stdout)
    assert set(made) == {"service_id", "worker_secret", "client_secret"}
    content = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert made["worker_secret"].encode() not in content
    assert made["client_secret"].encode() not in content

    plain = run("--db", db, "service", "add", "other")
    assert [line.split("=")[0] for line in plain.stdout.splitlines()] == [
        "KIWI_SERVICE_ID",
        "KIWI_AUTH_SECRET",
        "KIWI_CLIENT_SECRET",
    ]
    again = run("service", "add", "demo", "--db", db)
    assert again.returncode == 78
    assert "there is a service demo already" in again.stderr
    assert run("service", "add", "a/b", "--db", db).returncode == 78

    secret = run("service", "add-secret", "demo", "--role", "client", "--db", db).stdout.strip()
    listed = run("service", "list", "--db", db).stdout
    assert listed.splitlines()[0] == "demo"
    assert listed.count("client") == 3
    assert secret not in listed
    last = [line.split() for line in listed.splitlines() if "client" in line][1]
    assert run("service", "remove-secret", last[0], "--db", db).returncode == 0
    assert run("service", "remove-secret", last[0], "--db", db).returncode == 78
    assert run("service", "set", "demo", "hint=yes", "--db", db).returncode == 0
    assert run("service", "set", "nobody", "hint=yes", "--db", db).returncode == 78
    assert run("service", "set", "demo", "hint", "--db", db).returncode == 2
    assert run("service", "remove", "other", "--db", db).returncode == 0
    assert "other" not in run("service", "list", "--db", db).stdout


def test_service_added_while_it_runs(workers: Workers) -> None:
    with running_middleware() as middleware:
        later = middleware.with_new_service()
        workers(later).register("m")
        assert [method.method for method in later.client.methods()] == ["m"]
        later.close_clients()


def test_no_secret_and_no_token_in_the_log(workers: Workers) -> None:
    """Field report 71, for this side."""
    with running_middleware(log_level="debug") as middleware:
        worker = workers(middleware)
        refresh_token = worker.authenticate()["refresh_token"]
        worker.register("m")
        request_id = middleware.client.start("m", {"password": "params-are-private"})
        worker.drain_some()
        worker.respond(request_id, result="results-are-private")
        worker.respond(request_id)
        worker.post_form("/worker/auth_token", {"grant_type": "refresh_token", "refresh_token": "dead-token"})
        worker.send("POST", "/worker/response", b"{bad", {"Authorization": f"Bearer {worker.token}x"})
        middleware.client.fetch(request_id)
        middleware.stop()
        output = "".join(middleware.output)
        assert "registered" in output
        secrets = (
            middleware.worker_secret,
            middleware.client_secret,
            worker.token,
            refresh_token,
            "dead-token",
            "params-are-private",
            "results-are-private",
        )
        assert [secret for secret in secrets if secret in output] == []


def test_test_kit_reports_why_it_did_not_start(tmp_path: Path) -> None:
    middleware = MiddlewareProcess(db=tmp_path / "m.db", no_such_setting=1)
    with pytest.raises(RuntimeError, match="no-such-setting"):
        middleware.start()
    middleware.close()
