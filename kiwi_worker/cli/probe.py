"""`kiwi-worker probe`: wake a lazy worker by hand and see whether it answers."""

from __future__ import annotations

import json
import socket
import statistics
import time
import uuid
from collections.abc import Callable
from dataclasses import asdict, dataclass

import click

from kiwi_worker.kiwi.probe import acknowledgement, pull_signal

from .options import Seconds

__all__ = ["probe"]

_LONGEST_DATAGRAM = 65_536
_FIRST_ANSWERS_SHOWN = 60


@dataclass(frozen=True)
class Probing:
    """One packet and what came of it.

    Attributes:
        packet_id: its `PacketId`.
        acknowledged: whether the ACK came.
        round_trip_ms: from sending the packet to having the whole ACK, in milliseconds; None without one.
        error: what happened instead and what to do, or None.
    """

    packet_id: str
    acknowledged: bool
    round_trip_ms: float | None = None
    error: str | None = None


class _NoAcknowledgement(Exception):
    """What happened instead, and what to do."""


def _read_target(context: click.Context, parameter: click.Parameter, value: str) -> tuple[str, int]:
    """HOST:PORT, with an IPv6 address in brackets."""
    host, colon, port = value.rpartition(":")
    host = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not (colon and host and port.isascii() and port.isdigit() and 0 < int(port) < 65_536):
        raise click.BadParameter(f"{value!r} is not HOST:PORT, such as 127.0.0.1:55222 or [::1]:55222")
    return host, int(port)


@click.command("probe")
@click.argument("target", callback=_read_target, metavar="HOST:PORT")
@click.option("--tcp", is_flag=True, help="Send over TCP instead of UDP.")
@click.option("--count", type=click.IntRange(min=1), default=1, show_default=True, help="How many packets.")
@click.option(
    "--timeout",
    type=Seconds(min=0, min_open=True, max=3600),
    default=2.0,
    show_default=True,
    help="Seconds to wait for each ACK.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object for programs.")
def probe(target: tuple[str, int], tcp: bool, count: int, timeout: float, as_json: bool) -> None:
    """Send a pull signal to a lazy worker's wake-up probe and show its ACK and the round trip.

    The worker drains its queue, as if the middleware had sent the packet. The exit status is 0 only when
    every packet was acknowledged.
    """
    ask = _over_tcp if tcp else _over_udp
    done = []
    for _ in range(count):
        done.append(_probed(ask, target, timeout))
        if not as_json:
            _show(done[-1], target, tcp)
    if as_json:
        click.echo(_as_json(done, target, tcp))
    elif count > 1:
        _show_summary(done)
    if not all(probing.acknowledged for probing in done):
        raise click.exceptions.Exit(1)


_Ask = Callable[[tuple[str, int], str, float], float]


def _probed(ask: _Ask, target: tuple[str, int], timeout: float) -> Probing:
    identity = str(uuid.uuid4())
    try:
        seconds = ask(target, identity, timeout)
    except _NoAcknowledgement as error:
        return Probing(identity, False, error=str(error))
    except socket.gaierror as error:
        return Probing(
            identity, False, error=f"{target[0]} is not known ({error.strerror}): check the host name"
        )
    except OSError as error:
        return Probing(identity, False, error=_what_went_wrong(error, ask is _over_tcp, timeout))
    return Probing(identity, True, round_trip_ms=round(seconds * 1000, 3))


def _over_udp(target: tuple[str, int], identity: str, timeout: float) -> float:
    family, _, _, _, address = socket.getaddrinfo(*target, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as sock:
        sock.connect(address)
        started = time.monotonic()
        sock.send(pull_signal(identity))
        sock.settimeout(timeout)
        _check(sock.recv(_LONGEST_DATAGRAM), identity)
        return time.monotonic() - started


def _over_tcp(target: tuple[str, int], identity: str, timeout: float) -> float:
    with socket.create_connection(target, timeout) as sock:
        started = time.monotonic()
        sock.sendall(pull_signal(identity))
        _check(_read_acknowledgement(sock, len(acknowledgement(identity)), started + timeout), identity)
        return time.monotonic() - started


def _read_acknowledgement(sock: socket.socket, length: int, deadline: float) -> bytes:
    answer = b""
    while len(answer) < length:
        sock.settimeout(max(0.001, deadline - time.monotonic()))
        part = sock.recv(length - len(answer))
        if not part:
            break
        answer += part
    return answer


def _check(answer: bytes, identity: str) -> None:
    if answer == acknowledgement(identity):
        return
    if not answer:
        raise _NoAcknowledgement("it closed the connection without an ACK: is this a wake-up probe port?")
    shown = repr(answer[:_FIRST_ANSWERS_SHOWN].decode("ascii", "replace"))
    raise _NoAcknowledgement(f"it answered {shown}, not ACK:<PacketId>: is this a wake-up probe port?")


def _what_went_wrong(error: OSError, is_tcp: bool, timeout: float) -> str:
    if isinstance(error, TimeoutError):
        return (
            f"no ACK within {timeout:g} s: check the address, that a firewall lets "
            f"{'TCP' if is_tcp else 'UDP'} through, and the worker's probe_allow"
        )
    if isinstance(error, ConnectionRefusedError):
        return "nothing listens there: check the port, and that the worker runs in lazy mode"
    return f"{error.strerror or type(error).__name__}: check the address and the network"


def _show(probing: Probing, target: tuple[str, int], tcp: bool) -> None:
    where = _written(target, tcp)
    if probing.acknowledged:
        click.echo(f"ACK:{probing.packet_id} from {where} in {probing.round_trip_ms:.3f} ms")
    else:
        click.echo(f"kiwi-worker probe: no ACK from {where}: {probing.error}", err=True)


def _show_summary(done: list[Probing]) -> None:
    times = [probing.round_trip_ms for probing in done if probing.round_trip_ms is not None]
    line = f"{len(done)} sent, {len(times)} acknowledged"
    if times:
        spread = (min(times), statistics.median(times), max(times))
        line += ", round trip min {:.3f} / median {:.3f} / max {:.3f} ms".format(*spread)
    click.echo(line)


def _as_json(done: list[Probing], target: tuple[str, int], tcp: bool) -> str:
    return json.dumps(
        {
            "host": target[0],
            "port": target[1],
            "transport": "tcp" if tcp else "udp",
            "sent": len(done),
            "acknowledged": sum(probing.acknowledged for probing in done),
            "probes": [asdict(probing) for probing in done],
        }
    )


def _written(target: tuple[str, int], tcp: bool) -> str:
    host, port = target
    return f"{f'[{host}]' if ':' in host else host}:{port} ({'TCP' if tcp else 'UDP'})"
