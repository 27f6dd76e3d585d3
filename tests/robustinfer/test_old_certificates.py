"""Certificates of 0.1, kept as they were written: they load, verify, and are written with today's words.

They were made by the half-space of `conftest.py`, at an image of grey level 150, and by three voting half-spaces.
"""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from robustinfer import Card, Certificate, InputSpec, Predictor
from robustinfer.answers import certificate_of
from robustinfer.card import CardMember
from robustinfer.errors import SettingError
from robustinfer.requests import Request

FOLDER = Path(__file__).parent / "certificates"
ONE_CLASSIFIER = ("fixed", "radius", "tolerance", "continuous")


def document(name: Any) -> Any:
    return json.loads((FOLDER / f"before-procedure-{name}.json").read_text())


@pytest.mark.parametrize("name", ONE_CLASSIFIER)
def test_a_procedure_that_was_called_mode_loads_and_verifies(
    name: Any, predictor_of: Callable[..., Predictor], half_space: Callable[..., Any]
) -> None:
    old = document(name)
    certificate = Certificate.from_json(old)
    assert certificate.procedure == old["mode"]
    replay = predictor_of(half_space).verify(certificate, np.full((1, 2, 2), 150, dtype=np.uint8))
    assert replay.ok, replay.reason
    new = certificate.to_json()
    assert (new["procedure"], "mode" in new) == (old["mode"], False)
    assert Certificate.from_json(new) == certificate


def test_betas_that_were_called_weights_load_and_verify() -> None:
    old = document("votes")
    certificate = Certificate.from_json(old)
    assert [member.beta for member in certificate.members] == [0.5, 0.3, 0.2]
    replay = voters().verify(certificate, np.full((1, 2, 2), 204, dtype=np.uint8))
    assert replay.ok, replay.reason
    assert [set(one) & {"beta", "weight"} for one in certificate.to_json()["members"]] == [{"beta"}] * 3
    assert Certificate.from_json(certificate.to_json()) == certificate


def voters() -> Any:
    class Stacked:
        name, device, batch = "members", "cpu", 64

        def scores(self, images: Any) -> Any:
            margin = images.reshape(len(images), -1)[:, :1] - np.array([0.25, 0.35, 0.45], dtype=np.float32)
            return np.stack([-margin, margin], axis=2)

    members = tuple(CardMember("half-space", beta, stage) for stage, beta in enumerate((0.5, 0.3, 0.2), start=1))
    card = Card(classes=("a", "b"), input=InputSpec(1, 2, 2), kind="votes", sigma=0.25, members=members)
    return Predictor(Stacked(), card, digest="sha256:members")


@pytest.mark.parametrize(("alpha", "sigma"), [(0.6, 0.25), (1e-12, 0.25), (0.999, 0.25), (0.001, 5e-5)])
def test_settings_that_can_no_longer_be_asked_for_verify(
    alpha: float, sigma: float, predictor_of: Callable[..., Predictor], half_space: Callable[..., Any], feed: Any
) -> None:
    """What an older version certified beyond today's limits is as true as it was; made here by the same functions."""
    predictor = predictor_of(half_space, sigma=sigma)
    image = np.full((1, 2, 2), 240, dtype=np.uint8)
    with pytest.raises(SettingError, match=r"alpha|sigma"):
        predictor.certify(image, n=500, alpha=alpha)
    request = Request(image=image, n=500, n0=20, alpha=alpha, seed=3)
    question = request.ask(predictor.card, replayed="philox4x64-10/integer")
    drawn = [0]

    def votes(count: int) -> Any:
        noisy = np.empty((count, 1, 2, 2), dtype=np.float32)
        question.draw(first := drawn[-1], noisy)
        drawn.append(first + count)
        return question.tally.count(predictor.engine.scores(noisy))

    certificate = certificate_of(predictor, question, feed(question.begin(), votes), 0.1)
    assert (certificate.label, certificate.alpha, certificate.sigma) == (1, alpha, sigma)
    replay = predictor.verify(Certificate.from_json(json.loads(json.dumps(certificate.to_json()))), image)
    assert replay.ok, replay.reason
    forged = dataclasses.replace(certificate, radius=certificate.radius + 0.1)
    assert not predictor.verify(forged, image).ok


@pytest.mark.parametrize(
    "change", [{"alpha": 0.0}, {"alpha": 1.0}, {"alpha": 5e-324}, {"sigma": 1e-200}, {"sigma": 17.0}]
)
def test_numbers_that_never_were_settings_are_refused(
    change: dict[str, float], predictor_of: Callable[..., Predictor], half_space: Callable[..., Any]
) -> None:
    predictor = predictor_of(half_space, sigma=None)
    image = np.full((1, 2, 2), 150, dtype=np.uint8)
    certificate = predictor.certify(image, n=500, sigma=0.25)
    with pytest.raises(SettingError, match=next(iter(change))):
        predictor.verify(dataclasses.replace(certificate, **change), image)  # type: ignore[arg-type]
