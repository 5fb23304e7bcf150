"""Traces with OpenTelemetry (extra `metrics`), as handler middleware:

from kiwi_worker.observe.tracing import tracing

worker.around(tracing())
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING

from kiwi_worker.context import Context

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

__all__ = ["tracing"]

NAME = "kiwi_worker"


def tracing(
    tracer_provider: TracerProvider | None = None,
) -> Callable[[Context], AbstractContextManager[None]]:
    """Handler middleware that makes each call a span, for plain and async handlers.

    The span is called after the method, is the current one while the handler runs, and has the attributes
    `kiwi_worker.method`, `kiwi_worker.request_id` and `kiwi_worker.run`. An exception of the handler is
    recorded in it. Neither protocol carries a trace from the caller, so each call begins one.

    Args:
        tracer_provider: where spans go; the global one when left out.

    Raises:
        ImportError: opentelemetry-api is not installed.
    """
    from opentelemetry import trace

    from kiwi_worker._version import __version__

    tracer = trace.get_tracer(NAME, __version__, tracer_provider)

    @contextmanager
    def span(context: Context) -> Iterator[None]:
        attributes: dict[str, str | int] = {
            "kiwi_worker.method": context.method,
            "kiwi_worker.request_id": context.request_id,
            "kiwi_worker.run": context.run,
        }
        with tracer.start_as_current_span(
            context.method, kind=trace.SpanKind.CONSUMER, attributes=attributes
        ):
            yield

    return span
