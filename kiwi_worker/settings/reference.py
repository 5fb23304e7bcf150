"""The reference of the settings, for the documentation, from the declarations."""

from __future__ import annotations

from typing import Any, NamedTuple

from .declare import Setting, settings_of

__all__ = ["ReferenceRow", "reference_rows", "reference_table"]


class ReferenceRow(NamedTuple):
    """One setting as the reference shows it; `option` is empty for a secret."""

    key: str
    option: str
    environment: str
    takes: str
    default: str
    meaning: str


def reference_rows(cls: type[Any]) -> list[ReferenceRow]:
    """One row for each setting of the class, in the order of declaration."""
    return [_row(setting) for setting in settings_of(cls)]


def _row(setting: Setting) -> ReferenceRow:
    help_text = setting.help[0].upper() + setting.help[1:] + "."
    return ReferenceRow(
        key=setting.key,
        option="" if setting.is_secret else setting.option,
        environment=", then ".join(setting.environment),
        takes=setting.kind.metavar,
        default=setting.default_in_words,
        meaning=f"{help_text} {setting.note}".strip(),
    )


def reference_table(cls: type[Any]) -> str:
    """The rows as a Markdown table."""
    lines = ["| setting | environment | takes | default | meaning |", "|---|---|---|---|---|"]
    lines += [_line(row) for row in reference_rows(cls)]
    return "\n".join(lines) + "\n"


def _line(row: ReferenceRow) -> str:
    cells = (f"`{row.key}`", f"`{row.environment}`", f"`{row.takes}`", f"`{row.default}`", row.meaning)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
