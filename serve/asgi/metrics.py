"""Prometheus metrics: workers write them to files of the private folder, the launcher adds them up and answers.

So a scrape never waits for a worker, and the counts of a worker that died are not lost.
"""

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, Counter, Histogram, start_http_server
from prometheus_client.multiprocess import MultiProcessCollector

from robustinfer.baseline import Baseline

from ..service.exchange import Answer
from ..service.measures import METRICS, measures
from .drift import Drift

__all__ = ["DIRECTORY", "Metrics", "MetricsPort"]

DIRECTORY = "PROMETHEUS_MULTIPROC_DIR"
"""The variable by which prometheus-client knows the folder; to be set before it is imported in a worker."""

_BUCKETS = {
    "robust_latency_seconds": (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100),
    "robust_samples_used_10k": (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100),
    "robust_radius": (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.8, 1, 1.25, 1.5, 2, 2.5, 3, 4, 6, 8),
}
_HELP = {
    "robust_requests_total": "Answers, by status.",
    "robust_abstentions_total": "Answers that are abstentions.",
    "robust_errors_total": "Requests that were refused or failed, by code.",
    "robust_latency_seconds": "Seconds from the first byte of a request to its answer.",
    "robust_samples_used_10k": "Samples per image, in units of 10,000.",
    "robust_radius": "Certified radius, in pixel units.",
}


class Metrics:
    """The metrics of one worker."""

    def __init__(self, baselines: Mapping[str, Baseline]) -> None:
        registry = CollectorRegistry()
        self._drift = Drift(baselines, registry)
        self._known: dict[tuple[str, tuple[str, ...]], Callable[[float], None]] = {}
        self._counters = {
            name: Counter(name.removesuffix("_total"), _HELP[name], labels, registry=registry)
            for name, (kind, _, labels) in METRICS.items()
            if kind == "counter"
        }
        self._histograms = {
            name: Histogram(name, _HELP[name], labels, registry=registry, buckets=_BUCKETS[name])
            for name, (kind, _, labels) in METRICS.items()
            if kind == "histogram"
        }

    def observe(self, answer: Answer, *, model: str, seconds: float) -> None:
        """Count an answer."""
        self._drift.observe(model, answer.results)
        for name, value, labels in measures(answer, model=model, seconds=seconds):
            own = tuple(labels[label] for label in METRICS[name][2])
            add = self._known.get((name, own))
            if add is None:
                add = self._known[name, own] = self._adding(name, own)
            add(value)

    def _adding(self, name: str, labels: tuple[str, ...]) -> Callable[[float], None]:
        """What adds a value to the metric with these labels; names and codes are few, so all are kept."""
        if name in self._counters:
            return self._counters[name].labels(*labels).inc
        return self._histograms[name].labels(*labels).observe


class MetricsPort:
    """Answers `GET /metrics` with what all workers have counted."""

    def __init__(self, host: str, port: int, folder: Path) -> None:
        registry = CollectorRegistry()
        MultiProcessCollector(registry, path=str(folder))  # type: ignore[no-untyped-call]
        self._server: WSGIServer
        self._thread: threading.Thread
        self._server, self._thread = start_http_server(port, addr=host, registry=registry)

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)
