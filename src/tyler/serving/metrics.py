"""What a server counts, for Prometheus. Latencies are taken at the engine's steps, not when a client reads."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from tyler.engine.request import Event, FinishEvent, InvocationEvent, TokenEvent
from tyler.engine.shared_engine import SharedEngine
from tyler.engine.trajectory import Trajectory

FAST = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
SLOW = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)


class Metrics:
    """One server's metrics, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"tyler_{name}", text, labels, registry=registry)

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(f"tyler_{name}", text, registry=registry, buckets=buckets)

        def gauge(name: str, text: str) -> Gauge:
            return Gauge(f"tyler_{name}", text, registry=registry)

        self.requests = counter("http_requests", "Answered HTTP requests", "route", "status")
        self.finished = counter("request_success", "Finished answers", "finished_reason")
        self.aborted = counter("request_aborted", "Answers whose client went away")
        self.failed = counter("request_failed", "Answers lost to a failure of the engine")
        self.prompt_tokens = counter("prompt_tokens", "Prompt tokens of finished answers")
        self.tokens = counter("generation_tokens", "Visible tokens of finished answers")
        self.latents = counter("latents", "Latents of finished answers")
        self.invocations = counter("invocations", "Operator calls", "operator")
        self.exhausted = counter("budget_exhausted", "Finished answers that spent their whole budget")
        self.first_token = histogram("time_to_first_token_seconds", "From the request to its first token", SLOW)
        self.inter_token = histogram("inter_token_latency_seconds", "Between two tokens of an answer", FAST)
        self.end_to_end = histogram("e2e_request_latency_seconds", "From the request to its end", SLOW)
        self.queue = histogram("request_queue_time_seconds", "From the request to its place in the batch", SLOW)
        self.log_lines = counter("audit_log_lines", "Lines of the audit log that are on disk")
        self.log_lost = counter("audit_log_lines_lost", "Lines of the audit log that could not be written")
        self._running = gauge("num_requests_running", "Answers being decoded")
        self._waiting = gauge("num_requests_waiting", "Answers that wait for a place")
        self._cache = gauge("kv_cache_usage_perc", "Share of the slots' memory that contexts and caches take")
        self._cache_bytes = gauge("kv_cache_bytes", "Bytes that the contexts and caches of running answers take")

    def expose(self, engine: SharedEngine) -> bytes:
        """The text that Prometheus reads."""
        load = engine.load()
        self._running.set(load.running)
        self._waiting.set(load.waiting)
        self._cache_bytes.set(load.bytes)
        self._cache.set(load.bytes / load.memory if load.memory else 0.0)
        return generate_latest(self.registry)


class Stopwatch:
    """Takes the times of one answer as its events come."""

    def __init__(self, metrics: Metrics, asked: float) -> None:
        self._metrics, self.asked = metrics, asked
        self._last: float | None = None
        self.first_token_seconds: float | None = None

    def see(self, event: Event, now: float) -> None:
        """Note an event that the engine gave at `now`."""
        match event:
            case TokenEvent():
                self._token(now)
            case InvocationEvent(invocation=invocation):
                self._metrics.invocations.labels(invocation.operator).inc()
            case FinishEvent(trajectory=trajectory):
                self._finish(trajectory, now)

    def _token(self, now: float) -> None:
        if self._last is None:
            self.first_token_seconds = now - self.asked
            self._metrics.first_token.observe(self.first_token_seconds)
        else:
            self._metrics.inter_token.observe(now - self._last)
        self._last = now

    def _finish(self, trajectory: Trajectory, now: float) -> None:
        metrics = self._metrics
        metrics.end_to_end.observe(now - self.asked)
        metrics.queue.observe(trajectory.queue_seconds)
        metrics.finished.labels(trajectory.finish_reason).inc()
        metrics.prompt_tokens.inc(len(trajectory.prompt_ids))
        metrics.tokens.inc(trajectory.num_visible)
        metrics.latents.inc(trajectory.num_latents)
        if trajectory.budget and trajectory.num_invocations >= trajectory.budget:
            metrics.exhausted.inc()
