"""What a command line gives to the workers of the module it imports.

A module makes its workers while it is imported, so the options have to be there before: they win over
keywords, and a worker that is right only with its options (a journal in code, its worker_id as an option) is
not refused while it is made.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar

from .base import Settings
from .declare import settings_of
from .kinds import SecretText, Url
from .secret import MaskedUrl, Secret

__all__ = ["CommandLine", "command_line", "is_importing", "load", "masked"]

S = TypeVar("S", bound=Settings)


class CommandLine:
    """The options that were given, by key, and the settings file.

    Attributes:
        options: for settings of any class; each class takes those it has.
        config: the path of `--config`, None without it.
    """

    def __init__(self, options: Mapping[str, object], config: str | None) -> None:
        self.options = dict(options)
        self.config = config
        self._made: list[Settings] = []

    def load(self, cls: type[S], keywords: Mapping[str, object]) -> S:
        """Settings from all sources, this command line first."""
        keys = {setting.key for setting in settings_of(cls)}
        own = {key: value for key, value in self.options.items() if key in keys}
        settings = cls.load(keywords, config=self.config, options=own)
        self._made.append(settings)
        return settings

    def made(self, settings: Settings) -> bool:
        """Whether these settings were loaded with this command line."""
        return any(settings is one for one in self._made)


_lock = threading.Lock()
_current: list[CommandLine] = []


@contextmanager
def command_line(options: Mapping[str, object], config: str | None) -> Iterator[CommandLine]:
    """Gives options and file to every worker that is made meanwhile, in any thread."""
    given = CommandLine(options, config)
    with _lock:
        _current.append(given)
    try:
        yield given
    finally:
        with _lock:
            _current.remove(given)


def load(cls: type[S], keywords: Mapping[str, object]) -> S:
    """Settings for a worker that is made now, from all sources."""
    given = _current[-1] if _current else None
    return cls.load(keywords) if given is None else given.load(cls, keywords)


def is_importing() -> bool:
    """Whether a command imports a module just now, to run its workers afterwards."""
    return bool(_current)


def masked(cls: type[Settings], keywords: Mapping[str, object]) -> dict[str, object]:
    """The same keywords, with texts that must not be seen in forms that hide them."""
    kinds = {setting.key: setting.kind for setting in settings_of(cls)}
    return {key: _masked(kinds.get(key), value) for key, value in keywords.items()}


def _masked(kind: object, value: object) -> object:
    if type(value) is str and isinstance(kind, SecretText):
        return Secret(value)
    return MaskedUrl(value) if type(value) is str and isinstance(kind, Url) else value
