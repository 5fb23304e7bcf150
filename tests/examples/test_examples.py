"""Every example runs, as a person would run it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

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
def run(module: str, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "kiwi_worker", "run", module], cwd=EXAMPLES, env={**os.environ, **environment}
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
    service = middleware.with_new_service()
    environment = {
        "KIWI_MIDDLEWARE_URL": service.url,
        "KIWI_SERVICE_ID": service.service_id,
        "KIWI_AUTH_SECRET": service.worker_secret,
        "KIWI_RUN_MODE": "eager",
    }
    with run(module, **environment):
        client = service.new_client()
        try:
            assert client.call(method, params, timeout=LIMIT_SECONDS) == result
        finally:
            client.close()


def test_the_orbit_example_answers() -> None:
    with running_runtime(EXAMPLES / "greet.toml") as runtime, Client(server=runtime.url) as client:
        with run("orbit_greeter", ORBIT_SERVER=runtime.url):
            execution = client.wait(client.start("Greet", {"name": "Ada"}), timeout=LIMIT_SECONDS)
        assert execution.output == {"message": "Hello, Ada"}


def test_every_example_is_tried() -> None:
    tried = {module for module, *_ in CALLS} | {"orbit_greeter", "orbit_in_one_go"}
    assert tried == {path.stem for path in EXAMPLES.glob("*.py")}


@pytest.mark.parametrize("binding", ["http", "grpc"])
def test_orbit_in_one_go(binding: str) -> None:
    if binding == "grpc":
        pytest.importorskip("grpc")
    command = [sys.executable, "orbit_in_one_go.py", binding]
    path = os.pathsep.join([str(EXAMPLES.parent), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        command,
        cwd=EXAMPLES,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
    )
    assert done.stdout.splitlines() == [
        "COMPLETED {'message': 'Hello, Ada'}",
        "COMPLETED {'message': 'Hello, Grace'}",
        "FAILED INVALID_NAME: step `compose` failed: name is blank",
    ], done.stderr
