"""Fitting a cascade: the order of the members, and the margins at which samples leave, on noisy held-out images.

The fewest members are asked subject to a share of samples that must keep the label of the plain ensemble. For a price
per lost label the best threshold of one step, given the others, is a prefix of the samples by decreasing margin; steps
take turns, and the price is found by bisection. Every other image is left out of the fit, and judges it.
"""

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from robustinfer.errors import ArgumentError, ExportError
from robustinfer.images import in_batches

from .acceptance import Images, noisy_copies
from .cascade import Rule, Terms, margins, walk

__all__ = ["CascadeFit", "CascadeOptions", "Scorer", "check_fitting", "check_members", "fit_cascade"]

_FEWEST = 20
_COPIES = 8  # noisy copies of each image
_BATCH = 64
_SWEEPS = 4
_PRICES = (1e-2, 1e5)  # in members per lost label
_BISECTIONS = 16

Scorer = Callable[[npt.NDArray[np.float32]], Terms]
"""A batch of images to beta_t f_t of every member, (members, images, classes)."""

Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class CascadeOptions:
    """What a cascade is to keep: the share of noisy samples with the plain ensemble's label; or leave by consensus."""

    agreement: float = 0.999
    consensus: int = 0

    def __post_init__(self) -> None:
        if not 0.5 <= self.agreement < 1:
            raise ArgumentError(f"The agreement of a cascade is a share from 0.5 to below 1; found {self.agreement:g}.")


def check_members(count: int, options: CascadeOptions) -> None:
    """Refuse too few members for a cascade, or for its consensus."""
    if count < 2:
        raise ExportError(
            f"A cascade asks two or more members one after the other; found {count}: export more stages of a run that "
            "has them, or leave --cascade out."
        )
    if options.consensus and not 2 <= options.consensus < count:
        possible = f"2 to {count - 1} of {count} members" if count > 2 else "at least 2 of 3 or more members"
        raise ExportError(
            f"A consensus is that of {possible}; found {options.consensus} of {count}. Without --consensus samples "
            "leave by margins."
        )


def check_fitting(images: Images) -> None:
    """Refuse too few images to fit a cascade on."""
    if len(images.pixels) < _FEWEST:
        raise ExportError(
            f"A cascade is fitted on at least {_FEWEST} held-out images; {images.source} has {len(images.pixels)}. A "
            "training holds out the part of its data that the field `validation` of its recipe says: train with more, "
            "or leave --cascade out."
        )


@dataclass(frozen=True)
class CascadeFit:
    """A fitted rule, and what it does. `agreement` and `reached`, the share of samples that each member in its order is
    asked of, are those of images that took no part in the fit; `agreement_fitted` is that of those which did."""

    rule: Rule
    agreement: float
    agreement_fitted: float
    reached: tuple[float, ...]
    images: str
    fitted: int
    judged: int
    copies: int
    sigma: float | None

    @property
    def members_asked(self) -> float:
        """Members per sample, on average."""
        return sum(self.reached)

    def to_json(self) -> dict[str, Any]:
        """The figures as they stand in the card, beside the rule."""
        figures = {name: value for name, value in dataclasses.asdict(self).items() if name != "rule"}
        return figures | {"reached": list(self.reached), "members_asked": round(self.members_asked, 4)}


def fit_cascade(scorer: Scorer, images: Images, options: CascadeOptions, sigma: float | None) -> CascadeFit:
    """The rule that asks the fewest members, fitted on noisy copies of every other image and judged on the rest."""
    count = len(images.pixels)
    check_fitting(images)
    terms, owners = _scores(scorer, images, sigma)
    check_members(len(terms), options)
    fitted = owners % 2 == 0
    own = terms[:, fitted]
    rule = _consensus(own, options.consensus) if options.consensus else _ordered(own, options.agreement)
    asked, agreement = _judged(rule, terms[:, ~fitted])
    reached = tuple(round(float(np.mean(asked > step)), 4) for step in range(len(terms)))
    return CascadeFit(
        rule=rule,
        agreement=round(agreement, 4),
        agreement_fitted=round(_judged(rule, own)[1], 4),
        reached=reached,
        images=images.source,
        fitted=(count + 1) // 2,
        judged=count // 2,
        copies=1 if sigma is None else _COPIES,
        sigma=sigma,
    )


def _scores(scorer: Scorer, images: Images, sigma: float | None) -> tuple[Terms, npt.NDArray[np.int64]]:
    """The members' terms of noisy copies, or of the images themselves without a sigma; and the image of each."""
    parts, owners = [], []
    for numbers, batch in _batches(images, sigma):
        parts.append(scorer(batch))
        owners += numbers
    return np.concatenate(parts, axis=1), np.array(owners, dtype=np.int64)


def _batches(images: Images, sigma: float | None) -> Iterator[tuple[list[int], npt.NDArray[np.float32]]]:
    if sigma is None:
        for first, batch in in_batches(images.pixels, _BATCH):
            yield list(range(first, first + len(batch))), batch * np.float32(1 / 255)
        return
    waiting: list[tuple[int, npt.NDArray[np.float32]]] = []
    for number, _, noisy in noisy_copies(images, sigma, _COPIES * len(images.pixels)):
        waiting.append((number, noisy))
        if len(waiting) * _COPIES >= _BATCH or number == len(images.pixels) - 1:
            numbers = [owner for owner, rows in waiting for _ in rows]
            yield numbers, np.concatenate([rows for _, rows in waiting])
            waiting = []


