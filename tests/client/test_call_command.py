"""`kiwi-worker call`."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kiwi_worker.cli.call import percent_of
from kiwi_worker.testing.middleware import MiddlewareProcess

COMMAND = [sys.executable, "-m", "kiwi_worker.cli.call"]


def environment(middleware: MiddlewareProcess, **more: str) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("KIWI_")}
    ours = {"KIWI_MIDDLEWARE_URL": middleware.url, "KIWI_CLIENT_SECRET": middleware.client_secret}
    return {**kept, **ours, **more}


def call(middleware: MiddlewareProcess, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    environ = environment(middleware, **more)
    return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=60, env=environ)


def test_values_are_json_where_they_are_json(middleware: MiddlewareProcess) -> None:
    ended = call(
        middleware, "demo/echo", "n=3", "name=Ada", "list=[1, 2]", "flag=true", "x=NaN", "e=", "q=a=b"
    )
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout) == {
        "n": 3,
        "name": "Ada",
        "list": [1, 2],
        "flag": True,
        "x": "NaN",
        "e": "",
        "q": "a=b",
    }
    assert ended.stderr == ""


def test_params_as_one_value(middleware: MiddlewareProcess) -> None:
    assert json.loads(call(middleware, "demo/echo", "--params", "[1, 2]").stdout) == [1, 2]


def test_text_is_printed_as_it_is(middleware: MiddlewareProcess) -> None:
    ended = call(middleware, "demo/count")
    assert ended.stdout == "counted\n"
    assert ended.stderr.splitlines() == ["10%", "50%", "100%", "nearly"]


def test_service_from_the_environment(middleware: MiddlewareProcess) -> None:
    assert call(middleware, "count", KIWI_SERVICE_ID="demo").stdout == "counted\n"


def test_json_for_programs(middleware: MiddlewareProcess) -> None:
    ended = call(middleware, "demo/count", "--json")
    outcome = json.loads(ended.stdout)
    assert (outcome["status"], outcome["result"], outcome["error_text"]) == ("success", "counted", None)
    feedback = [json.loads(line) for line in ended.stderr.splitlines()]
    assert [item["feedback"] for item in feedback] == ["10%", "50%", "100%", "nearly"]


def test_failure(middleware: MiddlewareProcess) -> None:
    ended = call(middleware, "demo/fail")
    assert ended.returncode == 1
    assert ended.stdout == ""
    assert ended.stderr == "kiwi-worker call: failed: ValueError: no\n"
    ended = call(middleware, "demo/fail", "--json")
    assert ended.returncode == 1
    assert json.loads(ended.stdout)["error_text"] == "ValueError: no"


def test_no_wait_and_fetch(middleware: MiddlewareProcess) -> None:
    request_id = call(middleware, "demo/echo", "n=1", "--no-wait").stdout.strip()
    fetched = call(middleware, "demo", "--fetch", request_id)
    assert json.loads(fetched.stdout) == {"n": 1}


def test_fetch_without_a_method_when_the_service_is_set(middleware: MiddlewareProcess) -> None:
    request_id = call(middleware, "demo/count", "--no-wait").stdout.strip()
    fetched = call(middleware, "--fetch", request_id, KIWI_SERVICE_ID="demo")
    assert (fetched.returncode, fetched.stdout) == (0, "counted\n"), fetched.stderr


def test_timeout(middleware: MiddlewareProcess) -> None:
    ended = call(middleware, "demo/hang", "--timeout", "0.2", "--ttl", "30")
    assert ended.returncode == 75
    assert "--fetch" in ended.stderr
    ended = call(middleware, "demo/hang", "--ttl", "0.2")
    assert ended.returncode == 1
    assert "time to live" in ended.stderr


def test_secret_from_a_file(middleware: MiddlewareProcess, tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text(middleware.client_secret + "\n")
    environ = environment(middleware)
    del environ["KIWI_CLIENT_SECRET"]
    command = [*COMMAND, "demo/count", "--secret-file", str(file)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environ)
    assert ended.stdout == "counted\n", ended.stderr


@pytest.mark.parametrize(
    ("arguments", "more", "status", "said"),
    [
        (["demo/"], {}, 2, "SERVICE/METHOD"),
        (["/echo"], {}, 2, "SERVICE/METHOD"),
        (["demo/echo", "n"], {}, 2, "KEY=VALUE"),
        (["demo/echo", "--params", "{"], {}, 2, "--params"),
        (["demo/echo", "--params", "5"], {}, 2, "--params"),
        (["demo/echo", "a=1", "--params", "{}"], {}, 2, "not both"),
        (["echo"], {}, 78, "service_id"),
        (["demo/echo"], {"KIWI_CLIENT_SECRET": ""}, 78, "client_secret"),
        (["demo/echo"], {"KIWI_CLIENT_SECRET": "wrong-one"}, 77, "refused"),
        (["other/echo"], {}, 77, "refused"),
        (["demo/echo"], {"KIWI_MIDDLEWARE_URL": "http://127.0.0.1:9"}, 69, "http://127.0.0.1:9"),
        (["demo", "--fetch", "unknown"], {}, 1, "no such call"),
        ([], {"KIWI_SERVICE_ID": "demo"}, 2, "Missing argument '[SERVICE/]METHOD'"),
        (["demo/echo", "--timeout", "nan"], {}, 2, "no number of seconds"),
        (["demo/echo", "--ttl", "inf"], {}, 2, "no number of seconds"),
        (["demo/echo", "--params", '{"a": NaN}'], {}, 2, "NaN has no JSON form"),
        (["demo/echo", "a=1", "b=2", "a=3"], {}, 2, "a is given twice"),
        (["demo/echo", "--params", "[" * 100_000], {}, 2, "--params: is nested too deep"),
        (["demo/echo", "a=" + "[" * 100_000], {}, 2, "the value of a is nested too deep"),
        (["demo/echo", "a=1e999"], {}, 1, "params cannot be encoded as JSON: `float` at `$.a`"),
    ],
)
def test_error_on_one_line(
    middleware: MiddlewareProcess, arguments: list[str], more: dict[str, str], status: int, said: str
) -> None:
    ended = call(middleware, *arguments, **more)
    assert ended.returncode == status, ended.stderr
    assert said in ended.stderr
    assert "wrong-one" not in ended.stderr
    assert "Traceback" not in ended.stderr
    if status != 2:
        assert len(ended.stderr.splitlines()) == 1


def test_interrupt(middleware: MiddlewareProcess) -> None:
    command = [*COMMAND, "demo/hang", "--ttl", "60"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(middleware)
    ) as process:
        client = middleware.new_client()
        unanswered = client.workers()[0].unanswered
        while process.poll() is None and client.workers()[0].unanswered <= unanswered:
            pass
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
    assert process.returncode == 130
    assert errors == "kiwi-worker call: interrupted; the call itself goes on\n"


def test_progress_bar_when_a_person_is_watching(middleware: MiddlewareProcess) -> None:
    primary, secondary = pty.openpty()
    try:
        ended = subprocess.run(
            [*COMMAND, "demo/count"],
            stdout=subprocess.PIPE,
            stderr=secondary,
            timeout=60,
            env=environment(middleware),
        )
        shown = os.read(primary, 65536).decode()
    finally:
        os.close(primary)
        os.close(secondary)
    assert ended.stdout == b"counted\n"
    assert "[###---------------------------]  10.0 %" in shown
    assert "[##############################] 100.0 %" in shown
    assert "nearly" in shown


@pytest.mark.parametrize(
    ("content", "percent"),
    [
        (50, 50.0),
        (0.5, 50.0),
        (0, 0.0),
        (1, 1.0),
        ("50", 50.0),
        ("50%", 50.0),
        ("0.5%", 0.5),
        ("0.5", 50.0),
        ({"progress": 20}, 20.0),
        ('{"progress": 0.2}', 20.0),
        (101, None),
        (-1, None),
        (True, None),
        (None, None),
        ("half", None),
        ("nan", None),
        ([50], None),
        ({"done": 1}, None),
    ],
)
def test_percent_of(content: Any, percent: float | None) -> None:
    assert percent_of(content) == percent
