"""Explanations: a warning about noise a model was not trained with, the label without noise, why there is none."""

import dataclasses
import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from robustinfer import Card, InputSpec, Predictor
from robustinfer.errors import SigmaError
from robustinfer.explanations import abstention, other_label, plain_label, untrained_noise

CARD = Card(classes=("a", "b"), input=InputSpec(1, 2, 2), sigma=0.25)
DARK = np.zeros((1, 2, 2), np.uint8)
MakePredictor = Callable[..., Predictor]


def with_card(predictor: Predictor, **changes: Any) -> Predictor:
    return Predictor(predictor.engine, dataclasses.replace(predictor.card, **changes))


def test_a_sigma_is_named_as_trained_or_warned_of() -> None:
    assert untrained_noise(CARD, 0.25) is None
    for card in (dataclasses.replace(CARD, sigma=None), dataclasses.replace(CARD, noise_trained=False)):
        assert "was not trained with noise: under sigma 0.5" in str(untrained_noise(card, 0.5))


def test_the_warning_comes_once_for_each_sigma(
    predictor_of: MakePredictor, half_space: Any, caplog: pytest.LogCaptureFixture
) -> None:
    trained = predictor_of(half_space)
    wrapped = with_card(trained, noise_trained=False)
    with caplog.at_level(logging.WARNING, logger="robustinfer"):
        trained.certify(DARK, n=200)
        assert not caplog.records
        for sigma in (None, 0.25, 0.5, 0.5):
            wrapped.certify(DARK, n=200, sigma=sigma)
    assert ["sigma 0.25" in record.message for record in caplog.records] == [True, False]
    with pytest.raises(SigmaError, match="was trained for sigma"):
        trained.certify(DARK, n=200, sigma=0.5)


def test_a_label_that_noise_changes(predictor_of: MakePredictor) -> None:
    """Class b wherever a pixel is above 1, which no image is, and noise nearly always makes one."""

    def scores(images: Any) -> Any:
        beyond = (images.reshape(len(images), -1).max(axis=1) > 1).astype(np.float32)
        return np.stack([0.5 * np.ones(len(images)), beyond], axis=1)

    predictor = predictor_of(scores, sigma=4.0)
    answer = predictor.certify(np.full((1, 2, 2), 255, np.uint8), n=1000, seed=0)
    plain = plain_label(predictor, np.full((1, 2, 2), 255, np.uint8))
    assert plain == (0, "a")
    assert answer.label == 1
    assert other_label(answer, plain) == "without noise the model says a, under sigma 4 it says b"
    assert other_label(answer, (1, "b")) is None
    assert abstention(answer, predictor.card) is None


def test_an_abstention_is_explained(predictor_of: MakePredictor) -> None:
    def scores(images: Any) -> Any:  # a coin: the sign of the noise of the first pixel
        first = images.reshape(len(images), -1)[:, 0]
        return np.stack([first, -first], axis=1)

    predictor = predictor_of(scores)
    answer = predictor.certify(DARK, n=200, bound="top-class", seed=1)
    assert answer.abstained
    votes = f"has {max(answer.counts)} of 200 votes under sigma 0.25, not clearly more than half"
    assert votes in str(abstention(answer, predictor.card))
    unsure = predictor.certify(DARK, n=200, bound="two-class", seed=1)
    assert "too close to tell which is ahead" in str(abstention(unsure, predictor.card))
    wrapped = with_card(predictor, noise_trained=False)
    assert "was not trained with noise" in str(abstention(answer, wrapped.card))
    prediction = predictor.predict(DARK, n=200, seed=1)
    assert prediction.abstained
    assert "a larger n may decide it" in str(abstention(prediction, predictor.card))
