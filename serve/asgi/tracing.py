"""OpenTelemetry traces, where its SDK is installed and the operator has said where they go.

That is OTEL_EXPORTER_OTLP_ENDPOINT (or OTEL_EXPORTER_OTLP_TRACES_ENDPOINT), or OTEL_TRACES_EXPORTER=console. Otherwise
(or with OTEL_TRACES_EXPORTER=none) nothing is recorded, and nothing is sent to anybody.
"""

import contextlib
import os
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from ..service import logs

if TYPE_CHECKING:
    from .gate import Visit

__all__ = ["Tracing"]


class Tracing:
    """Spans of requests: one per request, a child of the caller's if its headers name one. Without a provider, none."""

    def __init__(self, provider: Any = None) -> None:
        self._provider = provider
        self._tracer = None if provider is None else provider.get_tracer("robust.serve")

    @classmethod
    def of_environment(cls, environment: Mapping[str, str] = os.environ) -> "Tracing":
        """Traces go where the variables of OpenTelemetry say."""
        endpoints = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
        exporter = environment.get("OTEL_TRACES_EXPORTER")
        console = exporter == "console"
        if not console and (exporter == "none" or not any(environment.get(name) for name in endpoints)):
            return cls()
        try:
            return cls(_provider(console=console))
        except ImportError as error:  # answers matter more than traces
            logs.record("no traces", reason=f"{error}: install opentelemetry-sdk and opentelemetry-exporter-otlp.")
            return cls()

    def close(self) -> None:
        """Send what is not sent yet."""
        if self._provider is not None:
            self._provider.shutdown()

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
            from opentelemetry.trace import StatusCode, get_current_span

            span = get_current_span()
            if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
                span.set_status(StatusCode.ERROR)
            span.set_attributes(
                {
                    "robust.model": model,
                    "robust.mode": mode,
                    "robust.samples": samples,
                    "http.response.status_code": status,
                }
            )


def _provider(*, console: bool) -> Any:
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter

    if console:
        exporter: Any = ConsoleSpanExporter()
    else:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

        exporter = OTLPSpanExporter()
    provider = TracerProvider(resource=Resource.create({"service.name": "robust-serve"}))
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return provider
