"""The rule of a cascade: no more labels are lost than allowed, and no cheaper threshold would do."""

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from robust.export.acceptance import synthetic_images
from robust.export.cascade import Rule, margins, walk
from robust.export.cascade_fit import CascadeOptions, _thresholds, fit_cascade

from robustinfer.card import InputSpec

Terms = npt.NDArray[np.float32]


def made_up(members: int, samples: int, seed: int, noise: float = 0.7) -> Terms:
    """Scores of members that see the same evidence, each with an error of its own."""
    generator = np.random.default_rng(seed)
    evidence = generator.normal(size=(samples, 4))
    return (evidence + noise * generator.normal(size=(members, samples, 4))).astype(np.float32)


def judged(rule: Rule, terms: Terms) -> tuple[float, int]:
    asked, scores = walk(rule, terms)
    return float(asked.mean()), int((scores.argmax(1) != terms.sum(0).argmax(1)).sum())


@given(st.integers(0, 2**31), st.sampled_from([0.8, 0.9, 0.97]))
@settings(max_examples=20, deadline=None)
def test_one_threshold_is_the_best_there_is(seed: int, agreement: float) -> None:
    """Of two members every threshold can be tried: those at the margins themselves are all that differ."""
    terms = made_up(2, 60, seed)
    asked, rule = _thresholds(terms, (0, 1), agreement)
    allowed = int(np.floor((1 - agreement) * 60 + 1e-9))
    tried = [judged(Rule((0, 1), (float(limit),)), terms) for limit in [0.0, *margins(terms[0])]]
    best = min([cost for cost, lost in tried if lost <= allowed], default=2.0)
    found, lost = judged(rule, terms)
    assert lost <= allowed
    assert found == pytest.approx(asked)
    assert found == best


@given(st.integers(2, 6), st.integers(0, 2**31), st.sampled_from([0.5, 0.9, 0.99]))
@settings(max_examples=20, deadline=None)
def test_no_more_labels_are_lost_than_allowed(members: int, seed: int, agreement: float) -> None:
    terms = made_up(members, 80, seed)
    asked, rule = _thresholds(terms, tuple(range(members)), agreement)
    found, lost = judged(rule, terms)
    assert lost <= (1 - agreement) * 80 + 1e-9
    assert found == pytest.approx(asked)
    assert 1 <= found <= members


def scorer(terms: Terms) -> object:
    """A scorer that gives these terms, one batch after the other."""
    place = iter(range(0, terms.shape[1], 64))

    def score(batch: npt.NDArray[np.float32]) -> Terms:
        first = next(place)
        return terms[:, first : first + len(batch)]

    return score


IMAGES = synthetic_images(InputSpec(1, 4, 4), 200)


def test_the_member_that_settles_most_comes_first() -> None:
    generator = np.random.default_rng(0)
    evidence = generator.normal(size=(1600, 4)).astype(np.float32)
    errors = generator.normal(size=(3, 1600, 4)).astype(np.float32)
    terms = np.stack([0.1 * errors[0], evidence + 0.1 * errors[1], 0.1 * errors[2]])
    fit = fit_cascade(scorer(terms), IMAGES, CascadeOptions(agreement=0.98), 0.25)  # type: ignore[arg-type]
    assert fit.rule.order[0] == 1
    assert fit.agreement_fitted >= 0.98
    assert fit.agreement > 0.96, "of images that took no part"
    assert fit.members_asked < 1.5
    assert fit.reached[0] == 1.0
    assert list(fit.reached) == sorted(fit.reached, reverse=True)


def test_members_of_a_consensus_are_those_that_agree() -> None:
    terms = made_up(4, 1600, seed=1, noise=2.0)
    terms[3] = terms[1] * 0.9
    fit = fit_cascade(scorer(terms), IMAGES, CascadeOptions(consensus=2), 0.25)  # type: ignore[arg-type]
    assert fit.rule == Rule((1, 3, 0, 2), consensus=2)
    assert fit.reached == (1.0, 1.0, 0.0, 0.0)


def test_scores_that_are_not_numbers_leave() -> None:
    """And cast no vote, as in a plain file; they do not make others wait."""
    terms = made_up(3, 5, seed=0)
    terms[0, 2] = np.nan
    asked, scores = walk(Rule((0, 1, 2), (np.inf, 0.0)), terms)
    assert asked[2] == 2
    assert np.isnan(scores[2]).all()
    assert np.isfinite(scores[[0, 1, 3, 4]]).all()
