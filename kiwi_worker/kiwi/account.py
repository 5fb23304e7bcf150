"""What a Kiwi worker says of itself: its loops, its numbers, and what keeps it from its work."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from kiwi_worker.engine import stamps
from kiwi_worker.engine.binding import Facts

if TYPE_CHECKING:
    from kiwi_worker.kiwi.binding import KiwiBinding
    from kiwi_worker.kiwi.heartbeat import Heartbeat
    from kiwi_worker.kiwi.probe import ProbeListener
    from kiwi_worker.kiwi.tokens import TokenManager

__all__ = ["account_of"]


def account_of(
    binding: KiwiBinding, tokens: TokenManager, heartbeat: Heartbeat | None, probe: ProbeListener | None
) -> Facts:
    """The facts of a binding."""
    return Facts(
        registered=binding.registered and not (heartbeat is not None and heartbeat.forgotten),
        receive_seconds=binding.draining.longest_seconds,
        loops={} if heartbeat is None else {"heartbeat": heartbeat.stamp},
        problems=list(_problems(binding.draining.failing, tokens, heartbeat)),
        counters={**_counters(binding, heartbeat), **({} if probe is None else _probe_counters(probe))},
    )


def _problems(drains: stamps.Streak, tokens: TokenManager, heartbeat: Heartbeat | None) -> Iterator[str]:
    if not tokens.healthy:
        yield f"there is no valid token: {tokens.last_error}"
    if drains.is_long:
        yield f"no drain has succeeded for over {stamps.PATIENCE_SECONDS:g} s: {drains.problem}"
    if heartbeat is not None and heartbeat.failing.is_long:
        problem = heartbeat.failing.problem
        yield f"no heartbeat was answered for over {stamps.PATIENCE_SECONDS:g} s: {problem}"
    if heartbeat is not None and heartbeat.forgotten:
        yield "the middleware no longer knows this worker"


def _counters(binding: KiwiBinding, heartbeat: Heartbeat | None) -> dict[str, int]:
    drains = binding.draining.counters
    return {
        "received": drains.messages,
        "drains": drains.drains,
        "failed_drains": drains.failed,
        "cut_drains": drains.cut,
        "unwoken_drains": drains.unwoken,
        "duplicates": binding.duplicates,
        "malformed": binding.malformed,
        "ambiguous_claims": binding.locking.ambiguous,
        "claims_given_up": binding.locking.given_up,
        "feedback_sent": binding.feedbacks.sent,
        "feedback_dropped": binding.feedbacks.dropped,
        "heartbeats": 0 if heartbeat is None else heartbeat.beats,
        "failed_heartbeats": 0 if heartbeat is None else heartbeat.failures,
    }


def _probe_counters(probe: ProbeListener) -> dict[str, int]:
    seen = probe.counters
    return {
        "probe_packets": seen.packets,
        "probe_repeated": seen.repeated,
        "probe_wakes": seen.wakes,
        "probe_unacknowledged": seen.unacknowledged,
        "probe_ignored": sum(seen.ignored.values()),
        "probe_connections": seen.connections,
        "probe_cut_connections": seen.cut_connections,
    }
