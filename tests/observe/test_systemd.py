"""What systemd is told over its socket, by a service that it started."""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from worker_tools import running, worker_environment

from kiwi_worker.observe.systemd import Systemd
from kiwi_worker.testing import KiwiServer

pytestmark = pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="there is no systemd here")

PROGRAM = """
from kiwi_worker import Worker
worker = Worker()
worker.method("hello")(lambda: "hello")
worker.run()
"""


class Manager:
    """The service manager's end."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind("\0" + address[1:] if address.startswith("@") else address)
        self._socket.settimeout(20)

    def hear(self) -> str:
        return self._socket.recv(4096).decode()

    def hears_nothing(self) -> bool:
        return not select.select([self._socket], [], [], 0)[0]

    def close(self) -> None:
        self._socket.close()


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Manager]:
    address = str(tmp_path / "notify") if request.param == "path" else f"@kiwi-worker-test-{os.getpid()}"
    manager = Manager(address)
    yield manager
    manager.close()


def test_systemd_is_told_ready_signs_of_life_and_stopping(server: KiwiServer, manager: Manager) -> None:
    told = {"NOTIFY_SOCKET": manager.address, "WATCHDOG_USEC": "200000"}
    with running(PROGRAM, **worker_environment(server), **told) as process:
        said = [manager.hear()]
        while "READY=1" not in said or said.count("WATCHDOG=1") < 4:
            said.append(manager.hear())
        process.signal()
        while said[-1] != "STOPPING=1":
            said.append(manager.hear())
        status, _, errors = process.end()
    assert (status, errors) == (0, "")
    assert said.count("READY=1") == 1
    assert said.count("WATCHDOG=1") == len(said) - 2


def test_without_a_watchdog_there_are_no_signs_of_life(server: KiwiServer, manager: Manager) -> None:
    with running(PROGRAM, **worker_environment(server), NOTIFY_SOCKET=manager.address) as process:
        assert manager.hear() == "READY=1"
        process.signal()
        assert manager.hear() == "STOPPING=1"
        assert process.end()[0] == 0
    assert manager.hears_nothing()


def test_several_processes_are_ready_together(server: KiwiServer, manager: Manager) -> None:
    told = {"NOTIFY_SOCKET": manager.address}
    environment = worker_environment(server, processes=2, run_mode="eager", wait=1)
    with running(PROGRAM, **environment, **told) as process:
        assert manager.hear() == "READY=1"
        assert len(server.registrations) == 2
        process.signal()
        assert manager.hear() == "STOPPING=1"
        assert process.end()[0] == 0
    assert manager.hears_nothing()


def test_a_stuck_loop_gets_no_sign_of_life(manager: Manager, caplog: pytest.LogCaptureFixture) -> None:
    live = [True]
    environ = {"NOTIFY_SOCKET": manager.address, "WATCHDOG_USEC": "1", "WATCHDOG_PID": str(os.getpid())}
    systemd = Systemd(lambda: live[0], environ)
    systemd.tick()
    assert manager.hear() == "WATCHDOG=1"
    live[0] = False
    for _ in range(3):
        systemd.tick()
    assert manager.hears_nothing()
    assert caplog.text.count("gets no sign of life") == 1


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"WATCHDOG_USEC": "1000000"},
        {"NOTIFY_SOCKET": "/x", "WATCHDOG_USEC": "1000000", "WATCHDOG_PID": "1"},
        {"NOTIFY_SOCKET": "/x", "WATCHDOG_USEC": "0"},
        {"NOTIFY_SOCKET": "/x", "WATCHDOG_USEC": "soon"},
    ],
)
def test_signs_of_life_that_nobody_asked_for_are_not_given(environ: dict[str, str]) -> None:
    assert Systemd(lambda: True, environ).interval_seconds is None


def test_a_manager_that_is_gone_stops_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    Systemd(lambda: True, {"NOTIFY_SOCKET": str(tmp_path / "gone")}).ready()
    assert "systemd was not told READY=1" in caplog.text
