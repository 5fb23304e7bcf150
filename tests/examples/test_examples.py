"""Every example runs, as a person would run it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from kiwi_worker.client import Client as CallingClient
from kiwi_worker.orbit import Client
from kiwi_worker.testing.middleware import MiddlewareProcess, running_middleware
from kiwi_worker.testing.orbit_runtime import running_runtime

EXAMPLES = Path(__file__).parents[2] / "examples"
LIMIT_SECONDS = 30

CALLS: list[tuple[str, str, Any, Any]] = [
    ("hello", "hello", {"name": "Ada"}, "hello Ada"),
    ("async_handlers", "pause", {"seconds": 0.1}, 0.1),
    (
        "typed_parameters",
        "order",
        {"items": [{"name": "tea", "price": "2.50", "count": 2}], "currency": "EUR", "due": "2027-01-31"},
        {"total": "5.00", "currency": "EUR", "due": "2027-01-31"},
    ),
    ("resources", "visit", {"name": "Ada"}, 1),
    ("progress", "count_up", {"steps": 3}, 3),
    ("in_a_process", "primes", {"below": 100}, 25),
    ("parts", "reverse", {"value": "abc"}, "cba"),
]


@contextmanager
def run(module: str, *arguments: str, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "kiwi_worker", "run", module, *arguments],
        cwd=EXAMPLES,
        env={**os.environ, **environment},
    )
    try:
        yield process
        process.terminate()
        assert process.wait(LIMIT_SECONDS) == 0
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def middleware() -> Iterator[MiddlewareProcess]:
    with running_middleware() as running:
        yield running


@pytest.mark.parametrize(("module", "method", "params", "result"), CALLS, ids=[call[0] for call in CALLS])
def test_an_example_answers(
    middleware: MiddlewareProcess, module: str, method: str, params: Any, result: Any
) -> None:
    with new_service(middleware) as (client, environment), run(module, "--run-mode=eager", **environment):
        assert client.call(method, params, timeout=LIMIT_SECONDS) == result


@contextmanager
def new_service(middleware: MiddlewareProcess) -> Iterator[tuple[CallingClient, dict[str, str]]]:
    """A client of a service of its own, and what its workers need in their environment."""
    service = middleware.with_new_service()
    environment = {
        "KIWI_MIDDLEWARE_URL": service.url,
        "KIWI_SERVICE_ID": service.service_id,
        "KIWI_AUTH_SECRET": service.worker_secret,
    }
    with service.new_client() as client:
        yield client, environment


def test_each_locked_call_is_run_by_one_of_two_workers(middleware: MiddlewareProcess) -> None:
    seats = [f"{number}A" for number in range(20)]
    with ExitStack() as stack:
        client, environment = stack.enter_context(new_service(middleware))
        for name in ("one", "two"):
            stack.enter_context(run("locked", "--run-mode=eager", f"--worker-id={name}", **environment))
        wait_for_workers(client, 2)
        ids = [client.start("reserve", {"seat": seat}, lock=True) for seat in seats]
        results = [str(client.wait(request_id, timeout=LIMIT_SECONDS).result) for request_id in ids]
    assert [result.partition(" reserved by ")[0] for result in results] == seats
    assert {result.partition(" reserved by ")[2] for result in results} <= {"one", "two"}


def test_the_lazy_example_sleeps_until_it_is_woken(middleware: MiddlewareProcess) -> None:
    with (
        new_service(middleware) as (client, environment),
        run("lazy_behind_a_firewall", "--wakeup-probe-service-port=0", **environment),
    ):
        wait_for_workers(client, 1)
        assert client.workers()[0].run_mode == "Lazy"
        # It looks for work by itself only every ten minutes.
        result = client.call("nightly_report", {"day": "2027-01-31"}, timeout=LIMIT_SECONDS)
    assert result == "report of 2027-01-31"


def wait_for_workers(client: CallingClient, count: int) -> None:
    until = time.monotonic() + LIMIT_SECONDS
    while len(client.workers()) < count:
        assert time.monotonic() < until
        time.sleep(0.02)


def test_the_orbit_example_answers() -> None:
    with running_runtime(EXAMPLES / "greet.toml") as runtime, Client(server=runtime.url) as client:
        with run("orbit_greeter", ORBIT_SERVER=runtime.url):
            execution = client.wait(client.start("Greet", {"name": "Ada"}), timeout=LIMIT_SECONDS)
        assert execution.output == {"message": "Hello, Ada"}


def test_every_example_is_tried() -> None:
    tried = {module for module, *_ in CALLS}
    tried |= {"orbit_greeter", "orbit_in_one_go", "locked", "lazy_behind_a_firewall"}
    assert tried == {path.stem for path in EXAMPLES.glob("*.py")}


@pytest.mark.parametrize("binding", ["http", "grpc"])
def test_orbit_in_one_go(binding: str) -> None:
    if binding == "grpc":
        pytest.importorskip("grpc")
    command = [sys.executable, "orbit_in_one_go.py", binding]
    done = subprocess.run(
        command,
        cwd=EXAMPLES,
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
    )
    assert done.stdout.splitlines() == [
        "COMPLETED {'message': 'Hello, Ada'}",
        "COMPLETED {'message': 'Hello, Grace'}",
        "FAILED INVALID_NAME: step `compose` failed: name is blank",
    ], done.stderr
