"""Where values come from: options, keywords, environment and file, each as a layer of found values."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple

from ..errors import SettingsError
from .declare import Setting, settings_of
from .variables import is_service_address, nearest_name, registered_classes

__all__ = [
    "Found",
    "Layer",
    "Origin",
    "Source",
    "environment_layer",
    "file_layer",
    "keyword_layer",
    "option_layer",
]

Source = Literal["option", "keyword", "environment", "file", "default"]


class Origin(NamedTuple):
    """Where a value came from, and under which name the person wrote it."""

    source: Source
    written_as: str


class Found(NamedTuple):
    """A value as it was given, not yet converted."""

    value: object
    origin: Origin


Layer = dict[str, Found]


def option_layer(cls: type[Any], options: Mapping[str, object]) -> Layer:
    """The options that were given on a command line; None is one that was not."""
    given = {key: value for key, value in options.items() if value is not None}
    _refuse_unknown(cls, {key: "--" + key.replace("_", "-") for key in given})
    by_key = {setting.key: setting.option for setting in settings_of(cls)}
    return {key: Found(value, Origin("option", by_key[key])) for key, value in given.items()}


def keyword_layer(cls: type[Any], keywords: Mapping[str, object]) -> Layer:
    """The keyword arguments; None is one that was not given."""
    _refuse_unknown(cls, {key: key for key in keywords})
    given = {key: value for key, value in keywords.items() if value is not None}
    return {key: Found(value, Origin("keyword", key)) for key, value in given.items()}


def environment_layer(cls: type[Any], environ: Mapping[str, str]) -> Layer:
    """The variables that are set."""
    found = ((setting.key, _in_environment(setting, environ)) for setting in settings_of(cls))
    return {key: value for key, value in found if value}


def _in_environment(setting: Setting, environ: Mapping[str, str]) -> Found | None:
    for name in setting.environment:
        value = environ.get(name)
        if value is not None and not _counts_as_unset(setting, name, value):
            return Found(value, Origin("environment", name))
    return None


def _counts_as_unset(setting: Setting, name: str, value: str) -> bool:
    return (setting.kind.empty_is_unset and not value.strip()) or is_service_address(name, value)


def file_layer(cls: type[Any], path: str | os.PathLike[str], written_as: str) -> Layer:
    """The top-level keys of a TOML file.

    A key that only another class of settings reading the same file has is passed over, so that a Kiwi worker
    and an ORBIT worker of one process can share a file.

    Args:
        written_as: who named the file (`config` or a variable), for the error.
    """
    table = _parsed_file(os.path.expanduser(path), written_as)
    others = [other for other in registered_classes() if other.config_variable == cls.config_variable]
    shared = {setting.key for other in others for setting in settings_of(other)}
    own = {setting.key for setting in settings_of(cls)}
    _refuse_unknown(cls, {key: f"{key} (in {path})" for key in table if key not in shared}, shared)
    return {
        key: Found(value, Origin("file", f"{key} (in {path})")) for key, value in table.items() if key in own
    }


def _parsed_file(path: str, written_as: str) -> dict[str, Any]:
    try:
        with open(path, "rb") as file:
            content = file.read()
    except OSError as error:
        raise SettingsError(written_as, f"{path} cannot be read: {error.strerror}") from None
    try:
        return _parse_toml(content.decode())
    except UnicodeDecodeError:
        problem = "is not UTF-8 text"
    except ValueError as error:
        problem = f"is no TOML file: {_position_only(error)}"
    raise SettingsError(written_as, f"{path} {problem}")


def _parse_toml(text: str) -> dict[str, Any]:
    toml = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    table: dict[str, Any] = toml.loads(text)
    return table


def _position_only(error: ValueError) -> str:
    # The parser's own words may quote the file, and the file may hold a secret.
    _, mark, position = str(error).rpartition("(at ")
    return f"see {position.rstrip(')')}" if mark else "it cannot be parsed"


def _refuse_unknown(cls: type[Any], written: Mapping[str, str], shared: Iterable[str] = ()) -> None:
    known = {setting.key for setting in settings_of(cls)}.union(shared)
    for key, written_as in written.items():
        if key not in known:
            raise SettingsError(written_as, _unknown(cls, key, known))


def _unknown(cls: type[Any], key: str, known: Iterable[str]) -> str:
    for other in registered_classes():
        if key in {setting.key for setting in settings_of(other)}:
            return f"is a setting of {other.__name__}, not of {cls.__name__}"
    nearest = nearest_name(key, known)
    return "is no setting; " + (f"did you mean {nearest}?" if nearest else "nothing has a name like it")
