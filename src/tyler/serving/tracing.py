"""OpenTelemetry traces: a span for each request, below it one for each answer, below that one for each operator call.

This module needs the extra `otel`.
"""

import time
from collections.abc import Mapping
from typing import Any, Self

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.trace import SpanKind
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from tyler.serving.generation import Generation, router_name

NANO = 10**9


class Traces:
    """Sends spans; within a trace that the client began, where it says so (`traceparent`)."""

    def __init__(self, exporter: SpanExporter, service: str) -> None:
        self._provider = TracerProvider(resource=Resource.create({"service.name": service}))
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("tyler")

    @classmethod
    def to(cls, endpoint: str, service: str) -> Self:
        """Traces that go to an OTLP collector."""
        return cls(OTLPSpanExporter(endpoint=endpoint.rstrip("/") + "/v1/traces"), service)

    def record(self, path: str, headers: Mapping[str, str], generation: Generation, details: dict[str, Any]) -> None:
        """Note a request to `path` that has ended, and what it consisted of."""
        ended, client = time.time(), TraceContextTextMapPropagator().extract(headers)
        about = {"http.route": path, "gen_ai.response.id": generation.id, "tyler.outcome": generation.outcome}
        root = self._span(f"POST {path}", generation.started, about | details, client, SpanKind.SERVER)
        within = trace.set_span_in_context(root)
        for answer in generation.answers:
            told: dict[str, Any] = {  # in OpenTelemetry's words where it has some
                "gen_ai.usage.input_tokens": len(answer.request.prompt_ids),
                "gen_ai.usage.output_tokens": answer.generated,
                "gen_ai.response.finish_reasons": [answer.trajectory.finish_reason if answer.trajectory else "abort"],
                "gen_ai.request.temperature": answer.request.sampling.temperature,
                "tyler.latents": answer.latents,
                "tyler.router": router_name(answer.request.router),
            }
            whole = self._span("answer", generation.started, told, within)
            below = trace.set_span_in_context(whole)
            for record, done in zip(answer.invocations, answer.call_ends, strict=True):
                facts = {f"tyler.{key}": value for key, value in record.items() if value is not None}
                began = done - record["milliseconds"] / 1000
                self._span(f"operator {record['operator']}", began, facts, below).end(int(done * NANO))
            whole.end(int((answer.ended or ended) * NANO))
        root.end(int(ended * NANO))

    def _span(
        self, name: str, started: float, facts: dict[str, Any], context: Any, kind: SpanKind = SpanKind.INTERNAL
    ) -> trace.Span:
        return self._tracer.start_span(name, context, kind, facts, start_time=int(started * NANO))

    def close(self) -> None:
        """Send what is left."""
        self._provider.shutdown()
