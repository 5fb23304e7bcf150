"""Metrics for Prometheus (extra `metrics`), made from snapshots when they are scraped.

The hot path keeps plain numbers anyway; nothing is added to it. There is no global registry, and a worker
that ended leaves no series behind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from kiwi_worker.observe.http import Page

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from kiwi_worker.engine.snapshot import Snapshot
    from kiwi_worker.observe.health import Health

__all__ = ["metrics_page"]

Watched = Sequence[tuple["Health", "Snapshot | None"]]

_STATES = {
    "live": "Whether its loops turn.",
    "ready": "Whether it is registered and not stopping.",
    "healthy": "Whether it is live and nothing is wrong.",
}


def metrics_page(watch: Callable[[], Watched]) -> Callable[[str], Page]:
    """What makes the page `/metrics`; the argument gives all workers that share it."""
    from prometheus_client import CollectorRegistry
    from prometheus_client.exposition import choose_encoder

    registry = CollectorRegistry()
    registry.register(_Collector(watch))

    def make(accept: str) -> Page:
        encode, content_type = choose_encoder(accept)
        return Page(200, encode(registry), content_type)

    return make


class _Collector:
    """Gives every number of every worker, labelled with its id."""

    def __init__(self, watch: Callable[[], Watched]) -> None:
        self._watch = watch

    def describe(self) -> Iterable[Metric]:
        """Nothing, so that registering it takes no snapshot."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Every metric."""
        watched = self._watch()
        yield from self._families("counter", [(health, one.counters) for health, one in _running(watched)])
        yield from self._families("gauge", [(health, one.gauges) for health, one in _running(watched)])
        yield from _states(watched)
        yield _handler_seconds(watched)

    @staticmethod
    def _families(kind: str, numbers: list[tuple[Health, Any]]) -> Iterator[Metric]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        make: Any = CounterMetricFamily if kind == "counter" else GaugeMetricFamily
        for name in sorted({name for _, values in numbers for name in values}):
            family = make(
                f"kiwi_worker_{name}", name.replace("_", " ").capitalize() + ".", labels=["worker_id"]
            )
            for health, values in numbers:
                if name in values:
                    family.add_metric([health.worker_id], values[name])
            yield family


def _running(watched: Watched) -> list[tuple[Health, Snapshot]]:
    return [(health, snapshot) for health, snapshot in watched if snapshot is not None]


def _states(watched: Watched) -> Iterator[Metric]:
    from prometheus_client.core import GaugeMetricFamily

    for name, text in _STATES.items():
        family = GaugeMetricFamily(f"kiwi_worker_{name}", text, labels=["worker_id"])
        for health, _ in watched:
            family.add_metric([health.worker_id], float(getattr(health, name)))
        yield family


def _handler_seconds(watched: Watched) -> Metric:
    from prometheus_client.core import SummaryMetricFamily

    text = "Seconds from the start of a handler to its end."
    family = SummaryMetricFamily("kiwi_worker_handler_seconds", text, labels=["worker_id", "method"])
    for health, snapshot in _running(watched):
        for totals in snapshot.methods:
            family.add_metric([health.worker_id, totals.name], totals.calls, totals.seconds)
    return family
