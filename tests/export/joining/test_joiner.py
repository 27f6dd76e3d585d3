"""Model files as members of one: the sum of their scores, fitted betas, cards that must agree, and the command."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from robust.export import export_ensemble, export_members
from robust.export.joining.fitting import minimise_loss
from scipy.optimize import minimize_scalar

from robustinfer import Predictor
from robustinfer.card import InputSpec
from robustinfer.errors import ExportError

from ...commands import Robust
from ..conftest import make_ensemble


def member(
    path: Path, *, seed: int = 0, betas: Any = (1.0,), sampler: bool = False, opset: Any = None, **card: Any
) -> Path:
    ensemble, described = make_ensemble(betas=betas, seed=seed)
    described = dataclasses.replace(described, name=path.stem, **card)
    export_ensemble(ensemble, described, path, samples=20, sampler=sampler, opset=opset)
    return path


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two members; the second is an ensemble itself, and of another opset."""
    folder = tmp_path_factory.mktemp("members")
    return [
        member(folder / "a.onnx", seed=1, opset=18),
        member(folder / "b.onnx", seed=5, betas=(0.7, 0.3), opset=20),
    ]


def scores(path: Path, pixels: Any) -> Any:
    return Predictor.load(path, device="cpu").engine.scores(pixels)


PIXELS = np.random.default_rng(0).random((5, 1, 8, 8), dtype=np.float32)


def test_the_average_of_two_files(files: list[Path], tmp_path: Path) -> None:
    joined = export_members(files, tmp_path / "both.onnx", samples=40)
    expected = (scores(files[0], PIXELS) + scores(files[1], PIXELS)) / 2
    np.testing.assert_allclose(scores(joined.path, PIXELS), expected, atol=1e-5)
    card = Predictor.load(joined.path, device="cpu").card
    assert card.classes == Predictor.load(files[0], device="cpu").card.classes
    assert (card.name, card.sigma, card.noise_trained) == ("a-b", 0.25, True)
    # Members of an ensemble count one by one, with the betas that they have in the sum.
    assert [found.beta for found in card.members] == pytest.approx([0.5, 0.35, 0.15])
    assert [found.stage for found in card.members] == [1, 2, 3]
    sources = card.training["joined"]["members"]
    assert [source["file"] for source in sources] == ["a.onnx", "b.onnx"]
    assert sources[0]["digest"] == Predictor.load(files[0], device="cpu").digest
    assert card.parity["flips"] == 0
    assert card.parity["reference"].startswith("a.onnx, b.onnx by")
    proto = onnx.load(joined.path)
    assert [value.name for value in proto.graph.input] == ["image"]
    assert next(entry.version for entry in proto.opset_import if not entry.domain) == 20
    certificate = Predictor.load(joined.path, device="cpu").certify(np.zeros((8, 8), np.uint8), n=200, seed=1)
    assert certificate.n == 200


def test_given_betas_votes_and_a_sampler(files: list[Path], tmp_path: Path) -> None:
    joined = export_members(files, tmp_path / "weighed.onnx", betas=[2.0, -1.0], sampler=True, samples=40)
    expected = 2 * scores(files[0], PIXELS) - scores(files[1], PIXELS)
    np.testing.assert_allclose(scores(joined.path, PIXELS), expected, atol=1e-5)
    assert joined.card.sampler
    votes = export_members(files, tmp_path / "votes.onnx", votes=True, samples=40)
    assert votes.card.kind == "votes"
    assert [found.beta for found in votes.card.members] == [0.5, 0.5]
    apart = np.stack([scores(file, PIXELS) for file in files], axis=1)
    np.testing.assert_allclose(scores(votes.path, PIXELS), apart, atol=1e-5)
    with pytest.raises(ExportError, match="one number per member"):
        export_members(files, tmp_path / "no.onnx", betas=[1.0])
    one = export_members(files, tmp_path / "one.onnx", betas=[1.0, 0.0], samples=20)
    assert "b.onnx got beta 0 and is left out" in one.notes
    assert len(one.card.members) == 1


def test_betas_are_the_minimum_of_the_cross_entropy() -> None:
    """One useful member and one of noise: the first beta is that of a one-dimensional search, the second next to 0."""
    rng = np.random.default_rng(1)
    labels = rng.integers(0, 3, 4000)
    useful = np.eye(3)[labels] + rng.normal(0, 0.7, (4000, 3))
    useless = rng.normal(0, 50, (4000, 3))
    betas = minimise_loss(np.stack([useful, useless]), labels)

    def loss(beta: float) -> float:
        rows = torch.from_numpy(beta * useful)
        return float(torch.nn.functional.cross_entropy(rows, torch.from_numpy(labels)))

    best = minimize_scalar(loss, bounds=(0, 20), method="bounded").x
    assert betas[0] == pytest.approx(best, rel=0.02)
    assert 0 <= betas[1] < 0.01 * betas[0]
    # A member that is always wrong is not turned round.
    assert minimise_loss(np.stack([useful, -useful]), labels)[1] == 0


@pytest.fixture(scope="module")
def labelled(files: list[Path], tmp_path_factory: pytest.TempPathFactory) -> str:
    """Images that the first member labels, mostly: its beta should be the larger one."""
    path = tmp_path_factory.mktemp("data") / "held-out.npz"
    rng = np.random.default_rng(3)
    images = rng.integers(0, 256, (300, 8, 8), dtype=np.uint8)
    labels = scores(files[0], images[:, None] / np.float32(255)).argmax(axis=1)
    np.savez(path, test_images=images, test_labels=labels, train_images=images[:4], train_labels=np.arange(4))
    return f"npz:{path}"


