"""The group of commands: each is imported when it is used, so that `--help` is quick and needs no extra."""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, NamedTuple

import click

from kiwi_worker.errors import KiwiWorkerError

__all__ = ["COMMANDS", "LazyGroup", "one_line"]

MISSING_PART = 78
DEFECT = 70
"""What sysexits.h calls an internal software error: nothing that a person did."""
INTERRUPTED = 130
"""128 + SIGINT, as a shell reports it; click's own 1 would say that the command failed."""
CLOSED_PIPE = 1
"""The reader of the output went away, as `head` does; click's own status for it."""


class _Home(NamedTuple):
    module: str
    attribute: str
    help: str
    extra: str = ""


COMMANDS = {
    "bench": _Home(
        "bench",
        "bench",
        "Measure calls through a middleware that runs: start a worker with a method that does nothing, "
        "call it.",
    ),
    "call": _Home("call", "call", "Call METHOD and print what it returns."),
    "demo": _Home(
        "demo",
        "demo",
        "Start a middleware, a lazy and an eager worker, call them, show what came of it, and stop them.",
        "middleware",
    ),
    "journal": _Home("journal", "journal", "Show what the journal FILE holds."),
    "middleware": _Home(
        "middleware", "middleware", "Run the bundled middleware until SIGINT or SIGTERM.", "middleware"
    ),
    "orbit-runtime": _Home(
        "orbit_runtime",
        "orbit_runtime",
        "Run a small ORBIT runtime, to try and test workers on.",
        "middleware",
    ),
    "probe": _Home(
        "probe",
        "probe",
        "Send a pull signal to a lazy worker's wake-up probe and show its ACK and the round trip.",
    ),
    "run": _Home("run", "run", "Run the worker of a module until a signal says stop."),
    "status": _Home("status", "status", "Tell whether a worker is healthy, as its health file or port says."),
}
"""Where each command lives, and the first sentence of its help (a test keeps both the same)."""


class LazyGroup(click.Group):
    """Knows its commands by name and help; whatever stops one becomes one line and an exit status."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        home = COMMANDS.get(cmd_name)
        return None if home is None else _load(cmd_name, home)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            near = difflib.get_close_matches(args[0], COMMANDS, n=1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(sorted(COMMANDS))}"
            raise click.UsageError(f"no command {args[0]!r}; {hint}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, home.help) for name, home in sorted(COMMANDS.items())])

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **more: Any,
    ) -> Any:
        def run() -> Any:
            return super(LazyGroup, self).main(
                args, prog_name=prog_name, complete_var=complete_var, standalone_mode=False, **more
            )

        if not standalone_mode:
            return run()
        sys.exit(_status_of(run))


def one_line(error: BaseException) -> str:
    """The text of an error, its line ends taken out."""
    return " ".join(str(error).split())


def _load(name: str, home: _Home) -> click.Command:
    try:
        module = import_module(f"kiwi_worker.cli.{home.module}")
    except ModuleNotFoundError as error:
        if not home.extra or str(error.name).startswith("kiwi_worker"):
            raise
        raise _CannotLoad(
            f"kiwi-worker {name} needs {error.name}: pip install 'kiwi-worker[{home.extra}]'"
        ) from None
    command: click.Command = getattr(module, home.attribute)
    return command


class _CannotLoad(click.ClickException):
    exit_code = MISSING_PART


def _status_of(run: Callable[[], Any]) -> int:
    try:
        returned = run()
        sys.stdout.flush()
    except click.UsageError as error:
        _show_usage_error(error)
        return error.exit_code
    except click.ClickException as error:
        click.echo(error.format_message(), err=True)
        return error.exit_code
    except KiwiWorkerError as error:
        click.echo(f"kiwi-worker: {one_line(error)}", err=True)
        return error.exit_status
    except click.Abort:
        click.echo("kiwi-worker: interrupted", err=True)
        return INTERRUPTED
    except BrokenPipeError:
        # What is still buffered has no reader; without this the interpreter would complain of it at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return CLOSED_PIPE
    except Exception as error:
        if sys.flags.dev_mode:
            raise
        name = type(error).__name__
        click.echo(
            f"kiwi-worker: defect: {name}: {one_line(error)}; PYTHONDEVMODE=1 shows where: report it",
            err=True,
        )
        return DEFECT
    return returned if isinstance(returned, int) else 0


def _show_usage_error(error: click.UsageError) -> None:
    context = error.ctx
    text = error.format_message()
    if context is None:
        click.echo(f"kiwi-worker: {text}", err=True)
    elif type(error).__name__ == "NoArgsIsHelpError":  # its text is the whole help; click before 8.2 has none
        click.echo(text, err=True)
    else:
        path = context.command_path
        click.echo(f"{path}: {text.rstrip('.')}; see {path} --help", err=True)
