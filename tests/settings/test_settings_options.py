"""The command line options made from the settings."""

from __future__ import annotations

from typing import Any

import click
import pytest
from click.testing import CliRunner, Result
from settings_samples import CLASSES, EVERY, EVERY_ID, NEEDED, SAMPLES, as_variable

from kiwi_worker.cli.options import check_options, config_option, settings_options
from kiwi_worker.settings import KiwiSettings, OrbitSettings, Setting, Settings, settings_of
from kiwi_worker.settings.kinds import Flag


def run(arguments: list[str], *classes: type[Settings]) -> tuple[Result, dict[str, Any]]:
    got: dict[str, Any] = {}

    @click.command()
    @click.argument("target")
    @config_option
    @settings_options(*(classes or (KiwiSettings,)))
    def command(target: str, config: str | None, options: dict[str, Any]) -> None:
        got.update(target=target, config=config, options=options)

    return CliRunner().invoke(command, ["module:worker", *arguments]), got


def options_of(*arguments: str) -> dict[str, Any]:
    result, got = run(list(arguments), KiwiSettings, OrbitSettings)
    assert result.exit_code == 0, result.output
    options: dict[str, Any] = got["options"]
    return options


@pytest.mark.parametrize(
    ("cls", "setting"),
    [pair for pair in EVERY if not pair[1].is_secret],
    ids=[name for name, pair in zip(EVERY_ID, EVERY, strict=True) if not pair[1].is_secret],
)
def test_each_setting_that_is_no_secret_is_an_option(cls: type[Settings], setting: Setting) -> None:
    if isinstance(setting.kind, Flag):
        arguments = [setting.option if SAMPLES[setting.key] else "--no-" + setting.option[2:]]
    else:
        arguments = [setting.option, as_variable(setting)]
    result, got = run(arguments, cls)
    assert result.exit_code == 0, result.output
    assert got["options"] == {setting.key: SAMPLES[setting.key]}
    settings = cls.load(NEEDED.get(setting.key), environ={}, options=got["options"])
    assert getattr(settings, setting.key) == SAMPLES[setting.key]
    assert settings.source_of(setting.key) == "option"


def test_no_option_gives_no_settings() -> None:
    result, got = run([])
    assert result.exit_code == 0
    assert got == {"target": "module:worker", "config": None, "options": {}}


def test_no_secret_is_an_option() -> None:
    secrets = [setting.option for cls in CLASSES for setting in settings_of(cls) if setting.is_secret]
    assert sorted(secrets) == ["--auth-secret", "--jwt-key", "--token"]
    for option in secrets:
        result, _ = run([f"{option}=hunter2"], KiwiSettings, OrbitSettings)
        assert result.exit_code == 2
        assert f"No such option: {option}" in result.output or f"No such option '{option}'" in result.output
        assert "hunter2" not in result.output


def test_the_secret_comes_from_a_file_or_standard_input() -> None:
    assert options_of("--auth-secret-file", "-") == {"auth_secret_file": "-"}


def test_a_setting_of_both_kinds_of_worker_is_one_option() -> None:
    assert options_of("--concurrency", "3", "--server", "http://a:1") == {
        "concurrency": 3,
        "server": ("http://a:1",),
    }


def test_a_list_may_be_repeated_or_comma_separated() -> None:
    for arguments in (
        ["--supported-executors", "python,node"],
        ["--supported-executors", "python", "--supported-executors", "node"],
        ["--supported-executors", '["python", "node"]'],
    ):
        assert options_of(*arguments) == {"supported_executors": ("python", "node")}


def test_a_flag_is_given_or_taken_back() -> None:
    assert options_of("--no-expose-errors") == {"expose_errors": False}
    assert options_of("--expose-errors") == {"expose_errors": True}


def test_a_misspelt_option_ends_with_2_and_names_the_nearest() -> None:
    result, _ = run(["--concurency", "3"])
    assert result.exit_code == 2
    assert "--concurrency" in result.output


@pytest.mark.parametrize("arguments", [["--concurrency", "0"], ["--wait", "10s"], ["--run-mode", "x"]])
def test_a_value_that_does_not_fit_ends_with_2_and_says_why(arguments: list[str]) -> None:
    result, _ = run(arguments)
    assert result.exit_code == 2
    assert f"Invalid value for '{arguments[0]}'" in result.output
    assert "it is" in " ".join(result.output.split())


def test_an_option_of_the_other_kind_of_worker_is_a_usage_error() -> None:
    check_options(OrbitSettings, {"server": ("http://a:1",), "concurrency": 3})
    with pytest.raises(click.UsageError, match="--server is no setting of this worker") as caught:
        check_options(KiwiSettings, {"server": ("http://a:1",)})
    assert caught.value.exit_code == 2


def test_the_config_file_is_handed_on() -> None:
    assert run(["--config", "worker.toml"])[1]["config"] == "worker.toml"


def test_help_shows_meaning_variable_and_default_of_every_option() -> None:
    result, _ = run(["--help"])
    text = " ".join(result.output.split())
    assert result.exit_code == 0
    for setting in settings_of(KiwiSettings):
        if not setting.is_secret:
            assert setting.option in text
            assert setting.environment[0] in text.replace(" ", "") or setting.environment[0] in text
    assert "[KIWI_CONCURRENCY; default: 8]" in text
