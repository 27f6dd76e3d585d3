"""Prometheus metrics of the answers, per model.

TorchServe has metrics of its own, but only sums. Its histograms have fixed buckets from 0.005 to 10, so each quantity
is measured in a unit that fits: latency in seconds, radii in pixel units, samples in units of 10,000 (50 to 100,000).
"""

from collections.abc import Mapping
from typing import Any

import yaml

from ..service.measures import METRICS

__all__ = ["config_text", "observe"]

_HOST = ["Level", "Hostname"]
_MODEL = ["model_name", "model_version", "hostname"]
# What TorchServe's front end reports; it fails to start if one of these is not declared.
_FRONTEND: dict[str, list[dict[str, Any]]] = {
    "counter": [
        *({"name": f"Requests{kind}XX", "unit": "Count", "dimensions": _HOST} for kind in (2, 4, 5)),
        {"name": "ts_inference_requests_total", "unit": "Count", "dimensions": _MODEL},
        {"name": "ts_inference_latency_microseconds", "unit": "Microseconds", "dimensions": _MODEL},
        {"name": "ts_queue_latency_microseconds", "unit": "Microseconds", "dimensions": _MODEL},
    ],
    "gauge": [
        {"name": "QueueTime", "unit": "Milliseconds", "dimensions": _HOST},
        {"name": "WorkerThreadTime", "unit": "Milliseconds", "dimensions": _HOST},
        {"name": "WorkerLoadTime", "unit": "Milliseconds", "dimensions": ["WorkerName", *_HOST]},
    ],
}


def config_text() -> str:
    """TorchServe's metrics configuration, as YAML."""
    own: dict[str, list[dict[str, Any]]] = {
        "gauge": [{"name": "PredictionTime", "unit": "ms", "dimensions": ["ModelName", "Level"]}]
    }
    for name, (kind, unit, labels) in METRICS.items():
        own.setdefault(kind, []).append({"name": name, "unit": unit, "dimensions": list(labels)})
    text: str = yaml.safe_dump({"dimensions": [], "ts_metrics": _FRONTEND, "model_metrics": own})
    return text


def observe(cache: Any, name: str, value: float, labels: Mapping[str, str]) -> None:
    """Add `value` to a metric of TorchServe's `cache` (its name for the registry of a worker)."""
    from ts.metrics.metric_type_enum import MetricTypes

    kind, _, names = METRICS[name]
    cache.get_metric(name, MetricTypes(kind)).add_or_update(value, [labels[label] for label in names])
