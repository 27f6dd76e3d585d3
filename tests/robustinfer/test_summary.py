"""The figures of a data set against closed forms and statsmodels."""

import dataclasses
import json
import math
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from statsmodels.stats.proportion import proportion_confint

from robustinfer import Predictor
from robustinfer.certificate_file import Entry, Header, read_certificates
from robustinfer.cli.summary import _table
from robustinfer.errors import CertificateError
from robustinfer.plot import certified_accuracy_figure, plot_certified_accuracy
from robustinfer.smoothing.bounds import format_radius
from robustinfer.summary import RHO, summarize

from ..commands import Robust

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


def test_figures_of_each_class(entries: list[Entry]) -> None:
    """Three images of class 0, two of them right; one image of class 1, which abstains."""
    summary = summarize(HEADER, entries, radii=[0.0, 0.1])
    zero, one = summary.classes
    assert (zero.label, zero.images, one.label, one.images) == (0, 3, 1, 1)
    assert (zero.name, one.name) == (entries[0].certificate.class_name, entries[2].certificate.class_name)
    assert zero.acr == pytest.approx((entries[0].certificate.radius + entries[1].certificate.radius) / 3)
    assert one.acr == 0
    assert [found.accuracies[0].accuracy for found in summary.classes] == pytest.approx([2 / 3, 0])
    for found, hits in ((zero, 2), (one, 0)):
        expected = [np.nan_to_num(bound) for bound in proportion_confint(hits, found.images, 0.05, method="beta")]
        assert [found.accuracies[0].low, found.accuracies[0].high] == pytest.approx(expected)
    assert summary.class_mean == pytest.approx(1 / 3)
    assert summary.to_json()["classes"][0]["accuracies"][1]["radius"] == 0.1
    # Class numbers without a name: none of these certificates has that label.
    assert summarize(HEADER, entries[3:]).classes[0].name == "1"


def test_the_table_shows_the_lowest_classes_first_and_not_all_of_many(entries: list[Entry]) -> None:
    text = _table(summarize(HEADER, entries, radii=[0.0]))
    one, zero = (entries[index].certificate.class_name for index in (2, 0))
    assert text.index(f"\n{one} ") < text.index(f"\n{zero} ")
    assert "mean over the 2 classes at radius 0: 33.3 %" in text
    many = [Entry(index, index, entries[0].certificate) for index in range(25)]
    text = _table(summarize(dataclasses.replace(HEADER, total=25), many, radii=[0.0]))
    assert "... and 5 classes with more; --json has them all" in text
    assert "mean over" not in _table(summarize(HEADER, entries[:3], radii=[0.0]))  # one class: nothing to compare


def test_decisions_are_compared_with_what_the_best_test_would_take(
    predictor_of: Callable[..., Predictor], half_space: Any, entries: list[Entry]
) -> None:
    """Beside the samples of a decided radius stands Wald's yardstick; other procedures have none."""
    predictor = predictor_of(half_space)
    decided = [
        Entry(index, 0, predictor.certify(np.full((2, 2), level, np.uint8), n=5000, radius=0.1, seed=index))
        for index, level in enumerate((0, 60, 90, 100, 105))
    ]
    summary = summarize(HEADER, decided)
    assert summary.possible is not None
    assert 0.3 * summary.samples < summary.possible < 1.3 * summary.samples
    assert f"{summary.possible / summary.samples:.0%} of what was used" in _table(summary)
    assert summarize(HEADER, entries).possible is None
    assert "Wald" not in _table(summarize(HEADER, entries))


def test_decisions_that_were_cut_short_are_in_neither_sum(
    predictor_of: Callable[..., Predictor], half_space: Any
) -> None:
    """One certificate that ctrl-C ended does not take the line of all others away, and does not change their share."""
    predictor, image, stop = predictor_of(half_space), np.full((2, 2), 60, np.uint8), threading.Event()
    finished = [
        Entry(index, 0, predictor.certify(np.full((2, 2), level, np.uint8), n=5000, radius=0.1, seed=index))
        for index, level in enumerate((0, 60, 90, 100, 105))
    ]
    cut = predictor.certify(image, n=5000, radius=0.1, seed=9, stop=stop, progress=lambda _: stop.set())
    assert (cut.stopped, cut.samples_used) == ("interrupted", cut.n0)
    late = dataclasses.replace(finished[3].certificate, stopped="deadline", seed=8)
    every, before = [*finished, Entry(5, 0, cut), Entry(6, 0, late)], summarize(HEADER, finished)
    summary = summarize(dataclasses.replace(HEADER, total=len(every)), every)
    assert before.possible is not None
    assert summary.possible is not None
    assert summary.samples == np.mean([entry.certificate.samples_used for entry in every])
    assert summary.possible / summary.samples == pytest.approx(before.possible / before.samples)
    assert summarize(HEADER, every[5:]).possible is None  # no decision was finished


def test_certify_prints_what_the_best_test_would_take(robust: Robust, linear_model: Callable[..., Path]) -> None:
    """The line of `robust certify --data`, also where one of the certificates was interrupted."""
    model = linear_model([[-1, 0, 0, 0], [1, 0, 0, 0]], [0.5, -0.5], shape=(1, 2, 2))
    pixels = np.stack([np.full((2, 2), level, np.uint8) for level in (0, 60, 90, 100, 105)])
    np.savez("set.npz", x=pixels, y=np.array([0, 0, 0, 0, 1]))
    words = ("certify", model, "--data", "npz:set.npz", "--split", "all", "--n", 5000, "--seed", 1, "--threads", 1)
    line = re.compile(
        r"^Wald's estimate of what the best test would take, if it knew the probabilities: "
        r"(\d+) samples per image, (\d+)% of what was used$",
        re.MULTILINE,
    )
    printed = robust(*words, "--radius", 0.1, "--out", "c.jsonl")
    assert printed.code == 0, printed.err
    told = line.search(printed.out)
    assert told is not None, printed.out
    _, entries = read_certificates(Path("c.jsonl"))
    used = float(np.mean([entry.certificate.samples_used for entry in entries]))
    assert 30 < int(told[2]) < 130
    assert int(told[1]) == pytest.approx(int(told[2]) / 100 * used, abs=0.005 * used + 1)
    assert line.search(robust(*words, "--out", "all.jsonl").out) is None  # all samples: there was nothing to decide
    lines = [json.loads(written) for written in Path("c.jsonl").read_text().splitlines()]
    last = entries[-1].certificate
    cut: dict[str, Any] = {
        "label": None,
        "class_name": None,
        "abstained": True,
        "radius": 0.0,
        "radius_linf": 0.0,
        "p_lower": 0.0,
    }
    cut |= {"looks": 0, "samples_used": last.n0, "counts": (0, 0), "stopped": "interrupted"}
    lines[-1]["certificate"] = dataclasses.replace(last, **cut).to_json()
    Path("cut.jsonl").write_text("".join(f"{json.dumps(written)}\n" for written in lines))
    again = robust("summary", "cut.jsonl")
    assert line.search(again.out) is not None, again
