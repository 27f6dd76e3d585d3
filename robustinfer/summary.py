"""The certificates of a data set in figures: certified accuracy, average certified radius, abstentions, intervals."""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .certificate import Certificate
from .certificate_file import Entry, Header, read_certificates
from .errors import CertificateError
from .extras import require
from .smoothing.rules import FUTILITY
from .smoothing.yardstick import least_samples_of_votes

__all__ = ["RHO", "CertifiedAccuracy", "ClassSummary", "Summary", "accuracy_interval", "merge", "percent", "summarize"]

CONFIDENCE = 0.95
_CUT_SHORT = frozenset({"interrupted", "deadline"})
RHO = 0.001  # probability with which the high-probability accuracy may fail


@dataclass(frozen=True)
class CertifiedAccuracy:
    """Certified accuracy at one radius: the share of images whose label is true and certified at that radius.

    `low` and `high` are a Clopper-Pearson interval for the accuracy on all images of this kind. `high_probability` is
    Cohen et al.'s variant: with probability 1 - rho over the noise, at least this share of these very images is
    certified correctly.
    """

    radius: float
    accuracy: float
    low: float
    high: float
    high_probability: float


@dataclass(frozen=True)
class ClassSummary:
    """The images of one class: their average certified radius, and certified accuracy at the radii of the whole.

    `name` is what the certificates call the class; its number, if none of them has its label. An interval is about one
    class: of twenty such intervals one may miss.
    """

    label: int
    name: str
    images: int
    acr: float
    accuracies: tuple[CertifiedAccuracy, ...]


@dataclass(frozen=True)
class Summary:
    """A data set's certificates in figures. `acr` is the average certified radius, with wrong labels counted as 0.

    `classes` has the same for each class that has images. `class_mean` is the mean over classes of certified accuracy
    at the smallest radius: what `accuracies` would say if all classes had equally many images.
    `linf_mean` and `linf_median` are what the same certificates prove in l_inf norm, counted the same way: r / sqrt(d)
    for images of d values. They are None where older certificates do not say it.

    `possible` is Wald's estimate of the mean number of samples with which the best test would have decided the
    requested radius at this alpha (`smoothing/yardstick.py`), those that choose the label included. It is no bound:
    `samples` can be less. Certificates that a clock or a person cut short decided nothing, and are left out: `possible`
    is to `samples` as the estimates of the others are to what these used. None for other procedures, where members
    vote, and where no decision was finished.
    """

    images: int
    missing: int
    acr: float
    acr_low: float
    acr_high: float
    linf_mean: float | None
    linf_median: float | None
    abstained: float
    wrong: float
    samples: float
    possible: float | None
    seconds: float
    sigma: float
    alpha: float
    bound: str
    procedure: str
    data: str
    model: dict[str, str]
    accuracies: tuple[CertifiedAccuracy, ...]
    class_mean: float
    classes: tuple[ClassSummary, ...]

    def to_json(self) -> dict[str, Any]:
        """The summary as a JSON object."""
        return dataclasses.asdict(self)


def merge(paths: Sequence[Path]) -> tuple[Header, list[Entry]]:
    """Put the files of several shards together, after checking that they belong together."""
    if not paths:
        raise CertificateError("There are no certificates to summarise.")
    parts = [read_certificates(path) for path in paths]
    first = parts[0][0]
    for path, (header, _) in zip(paths, parts, strict=True):
        other = first.difference(header)
        if other is not None:
            raise CertificateError(f"{path} and {paths[0]} are not of the same {other}.")
    entries = sorted((entry for _, part in parts for entry in part), key=lambda entry: entry.index)
    if len({entry.index for entry in entries}) < len(entries):
        raise CertificateError("Two of these files hold certificates of the same image: pass each shard once.")
    return first, entries


def summarize(header: Header, entries: Sequence[Entry], *, radii: Sequence[float] | None = None) -> Summary:
    """The figures of a data set's certificates."""
    if not entries:
        raise CertificateError("There are no certificates to summarise.")
    certificates = [entry.certificate for entry in entries]
    correct = np.array([entry.correct_radius for entry in entries])
    one = certificates[0]
    acr, acr_low, acr_high = _mean_interval(correct)
    linf = _linf(entries)
    chosen = list(radii or _radii(correct))
    classes = _classes(entries, chosen, one.alpha)
    return Summary(
        images=len(entries),
        missing=header.total - len(entries),
        acr=acr,
        acr_low=acr_low,
        acr_high=acr_high,
        linf_mean=None if linf is None else float(np.mean(linf)),
        linf_median=None if linf is None else float(np.median(linf)),
        abstained=float(np.mean([certificate.abstained for certificate in certificates])),
        wrong=float(np.mean([entry.certificate.label not in (None, entry.truth) for entry in entries])),
        samples=float(np.mean([certificate.samples_used for certificate in certificates])),
        possible=_possible(certificates),
        seconds=float(sum(certificate.seconds for certificate in certificates)),
        sigma=one.sigma,
        alpha=one.alpha,
        bound=one.bound,
        procedure=one.procedure,
        data=header.data_name,
        model=header.model,
        accuracies=tuple(_accuracy(entries, radius, one.alpha) for radius in chosen),
        class_mean=float(np.mean([found.accuracies[0].accuracy for found in classes])),
        classes=classes,
    )


