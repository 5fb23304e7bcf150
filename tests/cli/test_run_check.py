"""`kiwi-worker run --check`, and everything that stops a run before it connects."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

LIMIT_SECONDS = 30.0

MODULE = """
from __future__ import annotations
from kiwi_worker import Context, Worker

worker = Worker(concurrency=3)
other = Worker(run_mode="eager")
both = [worker, other]
empty = Worker()

@worker.method
def hello(name: str = "world", *, ctx: Context) -> str:
    return name

@worker.method("later", time_limit=2.5)
async def later() -> None: ...

@other.method
def pair(a: int, b: int) -> int:
    return a + b
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "tasks.py").write_text(MODULE)
    return tmp_path


def kiwi_worker(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("KIWI_", "ORBIT_"))}
    return subprocess.run(
        [sys.executable, "-m", "kiwi_worker", *arguments],
        cwd=folder,
        env={**clean, "KIWI_AUTH_SECRET": "any", **environment},
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )


def refused(folder: Path, *arguments: str, status: int = 78, **environment: str) -> str:
    """The one line that a refused run prints."""
    ended = kiwi_worker(folder, "run", *arguments, **environment)
    assert (ended.returncode, ended.stdout) == (status, ""), ended
    assert ended.stderr.startswith("kiwi-worker run: "), ended.stderr
    assert ended.stderr.count("\n") == 1, ended.stderr
    return ended.stderr.removeprefix("kiwi-worker run: ").rstrip()


def test_check_prints_what_would_be_served_and_where_settings_come_from(folder: Path) -> None:
    ended = kiwi_worker(folder, "run", "tasks", "--check", "--worker-id", "w1", KIWI_SERVICE_ID="demo")

    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout == (
        "Worker w1\n"
        "  serves 2:\n"
        "    hello(name: str = 'world', *, ctx: Context) -> str\n"
        "    later() -> None  [async, time_limit=2.5]\n"
        "  settings:\n"
        "    worker_id = 'w1'  (option: --worker-id)\n"
        "    concurrency = 3  (keyword: concurrency)\n"
        "    service_id = 'demo'  (environment: KIWI_SERVICE_ID)\n"
        "    auth_secret = Secret('***')  (environment: KIWI_AUTH_SECRET)\n"
        "all right; connected to nothing\n"
    )


def test_check_prints_the_tasks_of_an_orbit_worker(folder: Path) -> None:
    (folder / "orbit_tasks.py").write_text(
        "from typing import Any\nfrom kiwi_worker.orbit import OrbitWorker\nworker = OrbitWorker()\n"
        "@worker.task('greet', version='1.0.0')\n"
        "def greet(input: dict[str, Any]) -> dict[str, Any]: return input\n"
    )
    ended = kiwi_worker(folder, "run", "orbit_tasks", "--check", "--worker-id", "w1")

    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout == (
        "OrbitWorker w1\n"
        "  serves 1:\n"
        "    greet 1.0.0(input: dict[str, Any]) -> dict[str, Any]\n"
        "  settings:\n"
        "    worker_id = 'w1'  (option: --worker-id)\n"
        "all right; connected to nothing\n"
    )


def test_the_first_source_that_gives_a_value_wins(folder: Path) -> None:
    (folder / "kiwi.toml").write_text('concurrency = 2\nservice_id = "filed"\nwait = 7\n')
    ended = kiwi_worker(
        folder, *("run", "tasks", "--check", "--config", "kiwi.toml", "--wait", "9"), KIWI_SERVICE_ID="set"
    )

    assert "concurrency = 3  (keyword: concurrency)" in ended.stdout
    assert "service_id = 'set'  (environment: KIWI_SERVICE_ID)" in ended.stdout
    assert "wait = 9  (option: --wait)" in ended.stdout


