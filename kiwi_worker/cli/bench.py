"""`kiwi-worker bench`: a short benchmark of a worker and a middleware that are there."""

from __future__ import annotations

import json
import multiprocessing
import os
import secrets
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import click

from kiwi_worker.bench.latency import Latency, latency_of, measure
from kiwi_worker.bench.worker import new_worker, serve
from kiwi_worker.calling.settings import ClientSettings
from kiwi_worker.client import Client
from kiwi_worker.errors import NotSent, StartError
from kiwi_worker.kiwi.assembly import USER_AGENT, endpoint_of
from kiwi_worker.settings import KiwiSettings
from kiwi_worker.transport import Channel

from .options import config_option, options_of, settings_options

__all__ = ["bench"]

WARM = 20
CALL_SECONDS = 30.0
READY_SECONDS = 20.0
STOP_SECONDS = 20.0
TRIPS = 200
BARE = "bare round trip"
UNREACHABLE = 69


class Part(NamedTuple):
    """What was measured with so many callers.

    Attributes:
        callers: how many called at once; 0 for bare round trips, which no worker takes part in.
        latency: what the calls took.
        cpu_us: microseconds of processor time that the worker's process used for one call; None for trips.
    """

    callers: int
    latency: Latency
    cpu_us: float | None = None


@click.command("bench")
@click.option(
    "--calls", type=click.IntRange(min=10), default=1000, show_default=True, help="How many calls, each time."
)
@click.option(
    "--callers",
    type=click.IntRange(min=1),
    default=16,
    show_default=True,
    help="How many call at once, after one alone.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object for programs.")
@config_option
@settings_options(KiwiSettings, ClientSettings)
def bench(calls: int, callers: int, as_json: bool, config: str | None, options: dict[str, object]) -> None:
    """Measure calls through a middleware that runs: start a worker with a method that does nothing, call it.

    The worker takes the settings of yours, and a worker id and a method name that nobody else has; it is a
    process of its own, and stops at the end. Both secrets are needed: the worker's (KIWI_AUTH_SECRET or a
    file) and the callers' (KIWI_CLIENT_SECRET or a file).

    \b
    Exit status: 0 it was measured; 1 a call failed; 2 usage; 69 the middleware cannot be reached;
    77 a secret was refused; 78 a setting is missing or wrong.
    """
    name = f"bench-{socket.gethostname()}-{os.getpid()}"
    method = f"kiwi_worker.bench.{secrets.token_hex(4)}"
    own = options_of(KiwiSettings, options)
    settings = new_worker(own, config, name, None).settings
    client_settings = ClientSettings.load(
        {"service_id": settings.service_id}, options=options_of(ClientSettings, options), config=config
    )
    with Client.of(client_settings) as client, _serving(own, config, name, method) as process:
        try:
            _await_worker(client, process, method)
        except NotSent as error:
            click.echo(f"kiwi-worker bench: {error}", err=True)
            raise click.exceptions.Exit(UNREACHABLE) from None
        parts = [
            _trips(settings),
            *(_part(client, method, count, calls) for count in dict.fromkeys((1, callers))),
        ]
    click.echo(_as_json(settings, parts) if as_json else "\n".join(_lines(settings, parts)))


@contextmanager
def _serving(options: dict[str, object], config: str | None, name: str, method: str) -> Iterator[Any]:
    # Started anew, not forked: it is to be like any worker.
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=serve, args=(options, config, name, method), daemon=True)
    process.start()
    try:
        yield process
    finally:
        process.terminate()
        process.join(STOP_SECONDS)
        process.kill()


def _await_worker(client: Client, process: Any, method: str) -> None:
    until = time.monotonic() + READY_SECONDS
    while all(served.method != method for served in client.methods()):
        if process.exitcode is not None:
            # It has said why.
            raise click.exceptions.Exit(process.exitcode or 1)
        if time.monotonic() > until:
            raise StartError(f"the worker did not register within {READY_SECONDS:.0f} s")
        process.join(0.05)


def _trips(settings: KiwiSettings) -> Part:
    """The least that a call could take: bare requests to the same middleware, which answers 401."""
    channel = Channel(endpoint_of(settings), user_agent=USER_AGENT)
    seconds = []
    try:
        for _ in range(TRIPS):
            since = time.perf_counter()
            channel.call("GET", "/worker/heartbeat/nobody", authorization=None, read_timeout=CALL_SECONDS)
            seconds.append(time.perf_counter() - since)
    finally:
        channel.close()
    return Part(0, latency_of(seconds, sum(seconds)))


def _part(client: Client, method: str, callers: int, calls: int) -> Part:
    used: list[float] = []

    def call(number: int) -> None:
        seconds = client.call(method, timeout=CALL_SECONDS)
        if number >= 0:
            used.append(seconds)

    latency = measure(lambda: call, callers, calls, WARM)
    return Part(callers, latency, (max(used) - min(used)) / (len(used) - 1) * 1e6)


def _lines(settings: KiwiSettings, parts: Sequence[Part]) -> Iterator[str]:
    yield (
        f"{settings.middleware_url}, service {settings.service_id}: {settings.run_mode} mode, "
        f"{settings.concurrency} slots\n"
    )
    yield f"{'':18}{'calls/s':>10}{'p50 ms':>9}{'p99 ms':>9}{'worker CPU µs/call':>20}"
    for part in parts:
        latency = part.latency
        cpu = "" if part.cpu_us is None else f"{part.cpu_us:20.0f}"
        name = (
            f"{part.callers} caller{'s' if part.callers > 1 else ''}" if part.callers else "bare round trip"
        )
        rate = f"{latency.per_second:10,.0f}"
        yield f"{name:18}{rate}{latency.p50_ms:9.2f}{latency.p99_ms:9.2f}{cpu}"
    trip, alone = parts[0].latency.p50_ms, parts[1].latency.p50_ms
    yield f"\none call takes {alone / trip:.1f} bare round trips"


def _as_json(settings: KiwiSettings, parts: Sequence[Part]) -> str:
    return json.dumps(
        {
            "middleware_url": settings.middleware_url,
            "service_id": settings.service_id,
            "run_mode": settings.run_mode,
            "parts": [{"callers": p.callers, **p.latency._asdict(), "cpu_us": p.cpu_us} for p in parts],
        }
    )
