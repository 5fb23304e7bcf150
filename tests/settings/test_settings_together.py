"""Values that contradict each other, and the settings of one process among several."""

from __future__ import annotations

from typing import Any

import pytest

from kiwi_worker.errors import SettingsError
from kiwi_worker.settings import (
    KiwiSettings,
    OrbitSettings,
    for_process,
    reference_rows,
    reference_table,
    settings_of,
)


def load(**keywords: Any) -> KiwiSettings:
    return KiwiSettings.load(keywords, environ={})


class TestRefusedTogether:
    def test_a_journal_needs_a_worker_id_that_was_given(self) -> None:
        with pytest.raises(SettingsError, match=r"^journal: needs a fixed worker_id") as caught:
            load(journal="/tmp/j")
        assert caught.value.exit_status == 78
        with pytest.raises(SettingsError, match=r"^KIWI_JOURNAL: needs a fixed worker_id"):
            OrbitSettings.load(environ={"KIWI_JOURNAL": "/tmp/j"})
        with pytest.raises(SettingsError, match=r"^journal: needs a fixed worker_id"):
            KiwiSettings(journal="/tmp/j")
        assert load(journal="/tmp/j", worker_id="w").journal == "/tmp/j"
        assert KiwiSettings.load({"journal": "/tmp/j"}, environ={"KIWI_WORKER_ID": "w"}).worker_id == "w"

    def test_secret_and_secret_file(self) -> None:
        with pytest.raises(
            SettingsError, match=r"^auth_secret: is given and so is auth_secret_file; keep one"
        ):
            load(auth_secret="s", auth_secret_file="/f")
        with pytest.raises(SettingsError, match=r"^KIWI_AUTH_SECRET: is given and so is --auth-secret-file"):
            KiwiSettings.load(environ={"KIWI_AUTH_SECRET": "s"}, options={"auth_secret_file": "-"})
        with pytest.raises(SettingsError, match=r"^ORBIT_TOKEN: is given and so is ORBIT_TOKEN_FILE"):
            OrbitSettings.load(environ={"ORBIT_TOKEN": "s", "ORBIT_TOKEN_FILE": "/f"})

    def test_a_key_without_its_certificate(self) -> None:
        with pytest.raises(SettingsError, match=r"^client_key: is given without client_cert"):
            load(client_key="/k")
        assert load(client_cert="/c").client_key is None

    def test_two_ways_of_verifying(self) -> None:
        with pytest.raises(SettingsError, match=r"^jwt_key: is given and so is jwks_url"):
            load(jwt_key="k", jwks_url="https://k/")

    def test_grpc_without_field_numbers(self) -> None:
        with pytest.raises(SettingsError, match=r"^proto: is needed for gRPC"):
            OrbitSettings(server=("grpc://a:1",))

    @pytest.mark.parametrize(
        "ports",
        [
            {"health_port": 55222},
            {"metrics_port": 55222},
            {"health_port": 9000, "metrics_port": 9000},
            {"health_port": 9000, "metrics_port": 9001, "processes": 2},
            {"health_port": 55220, "processes": 3},
        ],
    )
    def test_ports_that_collide(self, ports: dict[str, int]) -> None:
        with pytest.raises(SettingsError, match="collides with"):
            load(**ports)

    @pytest.mark.parametrize(
        "ports",
        [
            {"health_port": 55222, "run_mode": "eager"},
            {"health_port": 0, "metrics_port": 0, "wakeup_probe_service_port": 0, "processes": 3},
            {"health_port": 9000, "metrics_port": 9002, "processes": 2},
        ],
    )
    def test_ports_that_do_not(self, ports: dict[str, Any]) -> None:
        load(**ports)

    @pytest.mark.parametrize(
        "key", ["wakeup_probe_service_port", "advertised_port", "health_port", "metrics_port"]
    )
    def test_ports_that_run_out(self, key: str) -> None:
        with pytest.raises(SettingsError, match=f"^{key}: 65535 leaves no room for 2 processes"):
            load(**{key: 65535}, processes=2)
        load(**{key: 65534}, processes=2)


class TestForProcess:
    def test_each_has_a_name_ports_and_files_of_its_own(self) -> None:
        settings = load(
            worker_id="w",
            processes=3,
            journal="/j",
            health_file="/h",
            health_port=9000,
            metrics_port=9100,
            advertised_port=40000,
        )
        third = for_process(settings, 3)
        assert (third.worker_id, third.processes) == ("w-3", 1)
        assert (third.journal, third.health_file) == ("/j.3", "/h.3")
        assert (third.health_port, third.metrics_port) == (9002, 9102)
        assert (third.wakeup_probe_service_port, third.advertised_port) == (55224, 40002)
        assert for_process(settings, 1).wakeup_probe_service_port == 55222
        assert for_process(settings, 1).journal == "/j.1"

    def test_any_free_port_stays_any_free_port_and_none_stays_none(self) -> None:
        second = for_process(load(processes=2, wakeup_probe_service_port=0, health_port=0), 2)
        assert (second.wakeup_probe_service_port, second.health_port, second.metrics_port) == (0, 0, None)
        assert (second.journal, second.health_file, second.advertised_port) == (None, None, None)

    def test_sources_and_secrets_are_kept(self) -> None:
        settings = KiwiSettings.load({"auth_secret": "s"}, environ={"KIWI_PROCESSES": "2"})
        second = for_process(settings, 2)
        assert second.auth_secret == settings.auth_secret
        assert second.source_of("processes") == "environment"
        assert second.worker_id == settings.worker_id + "-2"

    def test_orbit(self) -> None:
        second = for_process(OrbitSettings.load({"processes": 2, "worker_id": "w"}, environ={}), 2)
        assert isinstance(second, OrbitSettings)
        assert second.worker_id == "w-2"

    def test_one_process_is_left_as_it_is(self) -> None:
        settings = load(worker_id="w")
        assert for_process(settings, 1) is settings

    @pytest.mark.parametrize("number", [0, 3, -1])
    def test_no_such_process(self, number: int) -> None:
        with pytest.raises(ValueError, match=f"process {number} of 2"):
            for_process(load(processes=2), number)


class TestReference:
    def test_has_a_row_for_each_setting(self) -> None:
        rows = {row.key: row for row in reference_rows(KiwiSettings)}
        assert list(rows) == [setting.key for setting in settings_of(KiwiSettings)]
        assert rows["concurrency"].option == "--concurrency"
        assert rows["concurrency"].environment == "KIWI_CONCURRENCY"
        assert rows["concurrency"].default == "8"
        assert rows["worker_id"].default == "<hostname>-<pid>"
        assert rows["auth_secret"].option == ""

    def test_names_every_variable_of_a_setting(self) -> None:
        rows = {row.key: row for row in reference_rows(OrbitSettings)}
        assert rows["token"].environment == "ORBIT_WORKER_TOKEN, then ORBIT_TOKEN"
        assert rows["server"].default == "http://127.0.0.1:7233"

    def test_says_the_unit_of_every_time_and_size(self) -> None:
        for cls in (KiwiSettings, OrbitSettings):
            for row in reference_rows(cls):
                if row.takes == "SECONDS":
                    assert "in seconds" in row.meaning
                if row.key.endswith("_bytes"):
                    assert "in bytes" in row.meaning

    def test_is_a_markdown_table(self) -> None:
        lines = reference_table(KiwiSettings).splitlines()
        assert len(lines) == 2 + len(settings_of(KiwiSettings))
        assert {line.replace("\\|", "").count("|") for line in lines} == {6}
