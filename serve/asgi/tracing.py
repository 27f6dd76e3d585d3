"""OpenTelemetry traces, where its SDK is installed and the operator has said where they go.

That is OTEL_EXPORTER_OTLP_ENDPOINT, or OTEL_TRACES_EXPORTER=console. Otherwise nothing is recorded, and nothing is sent
to anybody.
"""

import contextlib
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .gate import Visit

__all__ = ["Tracing"]


class Tracing:
    """Spans of requests: one per request, a child of the caller's if its headers name one."""

    def __init__(self) -> None:
        self._tracer = _tracer()

    @contextlib.contextmanager
    def span(self, visit: "Visit", method: str) -> Iterator[None]:
        """While inside, the request is in work."""
        if self._tracer is None:
            yield
            return
        from opentelemetry.propagate import extract
        from opentelemetry.trace import SpanKind

        attributes = {"http.request.method": method, "robust.request_id": visit.request_id}
        with self._tracer.start_as_current_span(
            "robust.request", context=extract(dict(visit.headers)), kind=SpanKind.SERVER, attributes=attributes
        ):
            yield

    def note(self, *, model: str, mode: str, status: int, samples: int) -> None:
        """What came out, on the span of the request in work."""
        if self._tracer is not None:
            from opentelemetry.trace import get_current_span

            get_current_span().set_attributes(
                {
                    "robust.model": model,
                    "robust.mode": mode,
                    "robust.samples": samples,
                    "http.response.status_code": status,
                }
            )


def _tracer() -> Any:
    """A tracer that exports, or None."""
    console = os.environ.get("OTEL_TRACES_EXPORTER") == "console"
    if not console and "OTEL_EXPORTER_OTLP_ENDPOINT" not in os.environ:
        return None
    try:
        from opentelemetry import trace
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter

        if console:
            exporter: Any = ConsoleSpanExporter()
        else:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

            exporter = OTLPSpanExporter()
    except ImportError:
        return None
    provider = TracerProvider(resource=Resource.create({"service.name": "robust-serve"}))
    provider.add_span_processor(BatchSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    return trace.get_tracer("robust.serve")
