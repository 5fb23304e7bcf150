"""Writes the reference pages from the code: `python docs/build_reference.py`. A test keeps them true."""

from __future__ import annotations

import inspect
import json
import sys
import urllib.request
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from kiwi_worker.settings import KiwiSettings, OrbitSettings, reference_table

HERE = Path(__file__).parent / "reference"
NOTE = "<!-- Written by docs/build_reference.py; do not edit. -->\n\n"


def settings_page() -> str:
    """Every setting of both kinds of worker."""
    return (
        f"{NOTE}# Settings\n\nOption, then keyword in code, then environment, then the file of `--config` or "
        "`KIWI_CONFIG`, then default: the first that is given wins.\n\n"
        f"## Kiwi workers (`Worker`)\n\n{reference_table(KiwiSettings)}\n\n"
        f"## ORBIT workers (`OrbitWorker`)\n\n{reference_table(OrbitSettings)}\n"
    )


def commands_page() -> str:
    """Every command with its options, as `--help` tells."""
    from kiwi_worker.cli import main

    sections = [f"{NOTE}# Commands\n"]
    _describe(main, "kiwi-worker", None, sections)
    return "\n".join(sections)


def _describe(command: Any, name: str, parent: click.Context | None, sections: list[str]) -> None:
    context = click.Context(
        command, parent=parent, info_name=name, terminal_width=100, **command.context_settings
    )
    # Before any command runs, and after: click keeps the help option of the first context that asks for it.
    command._help_option = None
    text = "\n".join(line.rstrip() for line in command.get_help(context).splitlines())
    sections.append(f"## {context.command_path}\n\n```text\n{text}\n```\n")
    if isinstance(command, click.Group):
        for each in command.list_commands(context):
            _describe(command.get_command(context, each), each, context, sections)


def api_page() -> str:
    """Every public name with its signature and docstring."""
    sections = [f"{NOTE}# Python API\n"]
    for module_name in MODULES:
        module = import_module(module_name)
        sections.append(f"## {module_name}\n")
        sections += [_entry(name, getattr(module, name)) for name in sorted(module.__all__) if name[0] != "_"]
    return "\n".join(sections)


def _entry(name: str, value: Any) -> str:
    doc = inspect.getdoc(value) or ""
    lines = [f"### {name}\n", f"```python\n{name}{_signature(value)}\n```\n", f"```text\n{doc}\n```\n"]
    if inspect.isclass(value):
        lines += [_member(name, member) for member in _members(value)]
    return "\n".join(lines)


def _members(value: type[Any]) -> list[tuple[str, Any]]:
    members = inspect.getmembers(value, lambda member: inspect.isfunction(member) or type(member) is property)
    return [(name, member) for name, member in members if name[0] != "_" and _is_ours(member)]


def _is_ours(member: Any) -> bool:
    function = member.fget if isinstance(member, property) else member
    return str(getattr(function, "__module__", "")).startswith("kiwi_worker")


def _member(owner: str, named: tuple[str, Any]) -> str:
    name, member = named
    first = (inspect.getdoc(member) or "").split("\n\n")[0].replace("\n", " ")
    signature = "" if isinstance(member, property) else _signature(member)
    return f"- `{owner}.{name}{signature}`: {first}"


def _signature(value: Any) -> str:
    try:
        return str(inspect.signature(value)).replace("self, ", "").replace("(self)", "()")
    except (TypeError, ValueError):
        return ""


def middleware_page() -> str:
    """Every operation of the bundled middleware, from the OpenAPI description it serves."""
    from kiwi_worker.testing.middleware import running_middleware

    with (
        running_middleware() as middleware,
        urllib.request.urlopen(f"{middleware.url}/openapi.json") as answer,
    ):
        paths = json.load(answer)["paths"]
    rows = ["| operation | what it does | parameters | answers |", "|---|---|---|---|"]
    for path, methods in paths.items():
        for method, operation in methods.items():
            named = [
                f"`{one['name']}`: {one.get('description', '')}" for one in operation.get("parameters", [])
            ]
            answers = [f"{status} {one['description']}" for status, one in operation["responses"].items()]
            what = f"{operation['summary']} | {'<br>'.join(named)} | {'<br>'.join(answers)}"
            rows.append(f"| `{method.upper()} {path}` | {what} |")
    return f"{NOTE}{MIDDLEWARE_HEAD}" + "\n".join(rows) + "\n"


MIDDLEWARE_HEAD = """# The bundled middleware

`/worker/…` is the worker protocol's. The protocol page gives no client side: `/client/…` is ours. The
middleware serves its own OpenAPI description at `/openapi.json`, which this table is made from.

"""
MODULES = ["kiwi_worker", "kiwi_worker.client", "kiwi_worker.testing"]
PAGES = {
    "middleware.md": middleware_page,
    "settings.md": settings_page,
    "commands.md": commands_page,
    "api.md": api_page,
}


def main() -> None:
    """Write every page."""
    for name, page in PAGES.items():
        (HERE / name).write_text(page())


if __name__ == "__main__":
    sys.exit(main())
