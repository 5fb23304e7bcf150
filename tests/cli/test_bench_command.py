"""`kiwi-worker bench`, against a real middleware."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from kiwi_worker.bench.latency import Call, latency_of, measure
from kiwi_worker.testing.middleware import MiddlewareProcess, running_middleware


@pytest.fixture(scope="module")
def middleware() -> Iterator[MiddlewareProcess]:
    with running_middleware() as process:
        yield process


def bench(middleware: MiddlewareProcess, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment: Mapping[str, str] = {
        **os.environ,
        "KIWI_MIDDLEWARE_URL": middleware.url,
        "KIWI_SERVICE_ID": middleware.service_id,
        "KIWI_AUTH_SECRET": middleware.worker_secret,
        "KIWI_CLIENT_SECRET": middleware.client_secret,
        **variables,
    }
    command = [sys.executable, "-m", "kiwi_worker", "bench", "--retry-limit", "0.2", *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("mode", ["lazy", "eager"])
def test_it_measures_a_worker_of_its_own_and_leaves_nothing(middleware: MiddlewareProcess, mode: str) -> None:
    done = bench(middleware, "--json", "--calls", "40", "--callers", "4", "--run-mode", mode)
    assert (done.returncode, done.stderr) == (0, "")
    said = json.loads(done.stdout)
    assert (said["run_mode"], said["service_id"]) == (mode, "demo")
    bare, alone, together = said["parts"]
    assert [part["callers"] for part in said["parts"]] == [0, 1, 4]
    assert all(0 < part["p50_ms"] <= part["p99_ms"] and part["per_second"] > 0 for part in said["parts"])
    assert bare["cpu_us"] is None
    assert alone["cpu_us"] > 0
    assert together["cpu_us"] > 0
    assert all(worker.stopping for worker in middleware.client.workers())


def test_the_table_names_the_middleware_and_the_ratio(middleware: MiddlewareProcess) -> None:
    done = bench(middleware, "--calls", "20", "--callers", "2", "--run-mode", "eager")
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert lines[0] == f"{middleware.url}, service demo: eager mode, 8 slots"
    assert [line.split("  ")[0] for line in lines[3:6]] == ["bare round trip", "1 caller", "2 callers"]
    assert lines[-1].startswith("one call takes ")


def test_it_takes_the_place_of_no_worker_that_runs(middleware: MiddlewareProcess, tmp_path: Path) -> None:
    kept = tmp_path / "journal"
    done = bench(
        middleware,
        *("--calls", "10", "--callers", "1", "--json", "--journal", str(kept), "--worker-id", "mine"),
        KIWI_HEALTH_FILE=str(tmp_path / "health"),
    )
    assert done.returncode == 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("variables", "status", "said"),
    [
        ({"KIWI_AUTH_SECRET": "not-the-secret"}, 77, "the middleware refused the credentials"),
        ({"KIWI_CLIENT_SECRET": "not-the-secret"}, 77, "the client secret of the service demo was refused"),
        ({"KIWI_MIDDLEWARE_URL": "http://127.0.0.1:1"}, 69, "check middleware_url and that the server is up"),
        ({"KIWI_AUTH_SECRET": ""}, 78, "auth_secret"),
    ],
)
def test_what_stops_it_is_one_line_and_its_status(
    middleware: MiddlewareProcess, variables: dict[str, str], status: int, said: str
) -> None:
    done = bench(middleware, **variables)
    assert (done.returncode, done.stdout) == (status, "")
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert "not-the-secret" not in done.stderr


class TestLatency:
    def test_figures_of_known_seconds(self) -> None:
        assert latency_of([0.003, 0.001, 0.002, 0.004], 2.0) == (2.0, 3.0, 4.0)

    def test_each_caller_makes_its_share_and_warming_calls_do_not_count(self) -> None:
        numbers: list[int] = []
        measured = measure(lambda: numbers.append, callers=3, calls=9, warm=2)
        assert sorted(numbers) == sorted([-2, -1, 0, 1, 2] * 3)
        assert measured.per_second > 0

    @pytest.mark.parametrize("warm", [0, 3])
    def test_a_call_that_fails_ends_all(self, warm: int) -> None:
        def new_caller() -> Call:
            def call(number: int) -> None:
                raise LookupError(str(number))

            return call

        with pytest.raises(LookupError, match=str(-warm)):
            measure(new_caller, callers=4, calls=40, warm=warm)
