"""The figures of a data set against closed forms and statsmodels."""

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from statsmodels.stats.proportion import proportion_confint

from robustinfer import Predictor
from robustinfer.certificate_file import Entry, Header
from robustinfer.cli.summary import _table
from robustinfer.errors import CertificateError
from robustinfer.plot import certified_accuracy_figure, plot_certified_accuracy
from robustinfer.smoothing.bounds import format_radius
from robustinfer.summary import RHO, summarize

HEADER = Header({"name": "m", "version": "1", "digest": ""}, {"n": 100}, "squares", 4, 0, 1, 4, 0)


@pytest.fixture
def entries(predictor_of: Callable[..., Predictor], half_space: Any) -> list[Entry]:
    """Two right answers with different radii, one wrong one, one abstention on the boundary."""
    predictor = predictor_of(half_space)
    certificates = [predictor.certify(np.full((2, 2), level, np.uint8), n=1000, seed=1) for level in (0, 90, 255, 128)]
    assert [certificate.label for certificate in certificates] == [0, 0, 1, None]
    return [Entry(index, truth, certificates[index]) for index, truth in enumerate((0, 0, 0, 1))]


def test_figures(entries: list[Entry]) -> None:
    summary = summarize(HEADER, entries, radii=[0.0, 0.1, 9.0])
    radii = [entries[0].certificate.radius, entries[1].certificate.radius, 0, 0]
    assert summary.acr == pytest.approx(np.mean(radii))
    assert summary.acr_low < summary.acr < summary.acr_high
    assert (summary.abstained, summary.wrong, summary.missing) == (0.25, 0.25, 0)
    assert [row.accuracy for row in summary.accuracies] == [0.5, 0.25 * sum(radius >= 0.1 for radius in radii), 0.0]
    low, high = proportion_confint(2, 4, alpha=0.05, method="beta")
    assert (summary.accuracies[0].low, summary.accuracies[0].high) == pytest.approx((low, high))


def test_the_same_certificates_in_l_inf(entries: list[Entry]) -> None:
    """Images of four values: half the radius, rounded down."""
    summary = summarize(HEADER, entries)
    radii = [entries[0].certificate.radius / 2, entries[1].certificate.radius / 2, 0, 0]
    assert summary.linf_mean is not None
    assert summary.linf_mean == pytest.approx(np.mean(radii), abs=1e-6)
    assert summary.linf_median == pytest.approx(np.median(radii), abs=1e-6)
    assert summary.linf_mean <= np.mean(radii)
    assert {"linf_mean", "linf_median"} <= summary.to_json().keys()
    assert f"in l_inf {format_radius(summary.linf_mean, 4)} on average" in _table(summary)
    old = [
        dataclasses.replace(entry, certificate=dataclasses.replace(entry.certificate, radius_linf=None))
        for entry in entries
    ]
    summary = summarize(HEADER, old)
    assert (summary.linf_mean, summary.linf_median) == (None, None)
    assert "l_inf" not in _table(summary)


def test_an_abstention_is_never_correct(entries: list[Entry]) -> None:
    assert not entries[3].correct
    assert summarize(HEADER, entries[3:], radii=[0.0]).accuracies[0].accuracy == 0


def test_high_probability_accuracy_covers(entries: list[Entry]) -> None:
    """With m independent certificates of which a share alpha is false, the bound holds but for rho."""
    m, alpha, trials = 500, 0.01, 20_000
    slack = math.log(1 / RHO)
    margin = alpha + math.sqrt(2 * alpha * (1 - alpha) * slack / m) + slack / (3 * m)
    false = np.random.default_rng(0).binomial(m, alpha, size=trials) / m
    assert (false > margin).mean() <= RHO
    assert summarize(HEADER, entries).accuracies[0].high_probability < 0.5


def test_nothing_to_summarize() -> None:
    with pytest.raises(CertificateError, match="no certificates"):
        summarize(HEADER, [])


def test_plot_shows_the_curve(entries: list[Entry], tmp_path: Path) -> None:
    figure = certified_accuracy_figure({"one": entries, "two": entries[:2]}, title="squares")
    line = figure.axes[0].lines[0]
    assert line.get_ydata()[0] == 0.5
    assert line.get_ydata()[-1] == 0.0
    assert [text.get_text() for text in figure.axes[0].get_legend().get_texts()] == ["one", "two"]
    plot_certified_accuracy({"one": entries}, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
