"""What is counted about an answer, under the names of the metrics; each engine brings the registry."""

from collections.abc import Iterator, Mapping

from robustinfer import Certificate

from .exchange import Answer

__all__ = ["METRICS", "SAMPLES_UNIT", "measures"]

SAMPLES_UNIT = 10_000

METRICS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "robust_requests_total": ("counter", "Count", ("model", "mode", "status")),
    "robust_abstentions_total": ("counter", "Count", ("model", "mode")),
    "robust_errors_total": ("counter", "Count", ("model", "code")),
    "robust_latency_seconds": ("histogram", "Seconds", ("model", "mode")),
    "robust_samples_used_10k": ("histogram", "TenThousands", ("model", "mode")),
    "robust_radius": ("histogram", "Pixels", ("model",)),
}
"""Name, and then type, unit and labels."""

Measure = tuple[str, float, Mapping[str, str]]


def measures(answer: Answer, *, model: str, seconds: float) -> Iterator[Measure]:
    """Name, value and labels of everything that one answer adds to the metrics."""
    labels = {"model": model, "mode": answer.mode, "status": str(int(answer.status))}
    yield "robust_requests_total", 1, labels
    if answer.code is not None:
        yield "robust_errors_total", 1, labels | {"code": answer.code}
        return
    yield "robust_latency_seconds", seconds, labels
    for result in answer.results:
        yield "robust_samples_used_10k", result.samples_used / SAMPLES_UNIT, labels
        if result.abstained:
            yield "robust_abstentions_total", 1, labels
        elif isinstance(result, Certificate):
            yield "robust_radius", result.radius, labels
