"""The fixtures of the pytest plugin, in test runs of their own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import kiwi_worker

pytest_plugins = ["pytester"]

ROOT = str(Path(kiwi_worker.__file__).parents[1])
OTHERS = ("randomly", "cacheprovider", "xdist", "schemathesis")
OPTIONS = ("-W", "error", *(word for name in OTHERS for word in ("-p", f"no:{name}")))


def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> pytest.RunResult:
    monkeypatch.setenv("PYTHONPATH", ROOT)
    # What the environment says of a deployment is none of a test's business.
    monkeypatch.setenv("KIWI_MIDDLEWARE_URL", "http://192.0.2.1:1")
    monkeypatch.setenv("KIWI_AUTH_SECRET_FILE", "/nowhere")
    return pytester.runpytest_subprocess(*OPTIONS, *arguments)


def test_the_plugin_is_there_and_loads_nothing(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytester.makepyfile(
        """
        import sys

        def test_nothing_is_loaded():
            ours = sorted(name for name in sys.modules if name.startswith("kiwi_worker"))
            assert ours == [
                "kiwi_worker", "kiwi_worker._version", "kiwi_worker.testing", "kiwi_worker.testing.plugin"
            ]
            unwanted = ("requests", "urllib3", "msgspec", "click", "starlette")
            assert not [name for name in unwanted if name in sys.modules]
        """
    )
    run(pytester, monkeypatch).assert_outcomes(passed=1)
    listed = run(pytester, monkeypatch, "--fixtures")
    listed.stdout.fnmatch_lines_random(
        ["kiwi_middleware -- *", "kiwi_server -- *", "orbit_server -- *", "orbit_runtime -- *"]
    )
    listed.stdout.fnmatch_lines_random(["running_worker -- *", "handler_environment -- *"])


def test_the_fixtures_work_together(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    pytester.makepyfile(
        """
        import threading
        import pytest
        from kiwi_worker import Registry, Worker
        from kiwi_worker.orbit import OrbitWorker, TaskRegistry

        worker = Worker(
            auth_secret_file="/nowhere/secret", service_id="shop", concurrency=3, journal="/nowhere/journal",
            worker_id="shop-1", processes=4,
        )
        worker.method("hello")(lambda name: f"hello {name}")
        registry = Registry()
        registry.method("hello")(lambda name: f"hi {name}")
        tasks = TaskRegistry()
        tasks.task("greet", version="1")(lambda given: {"said": "hello"})

        @pytest.mark.parametrize("number", [1, 2])
        def test_a_worker_is_run_and_stopped(kiwi_server, running_worker, number):
            assert running_worker(worker, kiwi_server) is worker
            assert (worker.settings.concurrency, worker.settings.processes) == (3, 1)
            request_id = kiwi_server.enqueue("hello", ["Ada"])
            kiwi_server.assert_answered_once(request_id, "success", result="hello Ada")
            with pytest.raises(AssertionError, match="the result is 'hello Ada', not 1"):
                kiwi_server.assert_answered_once(request_id, result=1)
            kiwi_server.assert_protocol_kept()

        def test_it_is_as_before():
            assert worker.settings.worker_id == "shop-1"
            assert not [thread.name for thread in threading.enumerate() if "worker" in thread.name]

        def test_a_registry_and_a_second_worker(kiwi_server, running_worker):
            running_worker(registry, kiwi_server)
            running_worker(registry, kiwi_server, run_mode="eager", wait=1)
            assert len({one["worker_id"] for one in kiwi_server.registrations}) == 2

        def test_tasks(orbit_server, running_worker):
            running_worker(tasks, orbit_server, poll_wait=1)
            orbit_server.assert_completed_once(orbit_server.enqueue_task("greet", "1"), {"said": "hello"})

        @pytest.mark.parametrize("number", [1, 2])
        def test_the_middleware(kiwi_middleware, running_worker, number):
            running_worker(worker, kiwi_middleware)
            assert kiwi_middleware.client.call("hello", ["Ada"], timeout=10) == "hello Ada"

        def test_the_wrong_server_is_told(orbit_server, running_worker):
            with pytest.raises(TypeError, match="Worker and OrbitServer speak different protocols"):
                running_worker(worker, orbit_server)
        """
    )
    run(pytester, monkeypatch).assert_outcomes(passed=8)


def test_a_suite_may_have_fixtures_of_these_names(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytester.makepyfile(
        """
        import pytest

        @pytest.fixture
        def kiwi_server():
            return "mine"

        def test_it(kiwi_server):
            assert kiwi_server == "mine"
        """
    )
    run(pytester, monkeypatch).assert_outcomes(passed=1)


def test_the_examples_of_the_documentation_run(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = Path(__file__).parents[2] / "docs" / "testing.md"
    blocks = [block.partition("\n```")[0] for block in page.read_text().split("```python\n")[1:]]
    for number, block in enumerate(blocks):
        name = "shop" if block.startswith("# shop.py") else f"test_{number}"
        pytester.makepyfile(**{name: block})
    tests = sum(block.count("\ndef test_") for block in blocks)
    run(pytester, monkeypatch).assert_outcomes(passed=tests)


def test_the_tools_are_typed(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    (tmp_path / "uses.py").write_text(
        "from kiwi_worker import Registry, Worker\n"
        "from kiwi_worker.orbit import OrbitWorker\n"
        "from kiwi_worker.testing import HandlerAnswer, HandlerEnvironment, KiwiServer\n"
        "from kiwi_worker.testing.running import WorkerRunner\n"
        "def use(run: WorkerRunner, server: KiwiServer, registry: Registry, tasks: OrbitWorker) -> None:\n"
        "    worker: Worker = run(registry, server)\n"
        "    other: OrbitWorker = run(tasks, server)\n"
        "    answer: HandlerAnswer = HandlerEnvironment(worker).call('x', {}).assert_success(1)\n"
        "    answer.assert_failed(text=5)\n"
    )
    command = [sys.executable, "-m", "mypy", "--strict", "--no-incremental", "uses.py"]
    ended = subprocess.run(
        command,
        cwd=tmp_path,
        # mypy finds what is installed by itself, and refuses to be told.
        env={"PATH": "/usr/bin:/bin"} | ({} if "site-packages" in ROOT else {"MYPYPATH": ROOT}),
        capture_output=True,
        text=True,
        check=False,
    )
    errors = [line for line in ended.stdout.splitlines() if line.startswith("uses.py")]
    assert len(errors) == 1, ended.stdout + ended.stderr
    assert 'Argument "text" to "assert_failed"' in errors[0]
