"""What a handler process is like: where it comes from, what it shares with the worker, how it ends."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from programs import FOOT, LIMIT_SECONDS, children_of, eventually, is_alive, running

from kiwi_worker.testing import MisbehavingServer

BODY = """
import functools

events = os.environ.get("EVENTS", os.devnull)

def note(text: str) -> None:
    with open(events, "a") as file:
        file.write(f"{text} {os.getpid()}\\n")

@worker.on_start
def begin() -> None:
    note("start")

@worker.on_stop
def end() -> None:
    note("stop")

@worker.resource
async def number():
    yield 41
    note("resource ended")

@worker.around
def within(context):
    context.logger.warning("before %s", context.method, extra={"shoe": 45})
    yield

def decorated(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        return function(*args, **kwargs) + 1
    return wrapper

@worker.method
def worker_pid() -> int:
    return os.getpid()

@worker.method(executor="process")
@decorated
def answer(*, ctx: Context) -> int:
    return ctx.resources.number

@worker.method(executor="process")
def about(*, ctx: Context) -> dict:
    return {
        "pid": os.getpid(), "request_id": ctx.request_id, "method": ctx.method, "run": ctx.run,
        "settings": dict(ctx.settings), "limit": ctx.remaining_seconds(), "argv": sys.argv,
        "is_main": threading.current_thread() is threading.main_thread(),
    }

@worker.method(executor="process", time_limit=30)
def wait_to_be_told(started: str, *, ctx: Context) -> str:
    assert 0 < ctx.remaining_seconds() <= 30
    open(started, "w").close()
    while not ctx.is_stopping:
        time.sleep(0.01)
    return "stopping"

@worker.method(executor="process", time_limit=0.5)
def start_a_program(started: str) -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"])
    with open(started, "w") as file:
        file.write(str(child.pid))
    child.wait()

@worker.method(executor="process")
def use_multiprocessing() -> int:
    import multiprocessing
    with multiprocessing.get_context("fork").Pool(2) as pool:
        return sum(pool.map(abs, [-1, -2, 3]))

@worker.method(executor="process")
def fork_and_return() -> int:
    child = os.fork()
    if child:
        os.waitpid(child, 0)
    return child

@worker.method(executor="process")
def give_an_awaitable() -> object:
    import asyncio
    return asyncio.sleep(0, "awaited")

@worker.method(executor="process")
def large(size: int) -> str:
    return "x" * size

@worker.method(executor="process")
def size_of(text: str) -> int:
    return len(text)

@worker.method(executor="process")
def close_every_descriptor() -> None:
    os.closerange(0, 256)

@worker.method(executor="process")
def pid() -> int:
    return os.getpid()
"""


@pytest.fixture
def server() -> Iterator[Any]:
    with MisbehavingServer.kiwi(settings={"greeting": "hello"}) as running_server:
        yield running_server


def call(server: Any, method: str, **params: object) -> dict[str, Any]:
    request = server.enqueue(method, params or None)
    server.wait_for_response(request, LIMIT_SECONDS)
    return dict(server.assert_answered_once(request))


def test_a_handler_process_has_hooks_resources_middleware_and_a_context_of_its_own(
    server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVENTS", str(tmp_path / "events"))
    with running(BODY, server, tmp_path, process_pool_size=1) as program:
        assert call(server, "answer")["result"] == 42
        about = call(server, "about")["result"]
        child = about["pid"]
        assert child != program.pid
        assert about["method"] == "about"
        assert (about["run"], about["settings"], about["limit"]) == (1, {"greeting": "hello"}, None)
        assert (about["argv"], about["is_main"]) == (["program.py"], True)
        program.signal()
        assert program.end() == 0
        events = (tmp_path / "events").read_text().splitlines()
    words = ("start", "stop", "resource ended")
    assert sorted(events) == sorted(f"{word} {pid}" for word in words for pid in (child, program.pid))


def test_log_records_of_a_process_are_written_by_the_workers_own_logging(server: Any, tmp_path: Path) -> None:
    foot = (
        "\nif __name__ == '__main__':\n"
        "    logging.basicConfig(format='LOG %(name)s %(method)s %(shoe)s %(message)s', level='WARNING')\n"
        "    logging.getLogger().handlers[0].addFilter(lambda record: hasattr(record, 'shoe'))\n"
        "    worker.run()\n"
    )
    with running(BODY, server, tmp_path, foot=foot) as program:
        call(server, "pid")
        program.signal()
        assert program.end() == 0
        assert program.errors == "LOG kiwi_worker.handler pid 45 before pid\n"


@pytest.mark.parametrize(
    ("arguments", "foot"),
    [
        (("program.py",), "\nworker.run()\n"),
        (("-m", "program"), FOOT),
        (("-m", "kiwi_worker", "run", "program"), ""),
        (("-c", "import program; program.worker.run()"), ""),
    ],
    ids=["a script without a guard", "a module", "kiwi-worker run", "a command"],
)
def test_report_65_a_process_finds_its_handlers_however_the_worker_was_started(
    server: Any, tmp_path: Path, arguments: tuple[str, ...], foot: str
) -> None:
    with running(BODY, server, tmp_path, arguments=arguments, foot=foot) as program:
        assert call(server, "answer")["result"] == 42
        assert call(server, "about")["result"]["pid"] != program.pid
        program.signal()
        assert program.end() == 0


def test_a_worker_that_no_process_could_find_is_refused_at_the_start(server: Any, tmp_path: Path) -> None:
    foot = "\nhidden = [[worker]]\ndel worker\nhidden[0][0].run()\n"
    with running(BODY, server, tmp_path, foot=foot) as program:
        assert program.end() == 78
        assert "bind it to a name at the top level" in program.errors
    assert not server.registrations


def test_what_a_fresh_process_cannot_load_is_the_answer_and_the_worker_lives_on(
    server: Any, tmp_path: Path
) -> None:
    body = BODY + "\nif __name__ != '__main__':\n    raise RuntimeError('only once')\n"
    with running(body, server, tmp_path) as program:
        answer = call(server, "pid")
        assert answer["status"] == "failed"
        assert answer["error_text"] == "the handler's process did not start: RuntimeError: only once"
        assert call(server, "worker_pid")["result"] == program.pid
        program.signal()
        assert program.end() == 0


def test_a_handler_sees_that_the_worker_stops(server: Any, tmp_path: Path) -> None:
    started = tmp_path / "started"
    with running(BODY, server, tmp_path, grace_period=20) as program:
        request = server.enqueue("wait_to_be_told", {"started": str(started)})
        eventually(started.exists)
        program.signal()
        assert server.wait_for_response(request, LIMIT_SECONDS)["result"] == "stopping"
        assert program.end() == 0


def test_signals_to_every_process_leave_running_calls_alone(server: Any, tmp_path: Path) -> None:
    """As a service manager sends them."""
    started = tmp_path / "started"
    with running(BODY, server, tmp_path, grace_period=20) as program:
        request = server.enqueue("wait_to_be_told", {"started": str(started)})
        eventually(started.exists)
        for child in children_of(program.pid):
            os.kill(child, signal.SIGTERM)
            os.kill(child, signal.SIGINT)
        program.signal()
        assert server.wait_for_response(request, LIMIT_SECONDS)["result"] == "stopping"
        assert program.end() == 0


def test_what_a_handler_started_ends_with_it(server: Any, tmp_path: Path) -> None:
    started = tmp_path / "started"
    with running(BODY, server, tmp_path):
        answer = call(server, "start_a_program", started=str(started))
        assert "time limit of 0.5 s" in answer["error_text"]
        eventually(lambda: not is_alive(int(started.read_text())))


def test_handlers_may_start_processes_fork_and_return_awaitables(server: Any, tmp_path: Path) -> None:
    with running(BODY, server, tmp_path, process_pool_size=1):
        first = call(server, "pid")["result"]
        assert call(server, "use_multiprocessing")["result"] == 6
        copy = call(server, "fork_and_return")["result"]
        assert copy > 0
        assert not is_alive(copy)
        assert call(server, "give_an_awaitable")["result"] == "awaited"
        assert call(server, "pid")["result"] == first


def test_large_params_and_results_pass_and_the_limit_holds(server: Any, tmp_path: Path) -> None:
    with running(BODY, server, tmp_path, process_pool_size=1, max_result_bytes=3_000_000):
        assert call(server, "size_of", text="y" * 2_000_000)["result"] == 2_000_000
        assert len(call(server, "large", size=2_000_000)["result"]) == 2_000_000
        answer = call(server, "large", size=3_000_000)
        assert answer["status"] == "error"
        assert "larger than the limit of 3000000 bytes" in answer["error_text"]


def test_a_process_that_closes_its_connection_is_replaced(server: Any, tmp_path: Path) -> None:
    with running(BODY, server, tmp_path, process_pool_size=1):
        assert call(server, "close_every_descriptor")["status"] == "failed"
        assert call(server, "answer")["result"] == 42


def test_an_idle_process_that_was_killed_costs_no_call(server: Any, tmp_path: Path) -> None:
    with running(BODY, server, tmp_path, process_pool_size=1):
        first = call(server, "pid")["result"]
        os.kill(first, signal.SIGKILL)
        second = call(server, "pid")
        assert second["status"] == "success"
        assert second["result"] != first


def test_calls_that_wait_for_a_process_hold_no_slot(server: Any, tmp_path: Path) -> None:
    started = tmp_path / "started"
    with running(BODY, server, tmp_path, concurrency=2, process_pool_size=1, grace_period=20) as program:
        first = server.enqueue("wait_to_be_told", {"started": str(started)})
        eventually(started.exists)
        # No more than there are slots wait for one, or the worker would not take further messages.
        waiting = [server.enqueue("pid")]
        assert call(server, "worker_pid")["result"] == program.pid
        program.signal()
        assert program.end() == 0
        for request in [first, *waiting]:
            server.assert_answered_once(request, "success")


def test_no_process_is_left_when_the_worker_is_killed(server: Any, tmp_path: Path) -> None:
    started = tmp_path / "started"
    with running(BODY, server, tmp_path, process_pool_size=2) as program:
        server.enqueue("wait_to_be_told", {"started": str(started)})
        eventually(started.exists)
        call(server, "pid")
        children = children_of(program.pid)
        program.signal(signal.SIGKILL)
        program.end()
        eventually(lambda: not any(map(is_alive, children)))
