"""Misspelt names are refused or warned about; what only looks misspelt is not."""

from __future__ import annotations

import logging
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest

from kiwi_worker.errors import SettingsError
from kiwi_worker.settings import KiwiSettings, OrbitSettings, Settings, setting
from kiwi_worker.settings.kinds import Whole


@dataclass(frozen=True, repr=False, kw_only=True)
class OvenSettings(Settings):
    environment_prefix: ClassVar[str] = "KIWI_OVEN_"
    warned_prefixes: ClassVar[tuple[str, ...]] = ("KIWI_OVEN_",)
    config_variable: ClassVar[str] = "KIWI_OVEN_CONFIG"

    degrees: int = setting(Whole(0, 300), "the heat of the oven, in degrees", default=180)


def warnings_of(caplog: pytest.LogCaptureFixture, cls: type[Settings], environ: dict[str, str]) -> list[str]:
    with caplog.at_level(logging.WARNING, logger="kiwi_worker.settings"):
        cls.load(environ=environ)
    return [record.getMessage() for record in caplog.records]


class TestRefused:
    def test_keyword(self) -> None:
        with pytest.raises(SettingsError, match=r"^concurency: is no setting; did you mean concurrency\?$"):
            KiwiSettings.load({"concurency": 3}, environ={})

    def test_keyword_with_nothing_near(self) -> None:
        with pytest.raises(SettingsError, match=r"^xyz: is no setting; nothing has a name like it$"):
            KiwiSettings.load({"xyz": None}, environ={})

    def test_keyword_of_the_other_kind_of_worker(self) -> None:
        with pytest.raises(
            SettingsError, match=r"^server: is a setting of OrbitSettings, not of KiwiSettings"
        ):
            KiwiSettings.load({"server": "http://x:1"}, environ={})

    def test_option(self) -> None:
        with pytest.raises(SettingsError, match=r"^--run-mod: is no setting; did you mean run_mode\?$"):
            KiwiSettings.load(environ={}, options={"run_mod": "lazy"})

    def test_file_key(self, tmp_path: Path) -> None:
        file = tmp_path / "s.toml"
        file.write_text('auth_secrt = "hunter2"\n')
        with pytest.raises(
            SettingsError, match=r"^auth_secrt \(in .*s\.toml\): .* mean auth_secret\?$"
        ) as caught:
            KiwiSettings.load(environ={}, config=file)
        assert "hunter2" not in str(caught.value)


class TestWarned:
    def test_variable_with_the_nearest_name_and_without_its_value(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        found = warnings_of(caplog, KiwiSettings, {"KIWI_AUTH_SECRT": "hunter2"})
        assert found == ["environment variable KIWI_AUTH_SECRT is no setting; did you mean KIWI_AUTH_SECRET?"]
        record = caplog.records[0]
        assert record.__dict__["action"] == "unknown_variable"
        assert record.__dict__["variable"] == "KIWI_AUTH_SECRT"
        assert record.__dict__["nearest"] == "KIWI_AUTH_SECRET"
        assert "hunter2" not in repr(record.__dict__)

    def test_orbit_variable(self, caplog: pytest.LogCaptureFixture) -> None:
        found = warnings_of(caplog, OrbitSettings, {"ORBIT_SERVR": "x", "KIWI_PROCESES": "2"})
        assert [line.rpartition(" ")[2] for line in found] == ["KIWI_PROCESSES?", "ORBIT_SERVER?"]

    def test_variable_with_nothing_near(self, caplog: pytest.LogCaptureFixture) -> None:
        found = warnings_of(caplog, KiwiSettings, {"KIWI_QQQQQQQQ": "x"})
        assert found == ["environment variable KIWI_QQQQQQQQ is no setting"]

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("KIWI_PORT", "8420"),
            ("KIWI_PORT", "http://10.0.0.1:8420"),
            ("KIWI_SERVICE_HOST", "middleware"),
            ("KIWI_SERVICE_PORT", "eighty"),
            ("KIWI_PORT_8420_TCP_ADDR", "middleware"),
            ("KIWI_PORT_8420", "tcp://10.0.0.1:8420"),
        ],
    )
    def test_what_only_resembles_a_service_link(
        self, caplog: pytest.LogCaptureFixture, name: str, value: str
    ) -> None:
        assert len(warnings_of(caplog, KiwiSettings, {name: value})) == 1


