"""Health over a file and over a port, and the command that reads both."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from worker_tools import eventually, running, worker_environment

from kiwi_worker import Worker
from kiwi_worker.cli import main
from kiwi_worker.errors import SettingsError
from kiwi_worker.observe import health_file
from kiwi_worker.observe.http import MOST_CONNECTIONS, Page, PageServer
from kiwi_worker.testing import KiwiServer, Status

NewWorker = Callable[..., Worker]


def get(port: int, path: str, method: str = "GET") -> tuple[int, Any]:
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=10)) as connection:
        connection.request(method, path)
        answer = connection.getresponse()
        body = answer.read()
        return answer.status, json.loads(body) if body else None


def status(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(
        main, ["status", *arguments], env={"KIWI_HEALTH_FILE": "", "KIWI_HEALTH_PORT": ""}
    )
    return result.exit_code, result.output.strip()


# The port


def test_the_port_tells_live_ready_and_status(server: KiwiServer, new_worker: NewWorker) -> None:
    with new_worker(health_port=0) as worker:
        port = worker.ports["health_port"]
        assert get(port, "/live") == (200, {"live": True, "reasons": {}})
        assert get(port, "/ready?x=1") == (200, {"ready": True, "reasons": {}})
        server.assert_answered_once(server.enqueue("hello"), "success")
        eventually(lambda: get(port, "/status")[1]["workers"][0]["counters"]["answered"] == 1)
        code, said = get(port, "/status")
        assert (code, said["live"], said["ready"], said["healthy"]) == (200, True, True, True)
        assert get(port, "/nothing")[0] == 404
        assert get(port, "/live", "POST")[0] == 405
        assert get(port, "/live", "HEAD") == (200, None)
    with pytest.raises(ConnectionRefusedError):
        get(port, "/live")


@pytest.mark.usefixtures("impatient")
def test_the_port_tells_what_is_wrong(server: KiwiServer, new_worker: NewWorker) -> None:
    server.fault("heartbeat", Status(500), times="always")
    with new_worker(health_port=0, heartbeat_delay=0.05) as worker:
        port = worker.ports["health_port"]
        eventually(lambda: get(port, "/status")[0] == 503)
        assert "no heartbeat was answered" in get(port, "/status")[1]["workers"][0]["reasons"][0]
        assert get(port, "/live")[0] == 200


def test_the_port_answers_while_the_start_waits_for_the_middleware(
    server: KiwiServer, new_worker: NewWorker
) -> None:
    worker = new_worker(health_port=0)
    fault = server.fault("register", Status(503), times="always")
    start = threading.Thread(target=worker.start)
    start.start()
    server.wait_for_calls("register", 1)
    port = worker.ports["health_port"]
    assert get(port, "/live")[0] == 200
    assert get(port, "/ready") == (503, {"ready": False, "reasons": {"worker-1": ["it is not registered"]}})
    fault.disarm()
    start.join()
    assert get(port, "/ready")[0] == 200


def test_a_port_that_is_taken_refuses_the_start(new_worker: NewWorker) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        worker = new_worker(health_port=taken.getsockname()[1])
        with pytest.raises(
            SettingsError, match=r"health_port: port \d+ cannot be had: Address already in use"
        ):
            worker.start()
    assert worker.ports == {}
    worker.start()


def test_workers_of_one_process_share_a_port(new_worker: NewWorker) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    one, other = new_worker(health_port=port), new_worker(health_port=port)
    with one:
        with other:
            assert [worker["worker_id"] for worker in get(port, "/status")[1]["workers"]] == [
                "worker-1",
                "worker-2",
            ]
        assert [worker["worker_id"] for worker in get(port, "/status")[1]["workers"]] == ["worker-1"]
    with other:
        assert get(port, "/ready")[0] == 200


def test_held_and_nonsense_connections_shut_nobody_out() -> None:
    server = PageServer("pages", "127.0.0.1", 0, {"/live": lambda accept: Page(200, b"{}")})
    with contextlib.ExitStack() as stack:
        stack.callback(server.close)
        for number in range(2 * MOST_CONNECTIONS):
            held = stack.enter_context(socket.create_connection(("127.0.0.1", server.port)))
            held.sendall([b"", b"GET /live", b"\0\xff\r\n\r\n", b"x" * 10_000][number % 4])
            if number % 7 == 0:
                held.close()
        assert get(server.port, "/live")[0] == 200


def test_a_page_that_cannot_be_made_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    def broken(accept: str) -> Page:
        raise RuntimeError("broken")

    server = PageServer("pages", "127.0.0.1", 0, {"/broken": broken, "/": lambda accept: Page(200, b"{}")})
    with contextlib.closing(server):
        assert get(server.port, "/broken")[0] == 500
        assert get(server.port, "/")[0] == 200
    assert "making a page failed" in caplog.text


# The file


def test_the_file_follows_the_worker_and_goes_with_it(
    server: KiwiServer, new_worker: NewWorker, tmp_path: Path
) -> None:
    path = tmp_path / "health.json"
    worker = new_worker(health_file=str(path))
    with worker:
        eventually(lambda: json.loads(path.read_text())["ready"])
        assert status("--file", str(path)) == (0, "worker-1 is healthy")
        assert status("--file", str(path), "--ready") == (0, "worker-1 is ready")
        assert list(tmp_path.iterdir()) == [path]
    assert not path.exists()
    code, text = status("--file", str(path))
    assert code == 3
    assert "No such file" in text


@pytest.mark.usefixtures("impatient")
def test_the_file_tells_what_is_wrong(
    server: KiwiServer, new_worker: NewWorker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health_file, "LOOK_SECONDS", 0.05)
    path = str(tmp_path / "health.json")
    server.fault("heartbeat", Status(500), times="always")
    with new_worker(health_file=path, heartbeat_delay=0.05):
        eventually(lambda: status("--file", path)[0] == 1)
        assert "worker-1 is not healthy: no heartbeat was answered" in status("--file", path)[1]
        assert status("--file", path, "--live")[0] == 0


def test_the_file_is_written_only_when_something_changed(
    new_worker: NewWorker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health_file, "LOOK_SECONDS", 0.01)
    path = tmp_path / "health.json"
    with new_worker(health_file=str(path)) as worker:
        eventually(lambda: json.loads(path.read_text())["ready"])
        written = path.stat().st_ino, path.stat().st_mtime_ns
        looks = []
        monkeypatch.setattr(
            worker._publication,
            "_watched",
            worker._publication._watched,  # type: ignore[union-attr]
        )
        for board in _boards():
            summarize = board.publisher._summarize
            monkeypatch.setattr(
                board.publisher, "_summarize", lambda summarize=summarize: looks.append(1) or summarize()
            )
        eventually(lambda: len(looks) > 20)
        assert (path.stat().st_ino, path.stat().st_mtime_ns) == written
        monkeypatch.setattr(health_file, "WRITE_SECONDS", 0.0)
        eventually(lambda: path.stat().st_mtime_ns != written[1])


def _boards() -> list[Any]:
    from kiwi_worker.observe import publishing

    return list(publishing._boards.values())


def test_a_file_that_cannot_be_written_is_logged_once_and_tried_again(
    new_worker: NewWorker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(health_file, "LOOK_SECONDS", 0.01)
    folder = tmp_path / "folder"
    folder.mkdir()
    path = folder / "health.json"
    with new_worker(health_file=str(path)):
        eventually(path.exists)
        folder.rename(tmp_path / "elsewhere")
        monkeypatch.setattr(health_file, "WRITE_SECONDS", 0.0)
        eventually(lambda: "the health file cannot be written" in caplog.text)
        folder.mkdir()
        eventually(path.exists)
    errors = [record for record in caplog.records if getattr(record, "action", "") == "health_file_failed"]
    assert [record.levelname for record in errors].count("ERROR") == 1


def test_an_old_file_is_not_believed(tmp_path: Path) -> None:
    path = tmp_path / "health.json"
    said = {"live": True, "ready": True, "healthy": True, "workers": [], "good_seconds": 45.0}
    for age in (100, -100):
        path.write_text(json.dumps({**said, "written_at": time.time() - age}))
        code, text = status("--file", str(path))
        assert (code, f"{age} s ago" in text) == (3, True)
    path.write_text("{}")
    assert status("--file", str(path)) == (3, f"kiwi-worker status: {path} is no health file")


WORKER = """
import sys
from kiwi_worker import Worker
with Worker():
    print("started", flush=True)
    sys.stdin.readline()
