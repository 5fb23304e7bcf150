"""Field reports on Windows: shown by the path that has no signal handlers and no wake-up descriptor."""

from __future__ import annotations

from pathlib import Path

from programs import running

from kiwi_worker.testing import KiwiServer

BODY = """
@worker.method
def hello() -> str:
    return "hello"

@worker.method
async def think() -> str:
    return "thought"

def refuse(*_: object) -> None:
    raise NotImplementedError

import asyncio
asyncio.AbstractEventLoop.add_signal_handler = refuse
asyncio.SelectorEventLoop.add_signal_handler = refuse
"""
FEW_SIGNALS = """
import signal
for name in ("SIGUSR1", "SIGHUP", "SIGCHLD", "pthread_sigmask"):
    delattr(signal, name)
import program
program.worker.run()
"""


def test_report_83_a_loop_without_signal_handlers_starts_and_drains(
    server: KiwiServer, tmp_path: Path
) -> None:
    with running(BODY, server, tmp_path) as program:
        for method in ("hello", "think"):
            server.assert_answered_once(server.enqueue(method), "success")
        program.signal()
        assert program.end() == 0, program.errors


def test_report_83_off_the_main_thread_a_worker_is_stopped_by_its_failures(
    server: KiwiServer, tmp_path: Path
) -> None:
    foot = "\nthread = threading.Thread(target=worker.run)\nthread.start()\nthread.join()\n"
    with running(BODY, server, tmp_path, foot=foot, heartbeat_delay=0.05) as program:
        for method in ("hello", "think"):
            server.assert_answered_once(server.enqueue(method), "success")
        server.forget_workers()
        assert program.end() == 0, program.errors
    assert server.shutdowns == ["w"]


def test_report_83_a_system_with_few_signals_starts_and_drains(server: KiwiServer, tmp_path: Path) -> None:
    (tmp_path / "start.py").write_text(FEW_SIGNALS)
    with running(BODY, server, tmp_path, foot="", arguments=("start.py",)) as program:
        server.assert_answered_once(server.enqueue("hello"), "success")
        program.signal()
        assert program.end() == 0, program.errors
