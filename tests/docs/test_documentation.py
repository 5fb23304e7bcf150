"""The documentation says what is so: the reference is the code's, links lead somewhere, examples run."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])


def reference() -> ModuleType:
    spec = importlib.util.spec_from_file_location("build_reference", ROOT / "docs" / "build_reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("page", ["settings.md", "commands.md", "api.md", "middleware.md"])
def test_the_reference_is_what_the_code_says(page: str) -> None:
    written = (ROOT / "docs" / "reference" / page).read_text()
    assert written == reference().PAGES[page](), "run: python docs/build_reference.py"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    targets = [target.partition("#")[0] for target in re.findall(r"\]\(([^)\s]+)\)", text)]
    local = [target for target in targets if target and "://" not in target]
    missing = [target for target in local if not (page.parent / target).exists()]
    assert not missing


def test_python_in_the_documentation_compiles() -> None:
    blocks = [
        (page, block)
        for page in PAGES
        for block in re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.DOTALL)
        if not page.match("docs/reference/*")
    ]
    assert blocks
    for page, block in blocks:
        compile(block, str(page), "exec")
