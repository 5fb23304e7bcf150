"""Each call is a span, with plain and with async handlers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from kiwi_worker import Worker
from kiwi_worker.testing import KiwiServer

trace = pytest.importorskip("opentelemetry.trace")
from kiwi_worker.observe.tracing import tracing  # noqa: E402


class Provider(trace.TracerProvider):  # type: ignore[misc, name-defined]
    """Keeps what it is told; the interface is OpenTelemetry's own."""

    def __init__(self) -> None:
        self.spans: list[tuple[str, dict[str, Any], str]] = []

    def get_tracer(self, *_: Any, **__: Any) -> Any:
        return Tracer(self.spans)


class Tracer(trace.Tracer):  # type: ignore[misc, name-defined]
    def __init__(self, spans: list[tuple[str, dict[str, Any], str]]) -> None:
        self._spans = spans

    def start_span(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError

    @contextmanager
    def start_as_current_span(self, name: str, *_: Any, **told: Any) -> Iterator[Any]:
        ended = "returned"
        try:
            with trace.use_span(trace.NonRecordingSpan(trace.SpanContext(1, 2, False)), end_on_exit=False):
                yield
        except BaseException as error:
            ended = type(error).__name__
            raise
        finally:
            self._spans.append((name, told["attributes"], ended))


def test_calls_are_spans(server: KiwiServer, new_worker: Callable[..., Worker]) -> None:
    provider, worker, current = Provider(), new_worker(), []
    worker.around(tracing(provider))

    @worker.method
    def fails() -> None:
        current.append(trace.get_current_span().get_span_context().span_id)
        raise ValueError("no")

    @worker.method
    async def later() -> str:
        current.append(trace.get_current_span().get_span_context().span_id)
        return "later"

    with worker:
        ids = [server.enqueue("fails"), server.enqueue("later")]
        server.assert_answered_once(ids[0], "failed")
        server.assert_answered_once(ids[1], "success")
    assert current == [2, 2]
    assert sorted(provider.spans) == [
        (
            "fails",
            {"kiwi_worker.method": "fails", "kiwi_worker.request_id": ids[0], "kiwi_worker.run": 1},
            "ValueError",
        ),
        (
            "later",
            {"kiwi_worker.method": "later", "kiwi_worker.request_id": ids[1], "kiwi_worker.run": 1},
            "returned",
        ),
    ]
