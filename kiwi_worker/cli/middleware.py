"""`kiwi-worker middleware`: run the bundled middleware, and keep its services and secrets."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ..errors import KiwiWorkerError, SettingsError
from ..middleware.settings import MiddlewareSettings
from ..settings import CommandSettings
from .options import config_option, options_of, settings_options

if TYPE_CHECKING:
    from ..middleware.stores.directory import Directory

__all__ = ["middleware"]

C = TypeVar("C", bound=Callable[..., Any])

MIDDLEWARE_EXTRA = "the middleware needs its extra: pip install 'kiwi-worker[middleware]'"


@click.group("middleware", invoke_without_command=True)
@settings_options(MiddlewareSettings, CommandSettings)
@config_option
@click.pass_context
def middleware(ctx: click.Context, options: dict[str, object], config: str | None) -> None:
    """Run the bundled middleware until SIGINT or SIGTERM.

    Prints its address on one line once it accepts connections. Services and their secrets are made with
    `kiwi-worker middleware service add NAME`, also while it runs. Nothing has a default password.
    """
    ctx.obj = {"options": options, "config": config}
    if ctx.invoked_subcommand is None:
        sys.exit(_ending(lambda: _run(options, config)))


@middleware.group()
def service() -> None:
    """Services, their secrets, and the settings their workers get."""


def _db(command: C) -> C:
    return click.option("--db", default=None, metavar="FILE", help="The middleware's SQLite file.")(command)


@service.command("add")
@click.argument("name")
@_db
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.pass_obj
def service_add(obj: Mapping[str, Any], name: str, db: str | None, as_json: bool) -> None:
    """Make the service NAME, and print its worker's and its client's secret: once, they are kept hashed."""
    secrets = _with_directory(obj, db, lambda directory: directory.add_service(name))
    if as_json:
        _echo_json(
            {"service_id": name, "worker_secret": secrets["worker"], "client_secret": secrets["client"]}
        )
        return
    click.echo(f"KIWI_SERVICE_ID={name}")
    click.echo(f"KIWI_AUTH_SECRET={secrets['worker']}")
    click.echo(f"KIWI_CLIENT_SECRET={secrets['client']}")
    click.echo("The secrets are shown this once: the first is for workers, the second for callers.", err=True)


@service.command("list")
@_db
@click.pass_obj
def service_list(obj: Mapping[str, Any], db: str | None) -> None:
    """List the services, and the id, role and age of each secret."""

    def read(directory: Directory) -> list[str]:
        return [line for name in directory.services() for line in _service_lines(directory, name)]

    for line in _with_directory(obj, db, read):
        click.echo(line)


@service.command("remove")
@click.argument("name")
@_db
@click.pass_obj
def service_remove(obj: Mapping[str, Any], name: str, db: str | None) -> None:
    """Forget the service NAME with its secrets and settings. Tokens live on until they expire."""
    _with_directory(obj, db, lambda directory: directory.remove_service(name))


@service.command("add-secret")
@click.argument("name")
@click.option("--role", type=click.Choice(["worker", "client"]), default="worker", show_default=True)
@_db
@click.pass_obj
def service_add_secret(obj: Mapping[str, Any], name: str, role: str, db: str | None) -> None:
    """Make a further secret for NAME, to change them without a gap, and print it."""
    secret, secret_id = _with_directory(obj, db, lambda directory: directory.add_secret(name, role))
    click.echo(secret)
    click.echo(f"Its id is {secret_id}. It is shown this once.", err=True)


@service.command("remove-secret")
@click.argument("secret_id")
@_db
@click.pass_obj
def service_remove_secret(obj: Mapping[str, Any], secret_id: str, db: str | None) -> None:
    """Refuse a secret, and the refresh tokens it brought, from now on."""
    _with_directory(obj, db, lambda directory: directory.remove_secret(secret_id))


@service.command("set")
@click.argument("name")
@click.argument("assignment", metavar="SETTING=VALUE")
@_db
@click.pass_obj
def service_set(obj: Mapping[str, Any], name: str, assignment: str, db: str | None) -> None:
    """Set an application setting that NAME's workers get when they register; `SETTING=` removes it."""
    setting, found, value = assignment.partition("=")
    if not setting or not found:
        raise click.BadParameter("write SETTING=VALUE", param_hint="SETTING=VALUE")
    _with_directory(
        obj, db, lambda directory: directory.set_application_setting(name, setting, value or None)
    )


def _run(options: Mapping[str, object], config: str | None) -> None:
    log = CommandSettings.load(options=options_of(CommandSettings, options))
    settings = MiddlewareSettings.load(options=options_of(MiddlewareSettings, options), config=config)
    logging.basicConfig(level=log.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s %(message)s")
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    try:
        from ..middleware.server import serve
    except ImportError:
        raise SettingsError("middleware", MIDDLEWARE_EXTRA) from None
    serve(settings, lambda address: print(f"middleware listens on {address}", flush=True))  # noqa: T201


D = TypeVar("D")


def _with_directory(obj: Mapping[str, Any], db: str | None, use: Callable[[Directory], D]) -> D:
    from ..middleware.stores.directory import Directory

    found: list[D] = []

    def work() -> None:
        given = {**options_of(MiddlewareSettings, obj["options"]), **({} if db is None else {"db": db})}
        settings = MiddlewareSettings.load(options=given, config=obj["config"])
        with Directory(settings.db) as directory:
            found.append(use(directory))

    status = _ending(work)
    if status:
        sys.exit(status)
    return found[0]


def _ending(work: Callable[[], None]) -> int:
    """Run it; what stops it is one line, and the status that goes with it."""
    try:
        work()
    except KiwiWorkerError as error:
        click.echo(f"kiwi-worker middleware: {error}", err=True)
        return error.exit_status
    return 0


def _service_lines(directory: Directory, name: str) -> list[str]:
    from datetime import datetime, timezone

    lines = [name]
    for record in directory.secrets(name):
        made = datetime.fromtimestamp(record.created_at, timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
        lines.append(f"  {record.secret_id}  {record.role}  {made}")
    return lines


def _echo_json(value: object) -> None:
    import json

    click.echo(json.dumps(value))


if __name__ == "__main__":
    middleware(prog_name="kiwi-worker middleware")