def _classes(entries: Sequence[Entry], radii: Sequence[float], alpha: float) -> tuple[ClassSummary, ...]:
    labelled = (entry.certificate for entry in entries)
    names = {found.label: found.class_name for found in labelled if found.label is not None and found.class_name}
    members: dict[int, list[Entry]] = {}
    for entry in entries:
        members.setdefault(entry.truth, []).append(entry)
    return tuple(
        ClassSummary(
            label=label,
            name=names.get(label, str(label)),
            images=len(own),
            acr=float(np.mean([entry.correct_radius for entry in own])),
            accuracies=tuple(_accuracy(own, radius, alpha) for radius in radii),
        )
        for label, own in sorted(members.items())
    )


def _possible(certificates: Sequence[Certificate]) -> float | None:
    """The mean of the least samples that the decisions could have taken.

    What was cut short used less than its decision takes, and its few votes say little about that, so it is in neither
    sum. The share that the finished decisions give is an estimate for all: of the same images for both sums, but of
    too few hard ones if clocks cut many of these.
    """
    least = used = 0.0
    for one in certificates:
        if one.procedure != "radius" or one.requested is None or one.members:
            return None
        if one.stopped in _CUT_SHORT:
            continue
        votes = sorted((*one.counts, one.invalid), reverse=True)
        found = least_samples_of_votes(
            votes[0],
            votes[1] if one.bound == "two-class" else None,
            one.samples_used - one.n0,
            sigma=one.sigma,
            radius=one.requested,
            n=one.n,
            alpha=one.alpha,
            futility=FUTILITY,
        )
        least += one.n0 + found
        used += one.samples_used
    mean = float(np.mean([one.samples_used for one in certificates]))
    return least / used * mean if used else None


def _linf(entries: Sequence[Entry]) -> list[float] | None:
    """The l_inf radius within which each label is certified and true, 0 otherwise; None if a certificate has none."""
    radii = [entry.certificate.radius_linf if entry.correct else 0.0 for entry in entries]
    known = [radius for radius in radii if radius is not None]
    return known if len(known) == len(radii) else None


def percent(rate: float, *, failure: bool = False) -> str:
    """A rate in per cent with one digit, a success rounded down and a failure up: no figure looks better than it is."""
    tenths = math.ceil(1000 * rate - 1e-9) if failure else math.floor(1000 * rate + 1e-9)
    return f"{tenths / 10:.1f} %"


def accuracy_interval(hits: Any, count: int) -> tuple[Any, Any]:
    """The Clopper-Pearson interval for the accuracy on all images of this kind, if `hits` of `count` were right."""
    statistics = require("statsmodels.stats.proportion", extra="report", why="Confidence intervals")
    low, high = statistics.proportion_confint(hits, count, alpha=1 - CONFIDENCE, method="beta")
    return np.nan_to_num(low), high


def _radii(correct: Any) -> list[float]:
    """From 0 in steps of a quarter, as published tables have them, up to where nothing is certified."""
    return [0.25 * step for step in range(int(correct.max() / 0.25) + 2)]


def _accuracy(entries: Sequence[Entry], radius: float, alpha: float) -> CertifiedAccuracy:
    hits, count = sum(entry.correct and entry.correct_radius >= radius for entry in entries), len(entries)
    low, high = accuracy_interval(hits, count)
    return CertifiedAccuracy(
        radius, hits / count, float(low), float(high), _high_probability(hits / count, count, alpha)
    )


def _high_probability(accuracy: float, count: int, alpha: float) -> float:
    """Each certificate fails with probability alpha, independently: Bernstein's inequality on the number of failures.

    Cohen et al. have it without the factor 2, which their inequality needs.
    """
    slack = math.log(1 / RHO)
    return max(0.0, accuracy - alpha - math.sqrt(2 * alpha * (1 - alpha) * slack / count) - slack / (3 * count))


def _mean_interval(values: Any) -> tuple[float, float, float]:
    statistics = require("statsmodels.stats.weightstats", extra="report", why="A summary with confidence intervals")
    mean = float(values.mean())
    if len(values) < 2 or values.std() == 0:
        return mean, mean, mean
    low, high = statistics.DescrStatsW(values).tconfint_mean(alpha=1 - CONFIDENCE)
    return mean, float(low), float(high)
