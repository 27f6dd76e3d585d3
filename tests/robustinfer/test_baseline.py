"""Baselines: what they keep, what they compare, and how far two samples of radii are apart."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from robust.export.baselines import write_baseline
from scipy import stats

from robustinfer import Certificate, Predictor
from robustinfer.baseline import Baseline
from robustinfer.errors import CardError, CertificateError, ExportError

from ..serve.models import brightness_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return brightness_model(tmp_path_factory.mktemp("baseline") / "tiny.onnx")


@pytest.fixture(scope="module")
def certificate(model: Path) -> Certificate:
    return Predictor.load(model, threads=1).certify(np.full((8, 8), 250, dtype=np.uint8), n=500, seed=1)


def some(certificate: Certificate, radii: Any) -> list[Certificate]:
    """Certificates with these radii; those of 0 abstain."""
    nothing = dataclasses.replace(certificate, label=None, class_name=None, abstained=True, radius=0.0)
    return [dataclasses.replace(certificate, radius=float(radius)) if radius else nothing for radius in radii]


def test_the_distance_is_that_of_kolmogorov_and_smirnov(certificate: Certificate) -> None:
    generator = np.random.default_rng(3)
    for shift in (0.0, 0.1, 0.5):
        held_out, recent = generator.gamma(2, 0.2, 400), generator.gamma(2, 0.2, 300) + shift
        baseline = Baseline.of(some(certificate, held_out))
        found = baseline.radius_distance(some(certificate, recent))
        assert found is not None
        assert found == pytest.approx(stats.ks_2samp(baseline.radii, recent).statistic, abs=1e-12)
        assert found == pytest.approx(stats.ks_2samp(held_out, recent).statistic, abs=0.02)
    assert baseline.radius_distance(some(certificate, held_out)) == pytest.approx(0.0, abs=0.02)
    assert baseline.radius_distance(some(certificate, [0, 0])) is None


def test_abstentions_are_compared(certificate: Certificate) -> None:
    baseline = Baseline.of(some(certificate, [0, 0.5, 0.5, 0.5]))
    assert (baseline.images, baseline.abstention, set(baseline.radii)) == (4, 0.25, {0.5})
    assert baseline.abstention_difference(some(certificate, [0, 0.5])) == 0.25
    assert Baseline.from_json(baseline.to_json()) == baseline
    with pytest.raises(CardError, match="baseline"):
        Baseline.from_json({"images": 4})


def test_only_certificates_of_the_same_settings_are_compared(certificate: Certificate) -> None:
    other = dataclasses.replace(certificate, alpha=0.01)
    assert Baseline.of([certificate]).covers(certificate)
    assert not Baseline.of([certificate]).covers(other)
    with pytest.raises(CertificateError, match="same settings"):
        Baseline.of([certificate, other])


def test_a_file_carries_it(model: Path, certificate: Certificate) -> None:
    baseline = Baseline.of([certificate])
    out = model.with_name("watched.onnx")
    write_baseline(model, out, baseline)
    before, after = Predictor.load(model, threads=1), Predictor.load(out, threads=1)
    assert after.card.baseline is not None
    assert Baseline.from_json(after.card.baseline) == baseline
    assert dataclasses.replace(after.card, baseline=None) == before.card
    images = np.full((2, 8, 8), 99, dtype=np.uint8)
    assert np.array_equal(before.scores(images), after.scores(images))
    with pytest.raises(ExportError, match="ONNX"):
        write_baseline(model, model.with_suffix(".pt"), baseline)
