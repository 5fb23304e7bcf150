"""`kiwi-worker call`: call a method through the bundled middleware, from a shell."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import click

from ..calling.core import Options
from ..calling.settings import ClientSettings
from ..client import Client, Feedback, Outcome
from ..errors import KiwiWorkerError, NotSent
from .options import Seconds, config_option, settings_options

__all__ = ["call"]

NO_ANSWER_YET = 75
UNREACHABLE = 69
INTERRUPTED = 130
FAST_RETRY = 1.0
"""Seconds for which the command tries a middleware that is not there: a person waits."""


@click.command("call")
@click.argument("target", metavar="[SERVICE/]METHOD", default="")
@click.argument("params", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--params", "params_json", metavar="JSON", help="All params as one JSON object or array.")
@click.option("--json", "as_json", is_flag=True, help="For programs: outcome and feedback as JSON lines.")
@click.option("--timeout", type=Seconds(min=0), metavar="SECONDS", help="Wait no longer than this.")
@click.option("--no-wait", is_flag=True, help="Print the request id and do not wait.")
@click.option("--fetch", metavar="REQUEST_ID", help="Wait for an earlier call instead; METHOD is left out.")
@click.option("--ttl", type=Seconds(min=0), metavar="SECONDS", help="The time the call may take in all.")
@click.option("--lock", is_flag=True, help="Offer it to every worker, and let one of them claim it.")
@click.option("--idempotency-key", metavar="KEY", help="The same key again is the same call.")
@click.option("--secret-file", metavar="FILE", help="The same as --client-secret-file.")
@settings_options(ClientSettings)
@config_option
def call(
    target: str,
    params: tuple[str, ...],
    params_json: str | None,
    as_json: bool,
    timeout: float | None,
    no_wait: bool,
    fetch: str | None,
    ttl: float | None,
    lock: bool,
    idempotency_key: str | None,
    secret_file: str | None,
    options: dict[str, object],
    config: str | None,
) -> None:
    """Call METHOD and print what it returns.

    A VALUE is read as JSON where it is JSON, else as text: `n=3` is a number, `name=Ada` a text. Feedback is
    shown on standard error as it comes, numbers as a progress bar when a person is watching. The secret comes
    from KIWI_CLIENT_SECRET or a file.

    \b
    Exit status: 0 it was a success; 1 it failed, or was refused; 2 usage; 69 the middleware cannot be
    reached; 75 no answer in time (the call goes on: use --fetch); 77 the secret was refused; 78 a setting
    is missing or wrong; 130 interrupted (the call goes on).
    """
    given = {**options, **({} if secret_file is None else {"client_secret_file": secret_file})}
    service_id, method = _split(target, fetched=fetch is not None)
    if service_id is not None:
        given["service_id"] = service_id
    call_options: Options = {"time_to_live": ttl, "lock": lock, "idempotency_key": idempotency_key}
    with _one_line_errors():
        settings = ClientSettings.load({"retry_limit": FAST_RETRY}, options=given, config=config)
        with Client.of(settings) as client:
            if no_wait:
                request_id = client.start(method, _params(params, params_json), **call_options)
                click.echo(json.dumps({"request_id": request_id}) if as_json else request_id)
                return
            if fetch is not None:
                items = client.follow(fetch, timeout=timeout)
            else:
                given_params = _params(params, params_json)
                items = client.call_and_follow(method, given_params, timeout=timeout, **call_options)
            outcome = _show(items, as_json)
    sys.exit(_finish(outcome, as_json))


def _split(target: str, *, fetched: bool) -> tuple[str | None, str]:
    service_id, slash, method = target.rpartition("/")
    if not target and not fetched:
        raise click.UsageError("Missing argument '[SERVICE/]METHOD'")
    if fetched:
        return (target.rstrip("/") or None), ""
    if (slash and not service_id) or not method:
        raise click.BadParameter("write SERVICE/METHOD", param_hint="[SERVICE/]METHOD")
    return (service_id or None), method


def _params(pairs: Iterable[str], whole: str | None) -> Any:
    pairs = tuple(pairs)
    if whole is None:
        return _named(pairs)
    if pairs:
        raise click.UsageError("give either KEY=VALUE pairs or --params, not both")
    try:
        params = json.loads(whole, parse_constant=_refuse)
    except ValueError as error:
        raise click.BadParameter(f"is no JSON: {error}", param_hint="--params") from None
    except RecursionError:
        raise click.BadParameter("is nested too deep", param_hint="--params") from None
    if not isinstance(params, (dict, list)):
        raise click.BadParameter("write a JSON object or array", param_hint="--params")
    return params


def _named(pairs: Iterable[str]) -> dict[str, Any]:
    params: dict[str, Any] = {}
    for key, value in map(_pair, pairs):
        if key in params:
            raise click.BadParameter(f"{key} is given twice", param_hint="[KEY=VALUE]...")
        params[key] = value
    return params


def _pair(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise click.BadParameter(f"{text!r} is not KEY=VALUE", param_hint="[KEY=VALUE]...")
    try:
        return key, json.loads(value, parse_constant=_refuse)
    except ValueError:
        return key, value
    except RecursionError:
        raise click.BadParameter(
            f"the value of {key} is nested too deep", param_hint="[KEY=VALUE]..."
        ) from None


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} has no JSON form")


def _show(items: Iterator[Feedback | Outcome], as_json: bool) -> Outcome:
    """Show the feedback; the outcome comes last."""
    watched = sys.stderr.isatty() and not as_json
    bar = _Bar() if watched else None
    try:
        for item in items:
            if isinstance(item, Outcome):
                return item
            percent = percent_of(item.content)
            if bar is not None and percent is not None:
                bar.show(percent)
            else:
                _show_text(item, as_json, bar)
    finally:
        if bar is not None:
            bar.end()
    raise AssertionError("a stream ends with an outcome")


def _show_text(item: Feedback, as_json: bool, bar: _Bar | None) -> None:
    if as_json:
        click.echo(json.dumps({"feedback": item.content, "type": item.feedback_type}), err=True)
        return
    if bar is not None:
        bar.end()
    click.echo(_text(item.content), err=True)


class _Bar:
    """One line on standard error that grows."""

    def __init__(self) -> None:
        self._shown = False

    def show(self, percent: float) -> None:
        filled = int(percent / 100 * 30)
        click.echo(f"\r[{'#' * filled}{'-' * (30 - filled)}] {percent:5.1f} %", nl=False, err=True)
        self._shown = True

    def end(self) -> None:
        if self._shown:
            click.echo(err=True)
            self._shown = False


def percent_of(content: Any) -> float | None:
    """How far a piece of feedback says the work is, in percent; None when it is no number.

    A number from 0 to 100, the same as text, with or without `%`, a fraction between 0 and 1, or an object
    with one of these as `progress`, itself or as JSON text.
    """
    if isinstance(content, str):
        text = content.strip()
        try:
            content = json.loads(text.removesuffix("%").strip())
        except (ValueError, RecursionError):
            return None
        if text.endswith("%"):
            return _within(content)
    if isinstance(content, dict):
        content = content.get("progress")
    if isinstance(content, float) and 0 < content < 1:
        return content * 100
    return _within(content)


def _within(number: Any) -> float | None:
    if isinstance(number, bool) or not isinstance(number, (int, float)) or not 0 <= number <= 100:
        return None
    return float(number)


def _finish(outcome: Outcome, as_json: bool) -> int:
    if as_json:
        fields = ("request_id", "status", "result", "error_text", "reason")
        click.echo(json.dumps({field: getattr(outcome, field) for field in fields}))
    elif outcome.status == "success":
        click.echo(_text(outcome.result))
    elif outcome.ended:
        click.echo(f"kiwi-worker call: {outcome.status}: {outcome.error_text}", err=True)
    else:
        hint = f"fetch it with --fetch {outcome.request_id}"
        click.echo(f"kiwi-worker call: no answer yet; {hint}", err=True)
    if not outcome.ended:
        return NO_ANSWER_YET
    return 0 if outcome.status == "success" else 1


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


@contextmanager
def _one_line_errors() -> Iterator[None]:
    try:
        yield
    except NotSent as error:
        click.echo(f"kiwi-worker call: {error}", err=True)
        sys.exit(UNREACHABLE)
    except KiwiWorkerError as error:
        click.echo(f"kiwi-worker call: {error}", err=True)
        sys.exit(error.exit_status)
    except KeyboardInterrupt:
        click.echo("kiwi-worker call: interrupted; the call itself goes on", err=True)
        sys.exit(INTERRUPTED)


if __name__ == "__main__":
    call(prog_name="kiwi-worker call")
