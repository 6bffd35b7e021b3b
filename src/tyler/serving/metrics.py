"""What a server counts, for Prometheus. Latencies are taken at the engine's steps, not when a client reads."""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from tyler.engine.base import Load
from tyler.engine.shared_engine import SharedEngine
from tyler.engine.trajectory import Trajectory

FAST = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
SLOW = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)


class Metrics:
    """One server's metrics, in a registry of its own."""

    def __init__(self, engine: SharedEngine) -> None:
        self.registry = registry = CollectorRegistry()
        counter = partial(Counter, namespace="tyler", registry=registry)
        histogram = partial(Histogram, namespace="tyler", registry=registry)

        def gauge(name: str, text: str, value: Callable[[Load], float]) -> None:
            Gauge(name, text, namespace="tyler", registry=registry).set_function(lambda: value(engine.load()))

        self.requests = counter("http_requests", "Answered HTTP requests", ("route", "status"))
        self.finished = counter("request_success", "Finished answers", ("finished_reason",))
        self.aborted = counter("request_aborted", "Answers whose client went away")
        self.failed = counter("request_failed", "Answers lost to a failure of the engine")
        self.prompt_tokens = counter("prompt_tokens", "Prompt tokens of finished answers")
        self.tokens = counter("generation_tokens", "Visible tokens of finished answers")
        self.latents = counter("latents", "Latents of finished answers")
        self.invocations = counter("invocations", "Operator calls", ("operator",))
        self.exhausted = counter("budget_exhausted", "Finished answers that spent their whole budget")
        self.first_token = histogram("time_to_first_token_seconds", "From the request to its first token", buckets=SLOW)
        self.inter_token = histogram("inter_token_latency_seconds", "Between two tokens of an answer", buckets=FAST)
        self.end_to_end = histogram("e2e_request_latency_seconds", "From the request to its end", buckets=SLOW)
        self.queue = histogram("request_queue_time_seconds", "From the request to its place in the batch", buckets=SLOW)
        self.log_lines = counter("audit_log_lines", "Lines of the audit log that are on disk")
        self.log_lost = counter("audit_log_lines_lost", "Lines of the audit log that could not be written")
        gauge("num_requests_running", "Answers being decoded", lambda load: load.running)
        gauge("num_requests_waiting", "Answers that wait for a place", lambda load: load.waiting)
        gauge("kv_cache_bytes", "Bytes that the contexts and caches of running answers take", lambda load: load.bytes)
        share = "Share of the slots' memory that contexts and caches take"
        gauge("kv_cache_usage_perc", share, lambda load: load.bytes / load.memory if load.memory else 0.0)

    def finished_answer(self, trajectory: Trajectory, asked: float, times: Sequence[float], now: float) -> None:
        """Count an answer that was asked for, had its tokens and was done at these times."""
        for earlier, later in pairwise(times):
            self.inter_token.observe(later - earlier)
        if times:
            self.first_token.observe(times[0] - asked)
        self.end_to_end.observe(now - asked)
        self.queue.observe(trajectory.queue_seconds)
        self.finished.labels(trajectory.finish_reason).inc()
        self.prompt_tokens.inc(len(trajectory.prompt_ids))
        self.tokens.inc(trajectory.num_visible)
        self.latents.inc(trajectory.num_latents)
        for invocation in trajectory.invocations:
            self.invocations.labels(invocation.operator).inc()
        if trajectory.budget and trajectory.num_invocations >= trajectory.budget:
            self.exhausted.inc()