def _judged(rule: Rule, terms: Terms) -> tuple[npt.NDArray[np.int64], float]:
    """Members asked of each sample, and the share of samples with the plain ensemble's label."""
    asked, scores = walk(rule, terms)
    plain = terms.sum(axis=0).argmax(axis=1)
    return asked, float(np.mean(scores.argmax(axis=1) == plain))


def _consensus(terms: Terms, size: int) -> Rule:
    """The members that agree most often come first: the others are asked only where they do not."""
    count = len(terms)
    labels = terms.argmax(axis=2)
    groups = itertools.combinations(range(count), size)
    first = max(groups, key=lambda group: float(np.mean((labels[list(group)] == labels[group[0]]).all(axis=0))))
    return Rule((*first, *(other for other in range(count) if other not in first)), consensus=size)


def _ordered(terms: Terms, agreement: float) -> Rule:
    """Member by member, the one that comes next so that the fewest are asked, with thresholds fitted to each trial."""
    order = list(range(len(terms)))
    best: tuple[float, Rule] | None = None
    for place in range(len(order) - 1):
        trials = []
        for candidate in order[place:]:
            rest = [member for member in order[place:] if member != candidate]
            trials.append(_thresholds(terms, (*order[:place], candidate, *rest), agreement))
        best = min([*trials, *([best] if best else [])], key=lambda trial: trial[0])
        order = list(best[1].order)
    assert best is not None
    return best[1]


def _thresholds(terms: Terms, order: tuple[int, ...], agreement: float) -> tuple[float, Rule]:
    """Members asked per sample, and the rule, for one order: the cheapest that loses no more labels than allowed."""
    totals = np.cumsum(terms[list(order)], axis=0, dtype=np.float32)
    plain = totals[-1].argmax(axis=1)
    steps = _Steps(margins(totals[:-1]), totals[:-1].argmax(axis=2) != plain)
    allowed = math.floor((1 - agreement) * len(plain) + 1e-9)
    low, high = map(math.log, _PRICES)
    best = (float(len(terms)), (math.inf,) * (len(order) - 1))
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        asked, lost, found = steps.fit(math.exp(middle))
        if lost <= allowed:
            best, high = min(best, (asked, found)), middle
        else:
            low = middle
    asked, _, found = steps.spend(np.array(best[1], np.float32), allowed)
    return asked, Rule(order, found)


class _Steps:
    """Margins and lost labels of every step before the last, (steps, samples), and thresholds for a price."""

    def __init__(self, margin: Terms, lost: Flags) -> None:
        self.margin, self.lost = margin, lost
        self.falling = np.argsort(-margin, axis=1, kind="stable")

    def fit(self, price: float) -> tuple[float, int, tuple[float, ...]]:
        """Members asked per sample, lost labels, and thresholds, if a lost label costs as much as `price` members."""
        thresholds = np.full(len(self.margin), np.inf, np.float32)
        for _ in range(_SWEEPS):
            before = thresholds.copy()
            for step in range(len(thresholds)):
                saved, lost, limits = self._prefixes(step, thresholds)
                thresholds[step] = limits[int((saved - price * lost).argmax())]
            if np.array_equal(before, thresholds):
                break
        return self._result(thresholds)

    def _result(self, thresholds: Terms) -> tuple[float, int, tuple[float, ...]]:
        left, lost = self._later(-1, thresholds)
        return float(np.mean(left + 1)), int(lost.sum()), tuple(map(float, thresholds))

    def _later(self, step: int, thresholds: Terms) -> tuple[npt.NDArray[np.int64], Flags]:
        """The step after `step` at which each sample would leave, and whether its label would be lost."""
        steps, samples = self.margin.shape
        left, lost = np.full(samples, steps, np.int64), np.zeros(samples, np.bool_)
        for later in range(steps - 1, step, -1):
            leaves = self.margin[later] > thresholds[later]
            left[leaves], lost[leaves] = later, self.lost[later][leaves]
        return left, lost

    def spend(self, thresholds: Terms, allowed: int) -> tuple[float, int, tuple[float, ...]]:
        """The same, with each threshold in turn lowered as far as the labels that may still be lost let it."""
        for step in range(len(thresholds)):
            saved, lost, limits = self._prefixes(step, thresholds)
            thresholds[step] = limits[int(np.where(lost <= allowed, saved, -1).argmax())]
        return self._result(thresholds)

    def _prefixes(
        self, step: int, thresholds: Terms
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.float64]]:
        """Who may leave at one step, given the others: nobody, or those with the largest margins. For each choice the
        members it saves, the labels that are lost in all, and the threshold."""
        alive: Flags = np.logical_not((self.margin[:step] > thresholds[:step, None]).any(axis=0))
        before, gone = self._later(-1, thresholds)[1][~alive].sum(), self._later(step, thresholds)
        falling = self.falling[step][alive[self.falling[step]]]
        left, lost, margin = gone[0][falling], gone[1][falling], self.margin[step][falling].astype(np.float64)
        saved = np.concatenate([[0], np.cumsum(left - step)])
        change = np.concatenate([[0], np.cumsum(self.lost[step][falling].astype(np.int64) - lost)])
        lower = np.append(margin[1:], 0.0)[: len(margin)]
        middles = np.float32((margin + lower) / 2).astype(np.float64)
        limits = np.concatenate([[np.inf], np.where(middles < margin, middles, lower)])
        apart = np.concatenate([[True], margin > lower])  # samples of one margin leave together
        return saved[apart], (before + lost.sum() + change)[apart], limits[apart]
