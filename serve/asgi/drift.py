"""Watching for drift: how far the last certificates of a model are from the baseline in its card."""

from collections import deque
from collections.abc import Mapping, Sequence

from prometheus_client import CollectorRegistry, Gauge

from robustinfer import Certificate
from robustinfer.baseline import Baseline

from ..service.exchange import Result

__all__ = ["Drift"]

_WINDOW = 1000  # certificates that are compared, the last ones
_EVERY = 10  # certificates between two comparisons


class Drift:
    """Gauges of one worker: the distance of the last certificates from the baseline, and how many these are.

    Of several workers, the one that compared last is exported, until it ends.
    """

    def __init__(self, baselines: Mapping[str, Baseline], registry: CollectorRegistry) -> None:
        self._baselines = dict(baselines)
        self._recent: dict[str, deque[Certificate]] = {name: deque(maxlen=_WINDOW) for name in baselines}
        self._seen = dict.fromkeys(baselines, 0)

        def gauge(name: str, text: str) -> Gauge:
            return Gauge(name, text, ("model",), registry=registry, multiprocess_mode="livemostrecent")

        self._abstention = gauge("robust_drift_abstention", "Share of abstentions, less that of the baseline.")
        self._radius = gauge("robust_drift_radius", "Kolmogorov's distance of the radii from those of the baseline.")
        self._answers = gauge("robust_drift_answers", "Certificates that were compared with the baseline.")

    def observe(self, model: str, results: Sequence[Result]) -> None:
        """Certificates that were just made; those of other settings than the baseline's do not count."""
        baseline = self._baselines.get(model)
        if baseline is None:
            return
        for result in results:
            if isinstance(result, Certificate) and baseline.covers(result):
                self._recent[model].append(result)
                self._seen[model] += 1
                if self._seen[model] % _EVERY == 0:
                    self._compare(model, baseline)

    def _compare(self, model: str, baseline: Baseline) -> None:
        recent = list(self._recent[model])
        self._answers.labels(model).set(len(recent))
        self._abstention.labels(model).set(baseline.abstention_difference(recent))
        distance = baseline.radius_distance(recent)
        if distance is not None:
            self._radius.labels(model).set(distance)
