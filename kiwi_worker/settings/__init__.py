"""Settings: one frozen object per thing that can be set, fed by option, keyword, environment and file.

Each setting is declared once, in its class; everything else (checks, variables, options, reference) is made
from that declaration. The first source that gives a value wins: command line option, keyword in code,
environment variable, settings file, default.

The file is TOML with the settings as top-level keys::

    middleware_url = "https://middleware.example/kiwi"
    concurrency = 16
    tags = { os = "linux" }

A program with settings of its own subclasses Settings, names its `environment_prefix`, `warned_prefixes` and
`config_variable`, and declares each with `setting(kind, help, default=...)`; `kiwi_worker.settings.kinds` has
the kinds.
"""

from __future__ import annotations

from .base import Settings
from .credentials import secret_reader
from .declare import Setting, setting, settings_of
from .files import check_files
from .kiwi import KiwiSettings
from .orbit import OrbitSettings
from .processes import for_process
from .reference import ReferenceRow, reference_rows, reference_table
from .secret import Secret
from .sources import Source
from .worker import CommandSettings, WorkerSettings

__all__ = [
    "CommandSettings",
    "KiwiSettings",
    "OrbitSettings",
    "ReferenceRow",
    "Secret",
    "Setting",
    "Settings",
    "Source",
    "WorkerSettings",
    "check_files",
    "for_process",
    "reference_rows",
    "reference_table",
    "secret_reader",
    "setting",
    "settings_of",
]