def test_options_are_there_when_the_module_makes_its_worker(folder: Path) -> None:
    (folder / "kept.py").write_text(
        "from kiwi_worker import Worker\n"
        "worker = Worker(journal='kept.journal')\n"
        "print(worker.settings.worker_id)\n"
        "worker.method(len)\n"
    )

    assert "worker_id" in refused(folder, "kept", "--check")
    assert kiwi_worker(folder, "run", "kept", "--check", "--worker-id", "w1").stdout.startswith("w1\n")


def test_a_list_of_workers(folder: Path) -> None:
    ended = kiwi_worker(folder, "run", "tasks:both", "--check", "--concurrency", "5")

    assert ended.returncode == 0
    assert ended.stdout.count("concurrency = 5  (option: --concurrency)") == 2
    assert "pair(a: int, b: int) -> int" in ended.stdout


@pytest.mark.parametrize(
    "option", [["--worker-id", "w"], ["--advertised-port", "9000"], ["--health-port", "8000"]]
)
def test_what_only_one_worker_can_have_is_refused_for_several(folder: Path, option: list[str]) -> None:
    assert f"{option[0]} is for one worker" in refused(folder, "tasks:both", *option, status=2)


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["--concurency", "3"], "--concurrency"),
        (["--concurrency", "0"], "below 1"),
        (["--server", "http://127.0.0.1"], "--server is no setting of this worker"),
        (["--auth-secret", "x"], "--auth-secret-file"),
        (["--run-mode", "sleepy"], "lazy"),
    ],
)
def test_a_wrong_option_is_a_usage_error(folder: Path, arguments: list[str], hint: str) -> None:
    assert hint in refused(folder, "tasks", *arguments, status=2)


@pytest.mark.parametrize(
    ("target", "hint"),
    [
        ("nothing", "there is no module nothing"),
        ("tasks.py", "give the module's name, tasks"),
        ("./tasks.py:worker", "give the module's name, tasks"),
        ("no name", "is no module name"),
        ("tasks:app", "say tasks:worker or tasks:other or tasks:empty"),
        ("tasks:hello", "is no worker, nor a list of workers (function)"),
        ("tasks:empty", "no methods"),
    ],
)
def test_a_target_that_cannot_be_found(folder: Path, target: str, hint: str) -> None:
    ended = kiwi_worker(folder, "run", target, "--check")
    assert ended.returncode == 78
    assert hint in ended.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("source", "hint"),
    [
        ("import json\n\njson.loads('{')\n", "at broken.py:3: JSONDecodeError"),
        ("def x(:\n", "SyntaxError: invalid syntax"),
        ("import nowhere_to_be_found\n", "ModuleNotFoundError: No module named 'nowhere_to_be_found'"),
        ("raise SystemExit(0)\n", "SystemExit: 0"),
        ("raise Exception('two\\nlines')\n", "Exception: two lines"),
        ("from kiwi_worker import Worker\nWorker(concurency=3)\n", "did you mean concurrency?"),
        ("from kiwi_worker import Worker\nWorker().method('a/b')(len)\n", "a/b"),
    ],
)
def test_a_module_that_cannot_be_imported_is_one_line(folder: Path, source: str, hint: str) -> None:
    (folder / "broken.py").write_text(source)
    assert hint in refused(folder, "broken")


def test_the_traceback_only_on_demand(folder: Path) -> None:
    (folder / "broken.py").write_text("{}['key']\n")
    ended = kiwi_worker(folder, "run", "broken", "--traceback")

    assert ended.returncode == 78
    assert "Traceback (most recent call last)" in ended.stderr
    assert ended.stderr.splitlines()[-1].startswith("kiwi-worker run: importing broken failed at broken.py:1")


def test_wrong_settings_are_told_by_the_name_they_were_given_under(folder: Path) -> None:
    assert refused(folder, "tasks", KIWI_GRACE_PERIOD="soon").startswith("KIWI_GRACE_PERIOD: ")
    (folder / "kiwi.toml").write_text("waits = 3\n")
    assert "did you mean wait?" in refused(folder, "tasks", "--config", "kiwi.toml")
    assert "cannot be read" in refused(folder, "tasks", "--config", "missing.toml")


