"""Field reports on settings and exit statuses."""

from __future__ import annotations

import signal
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from programs import eventually, running

from kiwi_worker.errors import SettingsError
from kiwi_worker.settings import KiwiSettings
from kiwi_worker.testing import KiwiServer, MisbehavingServer

FLAGS = {"expose_errors": "KIWI_EXPOSE_ERRORS", "browser_runtime": "KIWI_BROWSER_RUNTIME"}


@pytest.mark.parametrize(("key", "variable"), FLAGS.items())
@pytest.mark.parametrize(
    ("text", "value"),
    [
        *((text, True) for text in ("true", "1", "yes", "on")),
        *((text, False) for text in ("false", "0", "no", "off", "False")),
    ],
)
def test_report_68_false_is_false(key: str, variable: str, text: str, value: bool) -> None:
    assert getattr(KiwiSettings.load({}, environ={variable: text}), key) is value


@pytest.mark.parametrize("variable", FLAGS.values())
@pytest.mark.parametrize("text", ["", "junk", "2"])
def test_report_68_junk_is_an_error_that_names_the_variable(variable: str, text: str) -> None:
    with pytest.raises(SettingsError, match=f"^{variable}"):
        KiwiSettings.load({}, environ={variable: text})


@pytest.mark.parametrize("text", ["10s", "-1", "1.5", "ten"])
def test_report_68_numbers_are_read_whole_or_refused(text: str) -> None:
    with pytest.raises(SettingsError, match=r"^KIWI_CONCURRENCY"):
        KiwiSettings.load({}, environ={"KIWI_CONCURRENCY": text})
    assert KiwiSettings.load({}, environ={"KIWI_CONCURRENCY": " 10 "}).concurrency == 10


HANG = """
@worker.method
def hang(started: str) -> None:
    open(started, "w").close()
    time.sleep(3600)
"""


def test_report_70_a_clean_end_is_0(server: KiwiServer, tmp_path: Path) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        with running("", server, tmp_path, worker_id=f"w{int(number)}") as program:
            eventually(lambda number=number: any(_beats(server, f"w{int(number)}")))
            program.signal(number)
            assert program.end() == 0


def _beats(server: KiwiServer, worker_id: str) -> list[str]:
    return [one for one, _ in server.heartbeats if one == worker_id]


def test_report_70_work_that_was_left_is_1(server: KiwiServer, tmp_path: Path) -> None:
    started = tmp_path / "started"
    with running(HANG, server, tmp_path, grace_period=0.2) as program:
        server.enqueue("hang", {"started": str(started)})
        eventually(started.exists)
        program.signal()
        assert program.end() == 1


@pytest.mark.parametrize(
    "settings",
    [{"concurrency": 0}, {"run_mode": "busy"}, {"heartbeat_delay": "10s"}, {"journal": "/nowhere/at/all"}],
    ids=str,
)
def test_report_70_bad_settings_are_78(
    server: KiwiServer, tmp_path: Path, settings: Mapping[str, Any]
) -> None:
    (tmp_path / "module.py").write_text(
        "from kiwi_worker import Worker\nworker = Worker()\nworker.method('nothing')(lambda: None)\n"
    )
    with running(
        "", server, tmp_path, arguments=("-m", "kiwi_worker", "run", "module"), **settings
    ) as program:
        assert program.end() == 78
        assert f"KIWI_{next(iter(settings)).upper()}" in program.errors or "journal" in program.errors
    assert server.registrations == []


def test_report_70_a_misspelt_option_is_2(server: KiwiServer, tmp_path: Path) -> None:
    arguments = ("-m", "kiwi_worker", "run", "module", "--concurency", "3")
    with running("", server, tmp_path, arguments=arguments) as program:
        assert program.end() == 2
        assert "--concurrency" in program.errors


def test_report_70_refused_credentials_are_77(tmp_path: Path) -> None:
    with MisbehavingServer.kiwi() as server, running("", server, tmp_path, auth_secret="wrong") as program:
        assert program.end() == 77
        assert "wrong" not in program.errors


def test_report_70_a_middleware_out_of_reach_is_69(tmp_path: Path) -> None:
    with socket.socket() as unheard:
        unheard.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unheard.getsockname()[1]}"
        with running("", url, tmp_path, start_limit=0.2) as program:
            assert program.end() == 69


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_report_70_a_second_signal_is_128_and_its_number(
    server: KiwiServer, tmp_path: Path, number: int
) -> None:
    started = tmp_path / "started"
    with running(HANG, server, tmp_path, grace_period=60) as program:
        server.enqueue("hang", {"started": str(started)})
        eventually(started.exists)
        program.signal(number)
        eventually(lambda: server.shutdowns)
        program.signal(number)
        assert program.end() == 128 + number
