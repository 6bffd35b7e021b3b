"""OpenTelemetry traces: a span for each request, below it one for each answer, below that one for each operator call.

It needs the extra `otel`. Where to send them is set by `--otlp` or OpenTelemetry's own environment variables.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from tyler.serving.generation import Answer, Generation, router_name

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter

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

    def record(self, path: str, headers: Mapping[str, str], generation: Generation, details: dict[str, Any]) -> None:
        """Note a request to `path` that has ended, and what it consisted of."""
        from opentelemetry import trace
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        def span(name: str, started: float, attributes: dict[str, Any], **more: Any) -> Any:
            shown = {key: value for key, value in attributes.items() if value is not None}
            return self._tracer.start_span(name, attributes=shown, start_time=int(started * NANO), **more)

        ended, client = time.time(), TraceContextTextMapPropagator().extract(headers)
        details = {
            "http.route": path,
            "gen_ai.response.id": generation.id,
            "tyler.outcome": generation.outcome,
        } | details
        root = span(f"POST {path}", generation.started, details, context=client, kind=trace.SpanKind.SERVER)
        within = trace.set_span_in_context(root)
        for answer in generation.answers:
            whole = span("answer", generation.started, attributes_of(answer), context=within)
            below = trace.set_span_in_context(whole)
            for record, done in zip(answer.invocations, answer.call_ends, strict=True):
                facts = {f"tyler.{key}": value for key, value in record.items()}
                began = done - record["milliseconds"] / 1000
                span(f"operator {record['operator']}", began, facts, context=below).end(int(done * NANO))
            whole.end(int((answer.ended or ended) * NANO))
        root.end(int(ended * NANO))

    def close(self) -> None:
        """Send what is left."""
        self._provider.shutdown()


def attributes_of(answer: Answer) -> dict[str, Any]:
    """What is said of an answer, in OpenTelemetry's words where it has some."""
    return {
        "gen_ai.usage.input_tokens": len(answer.request.prompt_ids),
        "gen_ai.usage.output_tokens": answer.generated,
        "gen_ai.response.finish_reasons": [answer.trajectory.finish_reason] if answer.trajectory else ["abort"],
        "gen_ai.request.temperature": answer.request.sampling.temperature,
        "tyler.latents": answer.latents,
        "tyler.router": router_name(answer.request.router),
    }
