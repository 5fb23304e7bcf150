"""Reading the TOML files of the dev runtime: every key is known, or the file is refused by name."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

from kiwi_worker.errors import SettingsError
from kiwi_worker.settings.variables import nearest_name


def read_toml(path: Path, key: str) -> dict[str, Any]:
    """The content of a TOML file.

    Raises:
        SettingsError: with `key`, if it cannot be read or is no TOML.
    """
    toml = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    try:
        content: dict[str, Any] = toml.loads(path.read_text("utf-8"))
    except OSError as error:
        raise SettingsError(key, f"cannot read {path}: {error.strerror}") from None
    except ValueError as error:
        raise SettingsError(key, f"{path} is not TOML: {error}") from None
    return content


class Table:
    """One table of such a file; each key is taken once and what is left over is an error.

    Args:
        values: the table.
        key: its place in the file, for errors.
    """

    def __init__(self, values: object, key: str) -> None:
        if not isinstance(values, dict):
            raise SettingsError(key, "must be a table")
        self._values: dict[str, Any] = dict(values)
        self._known: list[str] = []
        self.key = key

    def take(self, name: str, kind: type, default: Any = ...) -> Any:
        """The value of `name`; `...` as the default means that it must be there."""
        self._known.append(name)
        value = self._values.pop(name, default)
        if value is ...:
            raise SettingsError(f"{self.key}.{name}", "is missing")
        if value is not default and (
            not isinstance(value, kind) or isinstance(value, bool) != (kind is bool)
        ):
            raise SettingsError(f"{self.key}.{name}", f"must be {_words(kind)}")
        return value

    def text(self, name: str, default: Any = ...) -> Any:
        """A string that is not blank."""
        value = self.take(name, str, default)
        if isinstance(value, str) and not value.strip():
            raise SettingsError(f"{self.key}.{name}", "must not be blank")
        return value

    def texts(self, name: str) -> tuple[str, ...]:
        """A list of strings; none when it is not there."""
        values = self.take(name, list, [])
        if not all(isinstance(value, str) for value in values):
            raise SettingsError(f"{self.key}.{name}", "must be a list of strings")
        return tuple(values)

    def done(self) -> None:
        """Raise for the first key that nobody took."""
        for name in self._values:
            near = nearest_name(name, self._known)
            hint = f"; did you mean `{near}`?" if near else f"; known: {', '.join(self._known)}"
            raise SettingsError(f"{self.key}.{name}", f"unknown key{hint}")


def _words(kind: type) -> str:
    return {str: "a string", int: "a whole number", list: "a list", dict: "a table", bool: "true or false"}[
        kind
    ]