class TestNotWarned:
    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("KIWI_PORT", "tcp://10.0.0.1:8420"),
            ("KIWI_PORT", "udp://[fd00::1]:8420"),
            ("KIWI_SERVICE_HOST", "10.0.0.1"),
            ("KIWI_SERVICE_HOST", "fd00::1"),
            ("KIWI_SERVICE_PORT", "8420"),
            ("KIWI_SERVICE_PORT_HTTP_API", "8420"),
            ("KIWI_PORT_8420_TCP", "tcp://10.0.0.1:8420"),
            ("KIWI_PORT_8420_TCP_ADDR", "10.0.0.1"),
            ("KIWI_PORT_8420_TCP_PORT", "8420"),
            ("KIWI_PORT_8420_TCP_PROTO", "tcp"),
            ("KIWI_WORKERS_SERVICE_HOST", "10.0.0.1"),
            ("ORBIT_PORT", "tcp://10.0.0.1:7233"),
            ("ORBIT_SERVICE_HOST", "10.0.0.1"),
            ("ORBIT_GRPC_ADDR", "127.0.0.1:7234"),
            ("KIWI_CONFIG", ""),
            ("KIWI_LOG_LEVEL", "debug"),
            ("ORBIT_TOKEN", "t"),
            ("KIWI_MIDDLEWARE_URL", "http://m:1"),
            ("KIWIS_EATEN", "3"),
            ("ORBITAL", "3"),
        ],
    )
    def test_what_is_known(self, caplog: pytest.LogCaptureFixture, name: str, value: str) -> None:
        assert warnings_of(caplog, OrbitSettings, {name: value}) == []

    def test_a_variable_of_the_bundled_middleware(self, caplog: pytest.LogCaptureFixture) -> None:
        environ = {"KIWI_MIDDLEWARE_HOST": "0.0.0.0", "KIWI_MIDDLEWARE_PORT": "8421"}
        assert warnings_of(caplog, KiwiSettings, environ) == []

    def test_an_orbit_variable_by_a_kiwi_worker(self, caplog: pytest.LogCaptureFixture) -> None:
        assert warnings_of(caplog, KiwiSettings, {"ORBIT_ELEMENTS": "6"}) == []


class TestSettingsOfAnotherProgram:
    def test_are_read_by_their_prefix_and_known_to_the_workers(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        settings = OvenSettings.load(environ={"KIWI_OVEN_DEGREES": "200"})
        assert settings.degrees == 200
        assert warnings_of(caplog, KiwiSettings, {"KIWI_OVEN_DEGREES": "200"}) == []
        assert len(warnings_of(caplog, KiwiSettings, {"KIWI_OVEN_DEGRES": "200"})) == 1

    def test_share_no_file_with_the_workers(self, tmp_path: Path) -> None:
        file = tmp_path / "oven.toml"
        file.write_text("degrees = 200\n")
        assert OvenSettings.load(environ={"KIWI_OVEN_CONFIG": str(file)}).degrees == 200
        with pytest.raises(SettingsError, match="is a setting of OvenSettings, not of KiwiSettings"):
            KiwiSettings.load(environ={}, config=file)


def test_a_service_link_is_not_taken_for_the_setting_of_that_name() -> None:
    link = "tcp://10.0.0.1:80"
    settings = KiwiSettings.load(environ={"KIWI_HEALTH_PORT": link, "KIWI_METRICS_PORT": link})
    assert (settings.health_port, settings.metrics_port) == (None, None)


def test_settings_load_nothing_they_may_not_need() -> None:
    heavy = "click tomllib tomli difflib requests urllib3 ssl socket ipaddress urllib.parse starlette"
    script = (
        "import sys; from kiwi_worker.settings import KiwiSettings; KiwiSettings(worker_id='w');"
        f"print([name for name in {heavy.split()!r} if name in sys.modules])"
    )
    done = subprocess.run(
        [
            sys.executable,
            "-I",
            "-c",
            f"sys_path = {sys.path!r}; import sys; sys.path[:] = sys_path; {script}",
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.strip() == "[]"