def test_betas_fitted_on_held_out_images(files: list[Path], labelled: str, tmp_path: Path) -> None:
    joined = export_members(files, tmp_path / "fitted.onnx", data=labelled, samples=40)
    assert joined.fit is not None
    assert (joined.fit.fitted, joined.fit.judged, joined.fit.sigma) == (150, 150, 0.25)
    found = {row.what: row for row in joined.fit.scored}
    assert set(found) == {"fitted", "averaged", "a.onnx", "b.onnx"}
    assert found["fitted"].loss <= found["averaged"].loss
    assert found["fitted"].accuracy >= found["b.onnx"].accuracy
    total = sum(beta * scores(file, PIXELS) for file, beta in zip(files, joined.fit.betas, strict=True))
    np.testing.assert_allclose(scores(joined.path, PIXELS), total, rtol=1e-3, atol=1e-4)
    assert joined.card.evaluation["fit"]["betas"] == pytest.approx(joined.fit.betas)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"classes": ("class 1", "class 0", "class 2", "class 3")}, "same classes in another order"),
        (
            {"classes": ("class 0", "class 1", "class 2", "other")},
            "class 3 is 'other' in one and 'class 3' in",
        ),
        ({"input": InputSpec(1, 8, 8, resize="bilinear")}, r"one takes 1x8x8 pixels \(resize bilinear\), the other"),
        ({"sigma": 0.5}, "different sigmas .a.onnx 0.25, c.onnx 0.5.*choose one with --sigma"),
    ],
)
def test_cards_that_do_not_agree_are_refused(
    files: list[Path], tmp_path: Path, change: dict[str, Any], sentence: str
) -> None:
    other = member(tmp_path / "c.onnx", seed=9, **change)
    with pytest.raises(ExportError, match=sentence):
        export_members([files[0], other], tmp_path / "no.onnx")
    assert not (tmp_path / "no.onnx").exists()
    if "sigma" in change:
        joined = export_members([files[0], other], tmp_path / "chosen.onnx", sigma=0.5, samples=20)
        assert (joined.card.sigma, joined.card.noise_trained) == (0.5, False)


def test_files_that_cannot_be_members(files: list[Path], tmp_path: Path) -> None:
    ensemble, card = make_ensemble(classes=3, seed=2)
    export_ensemble(ensemble, card, tmp_path / "three.onnx", samples=20)
    with pytest.raises(ExportError, match="one has 3 classes, the other 4"):
        export_members([files[0], tmp_path / "three.onnx"], tmp_path / "no.onnx")
    export_ensemble(ensemble, card, tmp_path / "three.pt", samples=20)
    with pytest.raises(ExportError, match=r"found three.pt: export it as .onnx"):
        export_members([files[0], tmp_path / "three.pt"], tmp_path / "no.onnx")
    with pytest.raises(ExportError, match="the same model: a member counts once"):
        export_members([files[0], files[0]], tmp_path / "no.onnx")
    with pytest.raises(ExportError, match="two or more model files; found 1"):
        export_members(files[:1], tmp_path / "no.onnx")
    with pytest.raises(ExportError, match=r"into one .onnx file"):
        export_members(files, tmp_path / "no.pt")
    sampling = member(tmp_path / "sampling.onnx", seed=3, sampler=True)
    with pytest.raises(ExportError, match=r"sampling\.onnx has a sampler"):
        export_members([files[0], sampling], tmp_path / "no.onnx")
    bare = onnx.load(files[0])
    del bare.metadata_props[:]
    onnx.save(bare, tmp_path / "bare.onnx")
    with pytest.raises(ExportError, match=r"bare.onnx has no card.*robust wrap"):
        export_members([files[0], tmp_path / "bare.onnx"], tmp_path / "no.onnx")


def test_scores_that_drown_others_are_noted(files: list[Path], tmp_path: Path) -> None:
    loud = member(tmp_path / "loud.onnx", seed=4, betas=(400.0,))
    joined = export_members([files[0], loud], tmp_path / "both.onnx", samples=20)
    assert any("outweigh them: fit the betas with --data" in words for words in joined.notes)


def test_the_command(
    files: list[Path],
    labelled: str,
    tmp_path: Path,
    robust: Robust,
) -> None:
    out = tmp_path / "both.onnx"
    code, printed, errors = robust("export", "--members", *files, "--out", out, "--data", labelled, "--samples", 40)
    assert code == 0, errors
    assert "betas fitted on 150 images" in printed
    assert "averaged" in printed
    _, printed, _ = robust("export", "--members", *files, "--out", out, "--betas", "0.5,0.5", "--samples", 20, "--json")
    assert json.loads(printed)["betas"] == pytest.approx([0.5, 0.35, 0.15])
    assert "a-b" in robust("inspect", out)[1]
    for words, code, sentence in (
        ([*files, "--out", out], 2, "model files are joined with --members"),
        (["--members", *files, "--out", out, "--betas", "x"], 2, "Expected betas such as 0.7,0.3"),
        (["--members", *files, "--out", out, "--stages", "1"], 2, "--stages is for runs"),
        (["--members", *files, "--out", out, "--precision", "int8"], 2, "--precision is for runs"),
        (["--members", files[0], tmp_path / "gone.onnx", "--out", out], 2, "There is no file"),
    ):
        found, _, errors = robust("export", *words)
        assert found == code
        assert sentence in " ".join(errors.split())