def test_a_missing_secret_is_found_without_connecting(folder: Path) -> None:
    ended = kiwi_worker(folder, "run", "tasks", "--check", KIWI_AUTH_SECRET="")
    assert ended.returncode == 78
    assert "auth_secret: is missing; set KIWI_AUTH_SECRET or auth_secret_file" in ended.stderr


def test_a_thread_that_a_broken_module_left_does_not_hold_up_the_end(folder: Path) -> None:
    (folder / "broken.py").write_text(
        "import threading, time\nthreading.Thread(target=time.sleep, args=(600,)).start()\nraise ValueError\n"
    )
    ended = kiwi_worker(folder, "run", "broken")
    assert ended.returncode == 78


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGTERM, -signal.SIGTERM), (signal.SIGINT, 128 + signal.SIGINT)]
)
def test_a_signal_during_the_import_ends_the_process(
    folder: Path, number: signal.Signals, status: int
) -> None:
    (folder / "slow.py").write_text("import time\nprint('importing', flush=True)\ntime.sleep(600)\n")
    command = [sys.executable, "-m", "kiwi_worker", "run", "slow"]
    with subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "importing\n"
        process.send_signal(number)
        assert process.wait(LIMIT_SECONDS) == status


def test_a_worker_without_methods_is_refused_by_run_as_it_is_by_check(folder: Path) -> None:
    assert "has no methods: decorate a function" in refused(folder, "tasks:empty", KIWI_SERVICE_ID="shop")


@pytest.mark.parametrize("check", [[], ["--check"]])
def test_an_address_with_a_password_is_refused_by_check_as_it_is_by_run(
    folder: Path, check: list[str]
) -> None:
    said = refused(folder, "tasks", *check, KIWI_SERVICE_ID="shop", KIWI_MIDDLEWARE_URL="http://me:pa55@h/")
    assert "KIWI_MIDDLEWARE_URL: must not hold a user name or password" in said
    assert "pa55" not in said


@pytest.mark.parametrize(
    "source", ["from kiwi_worker import Worker", "from kiwi_worker.orbit import OrbitWorker"]
)
def test_check_reads_certificates_that_a_start_would_refuse(folder: Path, source: str) -> None:
    name = source.rpartition(" ")[2]
    decorator = "method" if name == "Worker" else 'task("f", version="1")'
    (folder / "secure.py").write_text(
        f"{source}\nworker = {name}()\n@worker.{decorator}\ndef f(input: dict) -> dict: ...\n"
    )
    (folder / "ca.pem").write_text("none")
    addresses = {"KIWI_MIDDLEWARE_URL": "https://h", "ORBIT_SERVER": "https://h", "KIWI_CA_FILE": "ca.pem"}
    ended = kiwi_worker(folder, "run", "secure", "--check", **addresses)
    assert ended.returncode == 78
    assert ended.stderr == "kiwi-worker run: ca_file: holds no certificates in PEM form\n"


def test_a_misspelt_variable_is_warned_about_once(folder: Path) -> None:
    (folder / "one.py").write_text(
        "from kiwi_worker import Worker\nworker = Worker()\nworker.method('f')(len)\n"
    )
    ended = kiwi_worker(folder, "run", "one", "--check", KIWI_CONCURENCY="3", KIWI_LOG_LEVL="info")
    said = [line.partition(" WARNING kiwi_worker.settings: ")[2] for line in ended.stderr.splitlines()]
    assert said == [
        "environment variable KIWI_CONCURENCY is no setting; did you mean KIWI_CONCURRENCY?",
        "environment variable KIWI_LOG_LEVL is no setting; did you mean KIWI_LOG_LEVEL?",
    ]
