"""What happens to everything that reaches the wake-up probe, over UDP and TCP alike."""

from __future__ import annotations

import ipaddress
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import cachetools

from kiwi_worker.errors import SettingsError
from kiwi_worker.kiwi.probe.packets import IGNORED_REASONS, NotAPacket, packet_id

__all__ = ["ProbeCounters", "Reception"]

_log = logging.getLogger("kiwi_worker.kiwi")

REMEMBERED_PACKETS = 10_000
REMEMBERED_SECONDS = 600.0

_Network = ipaddress.IPv4Network | ipaddress.IPv6Network
_Seen = cachetools.TTLCache[str, None]


@dataclass
class ProbeCounters:
    """What the probe has seen since it was made; written by its thread, safe to read from any other.

    Attributes:
        packets: valid packets, repeated ones included.
        repeated: packets whose `PacketId` was seen before; they are acknowledged and wake nobody.
        wakes: how often the worker was woken.
        acknowledged: answers handed to the system.
        unacknowledged: answers that could not be sent.
        ignored: what was ignored, by reason (`IGNORED_REASONS`).
        receive_errors: errors the system reported while receiving, undeliverable answers included.
        connections: TCP connections accepted.
        cut_connections: TCP connections closed by us: idle for too long, or the oldest of too many.
        last_packet_at: monotonic clock at the last valid packet, None before the first.
    """

    packets: int = 0
    repeated: int = 0
    wakes: int = 0
    acknowledged: int = 0
    unacknowledged: int = 0
    ignored: dict[str, int] = field(default_factory=lambda: dict.fromkeys(IGNORED_REASONS, 0))
    receive_errors: int = 0
    connections: int = 0
    cut_connections: int = 0
    last_packet_at: float | None = None


class Reception:
    """Decides what is heard, what wakes, and counts all of it. Used by the probe's thread only.

    Args:
        on_wake: called for each valid packet not seen before.
        allow: addresses and networks whose packets are heard; empty = everyone's.

    Raises:
        SettingsError: an entry of `allow` is neither an address nor a network.
    """

    def __init__(self, on_wake: Callable[[], None], allow: Iterable[str]) -> None:
        self.counters = ProbeCounters()
        self._on_wake = on_wake
        self._allow = tuple(_network(entry) for entry in allow)
        self._seen: _Seen = cachetools.TTLCache(REMEMBERED_PACKETS, REMEMBERED_SECONDS)
        self._reported: set[str] = set()

    def admits(self, sender: str) -> bool:
        """True when packets of this address are heard; counted when not."""
        if not self._allow or _is_in(sender, self._allow):
            return True
        self.ignore("sender_not_allowed", sender)
        return False

    def identity(self, data: bytes, sender: str) -> str | None:
        """The `PacketId` to acknowledge, or None for what gets no answer, which is counted."""
        try:
            identity = packet_id(data)
        except NotAPacket as error:
            self.ignore(error.reason, sender)
            return None
        self.counters.packets += 1
        self.counters.last_packet_at = time.monotonic()
        return identity

    def wake(self, identity: str) -> None:
        """Wake the worker, unless this packet did before. A wake that fails is logged and may be repeated."""
        if identity in self._seen:
            self.counters.repeated += 1
            return
        try:
            self._on_wake()
        except Exception:  # noqa: BLE001 - whatever it is, the probe goes on listening
            _log.exception("waking the worker failed", extra={"action": "probe_wake_failed"})
            return
        self._seen[identity] = None
        self.counters.wakes += 1

    def ignore(self, reason: str, sender: str) -> None:
        """Count something that gets no answer; the first of each reason is logged as a warning."""
        self.counters.ignored[reason] += 1
        self._report(reason, "the wake-up probe ignored what %s sent: %s (from now on only counted)", sender)

    def acknowledged(self) -> None:
        """Count an answer that the system took."""
        self.counters.acknowledged += 1

    def unacknowledged(self, error: OSError) -> None:
        """Count an answer that could not be sent; the sender will repeat its packet."""
        self.counters.unacknowledged += 1
        self._report("ack_failed", "a wake-up could not be acknowledged (%s): %s", _reason(error))

    def receive_error(self, error: OSError) -> None:
        """Count an error that the system reported where a packet was expected."""
        self.counters.receive_errors += 1
        self._report("receive_error", "the wake-up probe goes on after an error (%s): %s", _reason(error))

    def _report(self, kind: str, text: str, subject: str) -> None:
        if kind not in self._reported:
            self._reported.add(kind)
            _log.warning(text, subject, kind, extra={"action": f"probe_{kind}"})


def _reason(error: OSError) -> str:
    return error.strerror or type(error).__name__


def _network(entry: str) -> _Network:
    try:
        return ipaddress.ip_network(entry.strip(), strict=False)
    except ValueError:
        problem = f"{entry!r} is neither an address nor a network such as 10.0.0.0/8"
        raise SettingsError("probe_allow", problem) from None


def _is_in(sender: str, networks: tuple[_Network, ...]) -> bool:
    address: ipaddress.IPv4Address | ipaddress.IPv6Address = ipaddress.ip_address(sender.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return any(address in network for network in networks)
