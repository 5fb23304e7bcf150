"""`kiwi-worker run`: run the workers of a module as the main program of a process."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import click

from kiwi_worker.errors import DefinitionError, KiwiWorkerError, SettingsError
from kiwi_worker.settings import (
    CommandSettings,
    KiwiSettings,
    OrbitSettings,
    secret_reader,
    settings_of,
)
from kiwi_worker.settings.command_line import CommandLine, command_line
from kiwi_worker.settings.worker import WorkerSettings
from kiwi_worker.transport.tls import TlsFiles
from kiwi_worker.worker import WorkerBase

from .group import one_line
from .logs import configure_logging
from .options import check_options, config_option, options_of, settings_options
from .report import report_lines
from .target import Workers, load_workers

__all__ = ["run"]

_logger = logging.getLogger("kiwi_worker.cli")

LINGER_SECONDS = 3.0
"""How long threads that a module left behind may hold up the end of the process."""

_ONE_EACH = {
    "worker_id",
    "journal",
    "health_file",
    "health_port",
    "metrics_port",
    "wakeup_probe_service_port",
    "advertised_port",
}


@click.command("run")
@click.argument("target", metavar="MODULE[:ATTRIBUTE]")
@click.option("--check", is_flag=True, help="Validate settings and methods, print them, connect to nothing.")
@click.option("--reload", is_flag=True, help="Start anew when a Python file changes. Needs the extra reload.")
@click.option("--traceback", "show_traceback", is_flag=True, help="Show the traceback of what stops it.")
@config_option
@settings_options(KiwiSettings, OrbitSettings, CommandSettings)
def run(
    target: str,
    check: bool,
    reload: bool,
    show_traceback: bool,
    config: str | None,
    options: dict[str, object],
) -> None:
    """Run the worker of a module until a signal says stop.

    ATTRIBUTE is a worker, or a list of workers that share the process; `worker` when left out. An option
    wins over a keyword in code, that over the variable in brackets, that over the file.

    \b
    Exit status: 0 clean; 1 the grace period ran out with work unfinished, or a start hook failed;
    2 usage; 69 the middleware cannot be reached within start_limit; 75 the middleware forgot the
    worker; 77 the credentials were refused; 78 settings, module, probe port, journal or
    registration were refused; 128 + n a second signal n.
    """
    if reload and not check:
        from .reload import reload_on_change

        sys.exit(reload_on_change(sys.argv[1:]))
    status = _run(target, check, show_traceback, CommandLine(options, config))
    _leave_soon(status)
    sys.exit(status)


def _run(target: str, check: bool, show_traceback: bool, given: CommandLine) -> int:
    try:
        log = _command_settings(given)
        configure_logging(log.log_level)
        workers = _load(target, given)
        if check:
            return _checked(workers)
        _refuse_empty(workers)
        status, error = _run_to_status(workers)
    except KiwiWorkerError as problem:
        status, error = problem.exit_status, problem
    if error is not None:
        if show_traceback:
            traceback.print_exception(error.__cause__ or error)
        click.echo(f"kiwi-worker run: {one_line(error)}", err=True)
    return status


def _command_settings(given: CommandLine) -> CommandSettings:
    own = {name for setting in settings_of(CommandSettings) for name in setting.environment}
    own.add(CommandSettings.config_variable)
    # The settings of the worker warn of variables that nobody has, when there is a log to warn in.
    environ = {name: value for name, value in os.environ.items() if name in own}
    options = options_of(CommandSettings, given.options)
    return CommandSettings.load(options=options, config=given.config, environ=environ)


def _load(target: str, given: CommandLine) -> Workers:
    with _ended_by_sigterm(), command_line(given.options, given.config) as line:
        workers = load_workers(target)
    _check_options(workers, line.options)
    for worker in workers:
        if not line.made(worker.settings):
            worker.configure(line.load(type(worker.settings), worker.keywords))
    return workers


@contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """Nothing is there yet that would have to be stopped in order, so a signal ends the process.

    That is the default anyway, but not for the first process of a container, which the kernel spares.
    """
    if os.getpid() != 1:
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda number, _: os._exit(128 + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _run_to_status(workers: Workers) -> tuple[int, KiwiWorkerError | None]:
    from kiwi_worker.running import run_to_status

    return run_to_status(*workers)


def _check_options(workers: Workers, options: Mapping[str, object]) -> None:
    own = {key: value for key, value in options.items() if key not in _keys_of(CommandSettings)}
    for key, value in own.items():
        having = [worker for worker in workers if key in _keys_of(type(worker.settings))]
        if not having:
            check_options(type(workers[0].settings), {key: value})
        if len(having) > 1 and key in _ONE_EACH and value != 0:
            option = "--" + key.replace("_", "-")
            raise click.UsageError(f"{option} is for one worker, and there are {len(having)}: set it in code")


def _keys_of(cls: type[Any]) -> set[str]:
    return {setting.key for setting in settings_of(cls)}


def _checked(workers: Workers) -> int:
    for worker in workers:
        worker.check()
        _check_secret(worker)
        _check_certificates(worker.settings)
        for line in report_lines(worker):
            click.echo(line)
        _refuse_empty([worker])
    click.echo("all right; connected to nothing")
    return 0


def _refuse_empty(workers: Iterable[WorkerBase[Any]]) -> None:
    for worker in workers:
        if not list(worker._definitions()):
            raise DefinitionError(f"{worker!r} has no methods: decorate a function")


def _check_secret(worker: WorkerBase[Any]) -> None:
    settings = worker.settings
    if isinstance(settings, KiwiSettings) and secret_reader(settings) is None:
        raise SettingsError("auth_secret", "is missing; set KIWI_AUTH_SECRET or auth_secret_file")


def _check_certificates(settings: WorkerSettings) -> None:
    """What a start reads only when it connects."""
    if isinstance(settings, KiwiSettings):
        encrypted = settings.middleware_url.startswith("https:")
    else:
        encrypted = isinstance(settings, OrbitSettings) and settings.scheme in ("https", "grpcs")
    if encrypted:
        TlsFiles(settings.ca_file, settings.client_cert, settings.client_key).server_context()


def _leave_soon(status: int) -> None:
    """See to it that the process ends, whatever threads a handler or a module left behind."""
    threading.Thread(target=_leave, args=(status,), name="exit-watchdog", daemon=True).start()


def _leave(status: int) -> None:
    time.sleep(LINGER_SECONDS)
    names = [
        thread.name
        for thread in threading.enumerate()
        if not thread.daemon and thread is not threading.main_thread()
    ]
    _logger.warning(
        "left without waiting for threads that still run: %s",
        ", ".join(names) or "none",
        extra={"action": "left_threads_behind"},
    )
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
