"""Health: whether a worker lives, whether it is ready, and what is wrong with it.

- `live`: its loops turn. A new process is what helps when they do not, so this is for whoever restarts it.
- `ready`: the server takes it for one of its workers, and it is not stopping.
- `healthy`: it is live, and nothing is known that keeps it from its work. What is wrong then is often not in
  this process: an outbox that only grows, or refused credentials, get no better by a restart.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from kiwi_worker.engine.snapshot import Snapshot

__all__ = ["Health", "health_of", "summary"]


class Health(NamedTuple):
    """How one worker is.

    Attributes:
        worker_id: which one.
        live: whether its loops turn.
        ready: whether it is registered and not stopping.
        healthy: whether it is live and nothing is wrong.
        reasons: why it is not live or not healthy, a sentence each.
        not_ready: why it is not ready; None when it is.
    """

    worker_id: str
    live: bool
    ready: bool
    healthy: bool
    reasons: Sequence[str]
    not_ready: str | None


def health_of(worker_id: str, snapshot: Snapshot | None) -> Health:
    """The health of a worker; without a snapshot it does not run."""
    if snapshot is None:
        return Health(worker_id, False, False, False, ["it does not run"], "it does not run")
    live = not snapshot.stuck
    reasons = [*snapshot.stuck, *snapshot.problems]
    not_ready = _not_ready(snapshot)
    return Health(worker_id, live, not_ready is None, not reasons, reasons, not_ready)


def _not_ready(snapshot: Snapshot) -> str | None:
    if snapshot.stopping:
        return "it is stopping"
    if not snapshot.registered:
        return "it is not registered"
    return snapshot.stuck[0] if snapshot.stuck else None


def summary(watched: Sequence[tuple[Health, Snapshot | None]]) -> dict[str, Any]:
    """What the file and `/status` say of all workers that share them; a JSON object.

    Keys: `live`, `ready` and `healthy`, each true when it is so of every worker; `workers`, each with the
    same three, `worker_id`, `reasons`, `not_ready`, and the `counters` and `gauges` of the metrics.
    """
    healths = [health for health, _ in watched]
    return {
        "live": all(health.live for health in healths),
        "ready": bool(healths) and all(health.ready for health in healths),
        "healthy": all(health.healthy for health in healths),
        "workers": [
            {**health._asdict(), **({} if snapshot is None else _numbers(snapshot))}
            for health, snapshot in watched
        ],
    }


def _numbers(snapshot: Snapshot) -> dict[str, Any]:
    return {"counters": dict(snapshot.counters), "gauges": dict(snapshot.gauges)}
