"""Whether the files that settings name can be used now; asked at a start and by `run --check`."""

from __future__ import annotations

from ..errors import SettingsError
from .base import Settings
from .declare import settings_of
from .kinds import Path

__all__ = ["check_files"]


def check_files(settings: Settings) -> None:
    """Looks whether every file that is read is there and every folder that is written to can be.

    Not done when settings are made, so that a module with a worker in it can be imported anywhere. The
    journal is left to the journal.

    Raises:
        SettingsError: a file cannot be used; names the setting and the path.
    """
    for setting in settings_of(type(settings)):
        path = getattr(settings, setting.key)
        if path is None or not isinstance(setting.kind, Path):
            continue
        problem = setting.kind.problem(path)
        if problem:
            raise SettingsError(settings.written_as(setting.key), f"{problem}; it is {setting.help}")
