"""Every setting through every source, and which source wins."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from settings_samples import EVERY, EVERY_ID, NEEDED, SAMPLES, as_variable, shown

from kiwi_worker.errors import SettingsError
from kiwi_worker.settings import KiwiSettings, OrbitSettings, Setting, Settings

every_setting = pytest.mark.parametrize(("cls", "setting"), EVERY, ids=EVERY_ID)


def toml(values: dict[str, Any]) -> str:
    return "".join(f"{key} = {toml_value(value)}\n" for key, value in values.items())


def toml_value(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{json.dumps(k)} = {toml_value(v)}" for k, v in value.items()) + " }"
    if isinstance(value, tuple):
        return json.dumps(list(value), ensure_ascii=False)
    return json.dumps(value, ensure_ascii=False)


@every_setting
def test_each_setting_is_taken_as_a_keyword(cls: type[Settings], setting: Setting) -> None:
    keywords = {**NEEDED.get(setting.key, {}), setting.key: SAMPLES[setting.key]}
    settings = cls.load(keywords, environ={})
    assert shown(getattr(settings, setting.key)) == SAMPLES[setting.key]
    assert settings.source_of(setting.key) == "keyword"
    assert settings == cls(**keywords)


@every_setting
def test_each_setting_is_read_from_its_variable(cls: type[Settings], setting: Setting) -> None:
    for name in setting.environment:
        settings = cls.load(NEEDED.get(setting.key), environ={name: as_variable(setting)})
        assert shown(getattr(settings, setting.key)) == SAMPLES[setting.key]
        assert settings.source_of(setting.key) == "environment"
        assert settings.written_as(setting.key) == name


@every_setting
def test_each_setting_is_read_from_the_file(cls: type[Settings], setting: Setting, tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    file.write_text(toml({setting.key: SAMPLES[setting.key]}), encoding="utf-8")
    settings = cls.load(NEEDED.get(setting.key), environ={}, config=file)
    assert shown(getattr(settings, setting.key)) == SAMPLES[setting.key]
    assert settings.source_of(setting.key) == "file"


@every_setting
def test_each_setting_is_taken_as_an_option(cls: type[Settings], setting: Setting) -> None:
    settings = cls.load(NEEDED.get(setting.key), environ={}, options={setting.key: as_variable(setting)})
    assert shown(getattr(settings, setting.key)) == SAMPLES[setting.key]
    assert settings.source_of(setting.key) == "option"
    assert settings.written_as(setting.key) == setting.option


@every_setting
def test_each_setting_has_the_type_it_was_declared_with_by_default(
    cls: type[Settings], setting: Setting
) -> None:
    value = getattr(cls.load(environ={}), setting.key)
    if value is not None:
        assert setting.kind.convert(value) == value


def test_every_setting_has_a_sample_that_is_not_its_default() -> None:
    assert {setting.key for _, setting in EVERY} == set(SAMPLES)
    for cls, setting in EVERY:
        assert getattr(cls.load(environ={}), setting.key) != SAMPLES[setting.key]


def test_option_wins_over_keyword_over_environment_over_file_over_default(tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    file.write_text("concurrency = 4\n")
    option = {"concurrency": 1}
    keyword = {"concurrency": 2}
    environ = {"KIWI_CONCURRENCY": "3"}
    expected = [(1, "option"), (2, "keyword"), (3, "environment"), (4, "file"), (8, "default")]
    found = [
        KiwiSettings.load(keyword, environ=environ, config=file, options=option),
        KiwiSettings.load(keyword, environ=environ, config=file),
        KiwiSettings.load(environ=environ, config=file),
        KiwiSettings.load(environ={}, config=file),
        KiwiSettings.load(environ={}),
    ]
    assert [(s.concurrency, s.source_of("concurrency")) for s in found] == expected


def test_none_is_not_given() -> None:
    settings = KiwiSettings.load(
        {"concurrency": None}, environ={"KIWI_CONCURRENCY": "3"}, options={"concurrency": None}
    )
    assert settings.concurrency == 3


def test_a_value_that_is_overruled_is_not_looked_at() -> None:
    assert KiwiSettings.load({"wait": 5}, environ={"KIWI_WAIT": "junk"}).wait == 5


def test_the_worker_token_wins_over_the_admin_token() -> None:
    both = {"ORBIT_WORKER_TOKEN": "worker", "ORBIT_TOKEN": "admin"}
    assert shown(OrbitSettings.load(environ=both).token) == "worker"
    assert shown(OrbitSettings.load(environ={**both, "ORBIT_WORKER_TOKEN": ""}).token) == "admin"


def test_an_orbit_worker_reads_the_shared_settings_from_kiwi_variables() -> None:
    settings = OrbitSettings.load(
        environ={"KIWI_CONCURRENCY": "3", "KIWI_WORKER_ID": "w", "ORBIT_RUNTIME": "py"}
    )
    assert (settings.concurrency, settings.worker_id, settings.runtime) == (3, "w", "py")


def test_the_process_environment_is_read_when_none_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KIWI_SERVICE_ID", "from-the-process")
    assert KiwiSettings.load().service_id == "from-the-process"


class TestFile:
    def test_is_named_by_the_variable_and_the_argument_wins(self, tmp_path: Path) -> None:
        one, two = tmp_path / "one.toml", tmp_path / "two.toml"
        one.write_text("wait = 1\n")
        two.write_text("wait = 2\n")
        assert KiwiSettings.load(environ={"KIWI_CONFIG": str(one)}).wait == 1
        assert KiwiSettings.load(environ={"KIWI_CONFIG": str(one)}, config=str(two)).wait == 2
        assert KiwiSettings.load(environ={"KIWI_CONFIG": ""}).wait == 30

    def test_may_be_shared_by_both_kinds_of_worker(self, tmp_path: Path) -> None:
        file = tmp_path / "both.toml"
        file.write_text('middleware_url = "http://m:1"\nserver = "http://o:2"\nlog_level = "debug"\n')
        assert KiwiSettings.load(environ={}, config=file).middleware_url == "http://m:1"
        assert OrbitSettings.load(environ={}, config=file).server == ("http://o:2",)

    def test_that_is_missing_is_refused_with_its_path(self, tmp_path: Path) -> None:
        with pytest.raises(SettingsError, match=r"KIWI_CONFIG: .*none\.toml cannot be read: No such file"):
            KiwiSettings.load(environ={"KIWI_CONFIG": str(tmp_path / "none.toml")})

    @pytest.mark.parametrize("content", [b"auth_secret = hunter2\n", b'"hunter2', b"\xff\xfehunter2"])
    def test_that_is_no_toml_is_refused_without_showing_its_content(
        self, tmp_path: Path, content: bytes
    ) -> None:
        file = tmp_path / "bad.toml"
        file.write_bytes(content)
        with pytest.raises(SettingsError, match=r"bad\.toml is no") as caught:
            KiwiSettings.load(environ={}, config=file)
        assert "hunter2" not in str(caught.value)

    def test_names_the_key_and_the_file_of_a_bad_value(self, tmp_path: Path) -> None:
        file = tmp_path / "bad.toml"
        file.write_text("wait = true\n")
        with pytest.raises(SettingsError, match=r"wait \(in .*bad\.toml\): True is no number of seconds"):
            KiwiSettings.load(environ={}, config=file)

    def test_refuses_a_table_since_settings_are_top_level_keys(self, tmp_path: Path) -> None:
        file = tmp_path / "bad.toml"
        file.write_text("[kiwi]\nwait = 1\n")
        with pytest.raises(SettingsError, match=r"kiwi \(in .*\): is no setting"):
            KiwiSettings.load(environ={}, config=file)


class TestDefaults:
    def test_are_those_of_the_specification(self) -> None:
        settings = KiwiSettings.load(environ={})
        assert settings.middleware_url == "http://127.0.0.1:8420"
        assert settings.run_mode == "lazy"
        assert (settings.wakeup_probe_service_port, settings.wakeup_probe_bind) == (55222, "0.0.0.0")
        assert (settings.wait, settings.heartbeat_delay, settings.grace_period) == (30, 30, 30)
        assert (settings.concurrency, settings.processes) == (8, 1)
        assert (settings.when_forgotten, settings.on_ambiguous_lock) == ("exit", "skip")
        assert settings.expose_errors is True
        assert OrbitSettings.load(environ={}).server == ("http://127.0.0.1:7233",)
        assert OrbitSettings.load(environ={}).runtime == "python"

    def test_the_worker_id_is_host_name_and_process(self) -> None:
        import os
        import socket

        assert KiwiSettings.load(environ={}).worker_id == f"{socket.gethostname()}-{os.getpid()}"
        assert KiwiSettings.load(environ={}).source_of("worker_id") == "default"

    def test_the_safety_interval_is_the_heartbeat_delay(self) -> None:
        assert KiwiSettings(heartbeat_delay=7).drain_interval == 7
        assert KiwiSettings(heartbeat_delay=7, safety_interval=2).drain_interval == 2

    def test_whole_seconds_stay_whole_so_that_they_can_be_sent_as_they_are(self) -> None:
        assert repr(KiwiSettings.load(environ={"KIWI_WAIT": "12"}).wait) == "12"
        assert repr(KiwiSettings.load(environ={}).wait) == "30"


def test_settings_are_frozen() -> None:
    with pytest.raises(AttributeError):
        KiwiSettings.load(environ={}).wait = 5  # type: ignore[misc]


def test_tags_are_copied() -> None:
    tags = {"os": "linux"}
    settings = KiwiSettings(tags=tags)
    tags["os"] = "changed"
    assert settings.tags == {"os": "linux"}


def test_source_of_an_unknown_key_is_refused() -> None:
    with pytest.raises(SettingsError, match="wiat: is no setting of KiwiSettings"):
        KiwiSettings.load(environ={}).source_of("wiat")


def test_settings_made_directly_are_checked_and_know_their_source() -> None:
    settings = KiwiSettings(concurrency="3")  # type: ignore[arg-type]
    assert (settings.concurrency, settings.source_of("concurrency")) == (3, "keyword")
    with pytest.raises(SettingsError, match="concurrency: 0 is below 1"):
        KiwiSettings(concurrency=0)
