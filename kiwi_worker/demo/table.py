"""The table that the demo shows, as wide as the terminal."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterator, Sequence

import click

from kiwi_worker.demo.play import Line

__all__ = ["show"]

NARROWEST, WIDEST = 60, 110
MARK_COLUMNS, TIME_COLUMNS, GAP = 3, 8, 2


def show(lines: Sequence[Line]) -> Iterator[str]:
    """The lines of the table, coloured; `click.echo` takes the colours out where nobody sees them."""
    columns = min(max(shutil.get_terminal_size((100, 24)).columns, NARROWEST), WIDEST)
    left = min(max(len(line.what) for line in lines), columns // 3)
    right = columns - MARK_COLUMNS - left - 2 * GAP - TIME_COLUMNS
    for line in lines:
        yield from _rows(line, left, right)
    yield ""


def _rows(line: Line, left: int, right: int) -> Iterator[str]:
    mark = click.style("ok ", fg="green") if line.right else click.style("NO ", fg="red", bold=True)
    time = click.style(f"{line.seconds * 1000:5.0f} ms", dim=True)
    what, came = textwrap.wrap(line.what, left), textwrap.wrap(line.came, right) or [""]
    for number in range(max(len(what), len(came))):
        first = what[number] if number < len(what) else ""
        second = came[number] if number < len(came) else ""
        beginning, end = (mark, f"{'':{GAP}}{time}") if not number else (" " * MARK_COLUMNS, "")
        yield f"{beginning}{first:{left}}{'':{GAP}}{second:{right}}{end}".rstrip()
