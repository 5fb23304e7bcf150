"""Command line options made from the declarations of settings: one for each setting that is no secret."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import click

from ..errors import SettingsError
from ..settings import Setting, Settings, settings_of
from ..settings.kinds import Flag, ListOf

__all__ = ["Seconds", "check_options", "config_option", "options_of", "settings_options"]

C = TypeVar("C", bound=Callable[..., Any])


class Seconds(click.FloatRange):
    """A finite number of seconds within a range: NaN passes every comparison that click makes."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        seconds = super().convert(value, param, ctx)
        if not math.isfinite(seconds):
            self.fail(f"{value!r} is no number of seconds, like 10 or 0.5", param, ctx)
        return seconds


def settings_options(*classes: type[Settings]) -> Callable[[C], C]:
    """Gives a command one option per setting of these classes that is no secret.

    The command gets one argument, `options`: a dict of the settings that were given, by key, for
    `load(options=...)`. A setting that several classes share is one option. True-or-false settings are
    `--x / --no-x`; a list may be repeated, given comma-separated, or as JSON.
    """
    every = (setting for cls in classes for setting in settings_of(cls))
    settings = {setting.key: setting for setting in every if not setting.is_secret}

    def decorate(command: C) -> C:
        @functools.wraps(command)
        def with_options(*args: Any, **arguments: Any) -> Any:
            options = {key: arguments.pop(key) for key in settings}
            given = {key: value for key, value in options.items() if value is not None}
            return command(*args, options=given, **arguments)

        wrapped: Any = with_options
        for setting in reversed(settings.values()):
            wrapped = _option(setting)(wrapped)
        return wrapped  # type: ignore[no-any-return]

    return decorate


def config_option(command: C) -> C:
    """Gives a command `--config FILE`, as the argument `config`, for the `config` of `load`."""
    return click.option(
        "--config",
        metavar="FILE",
        default=None,
        help="A TOML file with settings as top-level keys. [KIWI_CONFIG]",
    )(command)


def options_of(cls: type[Settings], options: Mapping[str, object]) -> dict[str, object]:
    """Those of the options that are settings of this class."""
    known = {setting.key for setting in settings_of(cls)}
    return {key: value for key, value in options.items() if key in known}


def check_options(cls: type[Settings], options: Mapping[str, object]) -> None:
    """Refuses options of another kind of worker than the one that is to be run.

    Raises:
        click.UsageError: an option that is no setting of the class (status 2).
    """
    known = {setting.key for setting in settings_of(cls)}
    for key in options:
        if key not in known:
            option = "--" + key.replace("_", "-")
            raise click.UsageError(f"{option} is no setting of this worker ({cls.__name__})")


def _option(setting: Setting) -> Callable[[Any], Any]:
    if isinstance(setting.kind, Flag):
        flags = f"{setting.option}/--no-{setting.option[2:]}"
        return click.option(flags, setting.key, default=None, help=_help(setting))
    if isinstance(setting.kind, ListOf):
        return click.option(
            setting.option,
            setting.key,
            type=_reader(setting),
            metavar=setting.kind.metavar,
            multiple=True,
            callback=_joined,
            help=_help(setting),
        )
    return click.option(
        setting.option,
        setting.key,
        type=_reader(setting),
        metavar=setting.kind.metavar,
        default=None,
        help=_help(setting),
    )


def _reader(setting: Setting) -> Callable[[Any], Any]:
    """Reads an option the way the variable of the same setting is read; a misfit is a usage error (2)."""

    def read(value: Any) -> Any:
        try:
            return setting.convert(value, setting.option)
        except SettingsError as error:
            raise click.BadParameter(error.problem) from None

    return read


def _joined(ctx: click.Context, param: click.Parameter, value: Iterable[tuple[Any, ...]]) -> Any:
    lists = list(value)
    return tuple(item for items in lists for item in items) if lists else None


def _help(setting: Setting) -> str:
    words = setting.help[0].upper() + setting.help[1:] + "."
    note = f" {setting.note}" if setting.note else ""
    return f"{words}{note}  [{setting.environment[0]}; default: {setting.default_in_words}]"
