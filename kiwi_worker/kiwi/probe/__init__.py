"""The wake-up probe (protocol page, "Lazy-mode wake-up probe"): its packets, its listener, its address."""

from __future__ import annotations

from kiwi_worker.kiwi.probe.listener import ProbeListener
from kiwi_worker.kiwi.probe.packets import NotAPacket, acknowledgement, packet_id, pull_signal
from kiwi_worker.kiwi.probe.reception import ProbeCounters
from kiwi_worker.kiwi.probe.route import route_address

__all__ = [
    "NotAPacket",
    "ProbeCounters",
    "ProbeListener",
    "acknowledgement",
    "packet_id",
    "pull_signal",
    "route_address",
]
