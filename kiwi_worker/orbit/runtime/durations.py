"""Durations as people write them: `30s`, `500ms`, `2m`, `1h`."""

from __future__ import annotations

import re

from kiwi_worker.errors import SettingsError

_FORM = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h)")
_MILLISECONDS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000}


def duration_ms(text: object, key: str) -> int:
    """The milliseconds of `text`.

    Raises:
        SettingsError: with `key`, if it is no duration.
    """
    match = _FORM.fullmatch(text.strip()) if isinstance(text, str) else None
    if match is None:
        raise SettingsError(key, 'must be a duration such as "30s", "500ms", "2m" or "1h"')
    return round(float(match[1]) * _MILLISECONDS[match[2]])
