"""The table of the protocol page's sentences names every sentence, and only tests that exist."""

from __future__ import annotations

import ast
import hashlib
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TABLE = ROOT / "docs" / "protocol-coverage.md"

# Of all sentences of the page, in its order: a row that is lost, added or reworded changes it.
SENTENCES = 35
DIGEST = "3a1482b3da409e78ede8ccf4e14b9484a34e2a5a55557963c30f8bf6665a37ab"

_ROW = re.compile(r"\| (?P<sentence>.+?) \| (?P<tests>`[^|]+`) \|")


def _rows() -> list[tuple[str, list[str]]]:
    found = [_ROW.fullmatch(line) for line in TABLE.read_text().splitlines()]
    return [(_plain(row["sentence"]), _test_ids(row["tests"])) for row in found if row is not None]


def _plain(sentence: str) -> str:
    return sentence.strip("`").replace("\\|", "|").replace("\\<", "<")


def _test_ids(cell: str) -> list[str]:
    names, file = [], ""
    for name in re.findall(r"`([^`]+)`", cell):
        file = name.partition("::")[0] or file
        names.append(f"{file}::{name.partition('::')[2]}")
    return names


@cache
def _tests_of(file: str) -> frozenset[str]:
    tree = ast.parse((ROOT / file).read_text())
    return frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef))


ROWS = _rows()


def test_every_sentence_of_the_page_has_a_row() -> None:
    sentences = [sentence for sentence, _ in ROWS]
    assert len(sentences) == SENTENCES
    assert hashlib.sha256("\n".join(sentences).encode()).hexdigest() == DIGEST


@pytest.mark.parametrize(("sentence", "tests"), ROWS, ids=[sentence[:50] for sentence, _ in ROWS])
def test_every_row_names_tests_that_exist(sentence: str, tests: list[str]) -> None:
    assert tests, sentence
    for test in tests:
        file, _, name = test.partition("::")
        assert name.startswith("test_")
        assert name in _tests_of(file), test


def test_every_test_of_the_page_is_in_the_table() -> None:
    file = "tests/worker/test_protocol_page.py"
    named = {test for _, tests in ROWS for test in tests}
    tests = {name for name in _tests_of(file) if name.startswith("test_")}
    assert {name for name in tests if f"{file}::{name}" not in named} == set()
