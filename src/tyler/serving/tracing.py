"""OpenTelemetry traces: a span for each request, below it one for each answer, below that one for each operator call.

It needs the extra `otel`. Where to send them is set by `--otlp` or OpenTelemetry's own environment variables.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter

    from tyler.serving.generation import Answer

NANO = 10**9


class Traces:
    """Sends spans; within a trace that the client began, where it says so (`traceparent`)."""

    def __init__(self, exporter: SpanExporter, service: str) -> None:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        self._provider = TracerProvider(resource=Resource.create({"service.name": service}))
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("tyler")

    @classmethod
    def to(cls, endpoint: str, service: str) -> Traces:
        """Traces that go to an OTLP collector. Raises ValueError where the packages are missing."""
        if find_spec("opentelemetry.exporter.otlp.proto.http") is None:
            raise ValueError("--otlp needs more packages: pip install 'tyler-reasoning[otel]'")
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

        return cls(OTLPSpanExporter(endpoint=endpoint.rstrip("/") + "/v1/traces"), service)

    def record(
        self,
        name: str,
        headers: Mapping[str, str],
        started: float,
        ended: float,
        attributes: dict[str, Any],
        answers: Sequence[Answer],
    ) -> None:
        """Note a request that has ended, and what it consisted of; times in seconds since 1970."""
        from opentelemetry import trace
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        context = TraceContextTextMapPropagator().extract(headers)
        root = self._span(name, started, attributes, context, trace.SpanKind.SERVER)
        within = trace.set_span_in_context(root)
        for answer in answers:
            span = self._span("answer", answer.started, answer.span_attributes(), within)
            below = trace.set_span_in_context(span)
            for operator, began, done, details in answer.calls:
                self._span(f"operator {operator}", began, details, below).end(int(done * NANO))
            span.end(int(answer.ended * NANO))
        root.end(int(ended * NANO))

    def _span(self, name: str, started: float, attributes: dict[str, Any], context: Any, kind: Any = None) -> Any:
        from opentelemetry.trace import SpanKind

        shown = {key: value for key, value in attributes.items() if value is not None}
        return self._tracer.start_span(
            name, context, kind or SpanKind.INTERNAL, attributes=shown, start_time=int(started * NANO)
        )

    def close(self) -> None:
        """Send what is left."""
        self._provider.shutdown()
