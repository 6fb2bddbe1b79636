"""Metrics for Prometheus."""

from __future__ import annotations

import os

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

from regard.serve.batching import Observe
from regard.serve.service import Service

SHARED_FOLDER = "PROMETHEUS_MULTIPROC_DIR"  # folder in which several processes share metrics; read at import
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class Metrics:
    """The metrics of one server process, or of several that share a folder."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "regard_requests", "Requests by path and status.", ["path", "status"], registry=self.registry
        )
        self.seconds = Histogram(
            "regard_request_seconds",
            "Seconds until the response is complete.",
            ["path"],
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.characters = Counter("regard_characters", "Characters translated.", registry=self.registry)
        self.sentences = Counter(
            "regard_sentences", "Sentences translated, by model.", ["model"], registry=self.registry
        )
        self.batch = Histogram(
            "regard_batch_sentences",
            "Sentences per batch; texts per step of a language model.",
            ["model"],
            buckets=(1, 2, 4, 8, 16, 32, 64, 128, 256),
            registry=self.registry,
        )
        self.batch_seconds = Counter(
            "regard_batch_seconds", "Seconds in the engine, by model.", ["model"], registry=self.registry
        )
        self.tokens = Counter("regard_tokens", "Tokens written, by language model.", ["model"], registry=self.registry)
        self.places = Gauge(
            "regard_places_taken",
            "Requests in progress or queued.",
            registry=self.registry,
            multiprocess_mode="livesum",
        )
        self.closed = Counter(
            "regard_connections_closed",
            "Connections closed or refused, by reason: late or stalled clients, or no room.",
            ["reason"],
            registry=self.registry,
        )
        self.connections = Gauge(
            "regard_connections",
            "Open connections.",
            registry=self.registry,
            multiprocess_mode="livesum",
        )
        self.waiting = Gauge(
            "regard_waiting_tokens",
            "Tokens queued, by model.",
            ["model"],
            registry=self.registry,
            multiprocess_mode="livesum",
        )

    def observer(self, model: str) -> Observe:
        """A callback for the batcher of this model, called after each batch."""
        sentences, batch = self.sentences.labels(model), self.batch.labels(model)
        batch_seconds = self.batch_seconds.labels(model)

        def observe(count: int, jobs: int, seconds: float) -> None:
            batch.observe(count)
            batch_seconds.inc(seconds)
            sentences.inc(count)  # last, so that whoever sees the sentences counted finds the batch counted

        return observe

    def writing_observer(self, model: str) -> Observe:
        """A callback for the batcher of a language model, called after each step: tokens, texts, seconds."""
        tokens, rows, seconds_of = self.tokens.labels(model), self.batch.labels(model), self.batch_seconds.labels(model)

        def observe(count: int, texts: int, seconds: float) -> None:
            rows.observe(texts)
            seconds_of.inc(seconds)
            tokens.inc(count)

        return observe

    def render(self, service: Service) -> bytes:
        """The metrics in Prometheus's text format."""
        for served in service.models:
            self.waiting.labels(served.name).set(sum(batcher.waiting_tokens for batcher in served.batchers))
        for one in service.named:
            self.waiting.labels(one.name).set(one.batcher.waiting_tokens)
        return generate_latest(self._collected())

    def total(self, name: str) -> float:
        """The value of a metric without labels."""
        return self._collected().get_sample_value(name) or 0.0

    def _collected(self) -> CollectorRegistry:
        if not os.environ.get(SHARED_FOLDER):
            return self.registry
        together = CollectorRegistry()
        MultiProcessCollector(together)  # type: ignore[no-untyped-call]
        return together
