"""Contenders that take turns, and the ratios between them."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
Figures = dict[str, float]
Contender = Callable[[], Figures]


def process(script: str, *arguments: object, environment: Mapping[str, str] | None = None) -> Contender:
    """A contender that runs a script of this folder, whose last line of output is its figures as JSON."""

    def run() -> Figures:
        done = subprocess.run(
            [sys.executable, str(HERE / script), *map(str, arguments)],
            env={**os.environ, **(environment or {})},
            capture_output=True,
            text=True,
            timeout=300,
        )
        if done.returncode:
            raise SystemExit(f"{script} {arguments} failed:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
        figures: Figures = json.loads(done.stdout.strip().splitlines()[-1])
        return figures

    return run


def take_turns(contenders: Mapping[str, Contender], rounds: int) -> dict[str, list[Figures]]:
    """Run all contenders, round by round."""
    results: dict[str, list[Figures]] = {name: [] for name in contenders}
    for number in range(rounds):
        for name, contender in contenders.items():
            results[name].append(contender())
            print(f"  round {number + 1}/{rounds} {name}: {_shown(results[name][-1])}", flush=True)
    return results


def _shown(figures: Figures) -> str:
    return ", ".join(f"{key} {value:.4g}" for key, value in figures.items())


def spread(values: list[float]) -> str:
    """Median, with the smallest and the largest."""
    return f"{statistics.median(values):.4g} ({min(values):.4g} … {max(values):.4g})"


def ratios(results: Mapping[str, list[Figures]], figure: str, base: str) -> dict[str, list[float]]:
    """Each contender's figure as a multiple of the base's, round by round."""
    return {
        name: [one[figure] / other[figure] for one, other in zip(rows, results[base], strict=True)]
        for name, rows in results.items()
        if figure in rows[0]
    }


class Table:
    """A Markdown table that fills row by row."""

    def __init__(self, title: str, *columns: str) -> None:
        self.title = title
        self._rows = [columns]

    def add(self, *cells: object) -> None:
        """One more row."""
        self._rows.append(tuple(map(str, cells)))

    def __str__(self) -> str:
        head, *rows = self._rows
        lines = ["| " + " | ".join(row) + " |" for row in [head, ("---",) * len(head), *rows]]
        return f"### {self.title}\n\n" + "\n".join(lines) + "\n"


def compared(
    title: str, results: Mapping[str, list[Figures]], figures: Mapping[str, str], base: str
) -> Table:
    """A table of all figures with their ratios to a base; `figures` maps keys to column heads."""
    heads = [head for text in figures.values() for head in (text, f"times {base}")]
    table = Table(title, "", *heads)
    multiples = {figure: ratios(results, figure, base) for figure in figures}
    for name, rows in results.items():
        cells: list[Any] = []
        for figure in figures:
            present = figure in rows[0]
            cells.append(spread([row[figure] for row in rows]) if present else "")
            cells.append(spread(multiples[figure][name]) if present else "")
        table.add(name, *cells)
    return table