"""


def test_the_file_of_a_killed_worker_grows_old(server: KiwiServer, tmp_path: Path) -> None:
    path = tmp_path / "health.json"
    with running(WORKER, **worker_environment(server, health_file=str(path))) as process:
        assert process.line() == "started"
        eventually(lambda: json.loads(path.read_text())["ready"])
        process.popen.kill()
        process.popen.wait()
    said = json.loads(path.read_text())
    assert said["process_id"] == process.popen.pid
    path.write_text(json.dumps({**said, "written_at": said["written_at"] - health_file.GOOD_SECONDS - 1}))
    assert status("--file", str(path))[0] == 3


# The command


def test_status_asks_a_port(server: KiwiServer, new_worker: NewWorker) -> None:
    with new_worker(health_port=0) as worker:
        port = worker.ports["health_port"]
        assert status("--url", f"http://127.0.0.1:{port}") == (0, "worker-1 is healthy")
        assert status("--url", f"127.0.0.1:{port}", "--live") == (0, "worker-1 is live")
        code, text = status("--url", f"127.0.0.1:{port}", "--json")
        assert (code, json.loads(text)["ready"]) == (0, True)
        server.forget_workers()
    code, text = status("--url", f"127.0.0.1:{port}")
    assert code == 3
    assert "nobody answers at" in text


def test_status_of_something_else_than_a_worker() -> None:
    pages = {"/status": lambda accept: Page(200, b"[]")}
    with contextlib.closing(PageServer("pages", "127.0.0.1", 0, pages)) as server:
        assert status("--url", f"http://127.0.0.1:{server.port}")[0] == 3


@pytest.mark.parametrize(
    "wrong",
    [
        [],
        ["--file", "x", "--url", "y"],
        ["--url", "https://x"],
        ["--url", "127.0.0.1:abc"],
        ["--url", "http://[x"],
    ],
)
def test_status_without_a_place_to_ask_is_a_usage_error(wrong: list[str]) -> None:
    assert status(*wrong)[0] == 2


def test_status_reads_the_variables_that_the_worker_reads(new_worker: NewWorker, tmp_path: Path) -> None:
    path = str(tmp_path / "health.json")
    with new_worker(health_file=path, health_port=0) as worker:
        port = str(worker.ports["health_port"])
        eventually(lambda: status("--file", path)[0] == 0)
        for variables in ({"KIWI_HEALTH_FILE": path}, {"KIWI_HEALTH_PORT": port}):
            environment = {key: value for key, value in os.environ.items() if "KIWI_" not in key}
            ended = subprocess.run(
                [sys.executable, "-m", "kiwi_worker", "status"],
                env={**environment, **variables},
                capture_output=True,
                text=True,
                check=False,
            )
            assert (ended.returncode, ended.stdout) == (0, "worker-1 is healthy\n"), ended.stderr


# What it costs

IDLE = """
import sys, time
from kiwi_worker import Worker
worker = Worker()
worker.method("hello")(lambda: "hello")
with worker:
    print("started", flush=True)
    sys.stdin.readline()
    used = []
    for _ in range(3):
        before = time.process_time()
        time.sleep(3)
        used.append(time.process_time() - before)
    print(min(used), flush=True)
"""


def test_an_idle_worker_with_health_on_sleeps(server: KiwiServer, tmp_path: Path) -> None:
    settings = {"health_file": str(tmp_path / "health"), "health_port": 0, "metrics_port": 0}
    pytest.importorskip("prometheus_client")
    with running(IDLE, **worker_environment(server, **settings)) as process:
        assert process.line() == "started"
        process.write("go")
        used_seconds = float(process.line())
        assert process.end()[2] == ""
    # Of 10 ms in 30 s; the first heartbeat, or another process, may fall into one of the three spans.
    assert used_seconds < 0.001, used_seconds
