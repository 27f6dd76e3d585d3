"""The noise of an export is that of one seed, which nobody who certifies is likely to choose."""

import ast
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from robust.export import CascadeOptions, acceptance, export_ensemble
from robust.export.acceptance import NOISE_SEED, HeldOut, synthetic_images
from robust.export.cascade_fit import fit_cascade
from robust.export.joining.fitting import fit_betas
from robust.export.precision import calibration_copies
from robust.export.sampler import check as sampler_check
from robust.export.wrapping.noise import Photographs, under_noise

from robustinfer import Predictor
from robustinfer.card import InputSpec

from .conftest import make_ensemble

IMAGES = synthetic_images(InputSpec(1, 8, 8), 40)
LABELLED = HeldOut(IMAGES.source, IMAGES.pixels, np.arange(40) % 4)
EXPORT = Path(__file__).parents[2] / "export"


@pytest.fixture
def seeds(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The seeds of all noise that is drawn from here on, by exports and by predictors for them."""
    found: list[int] = []

    def recording(function: Any) -> Any:
        def call(*given: Any, **named: Any) -> Any:
            found.append(named["seed"])
            return function(*given, **named)

        return call

    for module, name in ((acceptance, "add_noise"), (sampler_check, "add_noise"), (sampler_check, "sampler_votes")):
        monkeypatch.setattr(module, name, recording(getattr(module, name)))
    monkeypatch.setattr(Predictor, "certify_many", recording(Predictor.certify_many))
    return found


def scores(batch: Any) -> Any:
    return batch.reshape(len(batch), -1)[:, :4]


def test_the_seed_is_an_unusual_one() -> None:
    """Of 63 bits, so that a graph can be given it as a whole number; not round in any common notation."""
    assert 2**62 < NOISE_SEED < 2**63
    for base in (2, 10, 16):
        digits = np.base_repr(NOISE_SEED, base)
        assert max(map(digits.count, digits)) < (0.75 if base == 2 else 0.5) * len(digits)


def test_whatever_is_fitted_on_noise_sees_that_of_this_seed(seeds: list[int], tmp_path: Path) -> None:
    ensemble, card = make_ensemble(betas=(1.0, 0.4, 0.7))
    predictor = Predictor.load(export_ensemble(ensemble, card, tmp_path / "plain.pt", samples=50).path)
    assert set(seeds) == {NOISE_SEED}, "acceptance"
    seeds.clear()
    calibration_copies(IMAGES, card)
    assert set(seeds) == {NOISE_SEED}, "the ranges of integers"
    seeds.clear()
    fit_cascade(lambda batch: np.stack([scores(batch)] * 2), IMAGES, CascadeOptions(), 0.25)
    assert set(seeds) == {NOISE_SEED}, "the rule of a cascade"
    seeds.clear()
    labels = predictor.scores(IMAGES.pixels).argmax(axis=1).astype(np.int64)
    fit_betas([predictor] * 2, HeldOut(IMAGES.source, IMAGES.pixels, labels), card, names=["a", "b"])
    assert set(seeds) == {NOISE_SEED}, "betas"
    seeds.clear()
    photographs = Photographs(IMAGES.source, IMAGES.pixels, None, 0)
    under_noise(scores, photographs, 0.25, copies=2, progress=lambda _: None)
    assert set(seeds) == {NOISE_SEED}, "what noise does to a wrapped classifier"


@pytest.mark.parametrize("suffix", [".pt", pytest.param(".onnx", marks=pytest.mark.slow)])
def test_whatever_is_measured_on_noise_sees_that_of_this_seed(seeds: list[int], tmp_path: Path, suffix: str) -> None:
    """Acceptance, the sampler's acceptance, and certified accuracy beside that of the float32 ensemble."""
    ensemble, card = make_ensemble(betas=(1.0, 0.4, 0.7))
    options: dict[str, Any] = {"cascade": CascadeOptions(agreement=0.95), "fitting": IMAGES, "held_out": LABELLED}
    made = export_ensemble(ensemble, card, tmp_path / f"a{suffix}", sampler=True, samples=50, **options)
    assert made.card.parity["held_out"]["count"] == 40
    assert made.card.parity["seed"] == NOISE_SEED
    assert set(seeds) == {NOISE_SEED}


def test_no_other_seed_is_written_down_in_an_export() -> None:
    """A number as `seed`, or noise from elsewhere, would be one more seed that certificates must avoid."""
    for path in EXPORT.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.keyword) and node.arg == "seed":
                assert not isinstance(node.value, ast.Constant), f"{path}:{node.value.lineno}"
            if isinstance(node, ast.Name) and "SEED" in node.id:
                assert node.id == "NOISE_SEED", f"{path}:{node.lineno}"
            if isinstance(node, ast.Attribute) and node.attr in {"default_rng", "RandomState"}:
                raise AssertionError(f"{path}:{node.lineno}")
