"""Optional OpenTelemetry tracing: one span per request and per commit, linked to the producers of delivered messages.

The module is imported only if tracing is enabled.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from penstock.errors import InvalidInput

if TYPE_CHECKING:
    from penstock.server.http.messages import Request

LINKS_MAX = 128
CLOSE_SECONDS = 2.0


class Tracer:
    """Records spans with an OpenTelemetry tracer provider."""

    def __init__(self, provider: Any) -> None:
        from opentelemetry import trace
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._api = trace
        self._provider = provider
        self._tracer = provider.get_tracer("penstock")
        self._propagator = TraceContextTextMapPropagator()

    @contextmanager
    def request(self, request: Request) -> Iterator[None]:
        """Trace a request as a child of the caller's span, with links to the producers of the delivered messages."""
        parent = self._context(request.traceparent)
        with self._tracer.start_as_current_span(
            f"{request.method} unmatched", context=parent, kind=self._api.SpanKind.SERVER
        ) as span:
            try:
                yield
            finally:
                span.update_name(f"{request.method} {request.route}")
                span.set_attribute("http.request.method", request.method)
                span.set_attribute("http.route", request.route)
                span.set_attribute("http.response.status_code", request.status)
                span.set_attribute("penstock.request_id", request.request_id.decode("ascii"))
                if request.rows is not None:
                    span.set_attribute("messaging.batch.message_count", request.rows)
                for traceparent in request.delivered[:LINKS_MAX]:
                    self._link(span, traceparent)
                if request.status >= 500:
                    span.set_status(self._api.StatusCode.ERROR)

    def committed(self, commands: int, seconds: float) -> None:
        """Record a commit as a root span, because one batch serves many requests."""
        ended = time.time_ns()
        span = self._tracer.start_span("commit", start_time=ended - int(seconds * 1e9), context=self._context(None))
        span.set_attribute("penstock.commands", commands)
        span.end(ended)

    def close(self) -> None:
        """Flush pending spans. If the collector is down, drop them after two seconds instead of delaying shutdown."""
        sending = threading.Thread(target=self._provider.shutdown, name="penstock-spans", daemon=True)
        sending.start()
        sending.join(CLOSE_SECONDS)

    def _link(self, span: Any, traceparent: str) -> None:
        producer = self._api.get_current_span(self._context(traceparent)).get_span_context()
        if producer.is_valid:
            span.add_link(producer)

    def _context(self, traceparent: str | None) -> Any:
        from opentelemetry.context import Context

        carrier = {} if traceparent is None else {"traceparent": traceparent}
        return self._propagator.extract(carrier, context=Context())


def start_tracing() -> Tracer:
    """Return a tracer that exports spans over OTLP to OTEL_EXPORTER_OTLP_ENDPOINT."""
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        raise InvalidInput(
            "OpenTelemetry is not installed", field="otel", hint="pip install penstock-mq[otel]"
        ) from None
    # OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES override the default service name.
    found = Resource.create()
    if str(found.attributes["service.name"]).startswith("unknown_service"):
        found = found.merge(Resource({"service.name": "penstock"}))
    # No exit hook: `Tracer.close` shuts the provider down and does not wait for a collector that is down.
    provider = TracerProvider(resource=found, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return Tracer(provider)
