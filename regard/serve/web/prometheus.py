"""What is counted, for Prometheus."""

from __future__ import annotations

import os

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

from regard.serve.batching import Observe
from regard.serve.service import Service

SHARED = "PROMETHEUS_MULTIPROC_DIR"  # names the folder where several processes add up what they count; read when it is imported
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class Metrics:
    """Of one server process, in a registry of its own, or of several together."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "regard_requests", "Requests by path and status.", ["path", "status"], registry=self.registry
        )
        self.seconds = Histogram(
            "regard_request_seconds", "Time to the answer.", ["path"], buckets=_SECONDS, registry=self.registry
        )
        self.characters = Counter("regard_characters", "Characters that were translated.", registry=self.registry)
        self.sentences = Counter("regard_sentences", "Sentences by model.", ["model"], registry=self.registry)
        self.batch = Histogram(
            "regard_batch_sentences",
            "Sentences that were computed together.",
            ["model"],
            buckets=(1, 2, 4, 8, 16, 32, 64, 128, 256),
            registry=self.registry,
        )
        self.batch_seconds = Counter("regard_batch_seconds", "Time in the engine.", ["model"], registry=self.registry)
        self.places = Gauge(
            "regard_places_taken",
            "Requests that are worked on or wait.",
            registry=self.registry,
            multiprocess_mode="livesum",
        )
        self.waiting = Gauge(
            "regard_waiting_tokens",
            "Tokens that wait, by model.",
            ["model"],
            registry=self.registry,
            multiprocess_mode="livesum",
        )

    def observer(self, model: str) -> Observe:
        """What a batcher tells of its batches."""
        sentences, batch = self.sentences.labels(model), self.batch.labels(model)
        batch_seconds = self.batch_seconds.labels(model)

        def observe(count: int, jobs: int, seconds: float) -> None:
            batch.observe(count)
            batch_seconds.inc(seconds)
            sentences.inc(count)  # last: whoever sees its sentences counted finds their batches counted too

        return observe

    def page(self, service: Service) -> bytes:
        for (source, target), served in service.pairs.items():
            self.waiting.labels(f"{source}-{target}").set(sum(batcher.waiting_tokens for batcher in served.batchers))
        return generate_latest(self._collected())

    def total(self, name: str) -> float:
        """A counter without labels."""
        return self._collected().get_sample_value(name) or 0.0

    def _collected(self) -> CollectorRegistry:
        if not os.environ.get(SHARED):
            return self.registry
        together = CollectorRegistry()
        MultiProcessCollector(together)  # type: ignore[no-untyped-call]
        return together
