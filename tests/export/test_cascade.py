"""Cascades: files that ask members one after the other, row by row, and are certified as what they are."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
import pytest
import torch
from robust.export import CascadeOptions, Rule, export_ensemble, export_run
from robust.export.acceptance import HeldOut, Images, synthetic_images
from robust.export.cascade import CascadeReference, walk
from robust.serve.service.limits import Limits
from robust.serve.service.state import State
from robust.serve.service.worker import Incoming, Worker
from robust.train.members.ensemble import Ensemble
from robust.train.runs.run import Run
from torch import Tensor, nn

from robustinfer import Predictor
from robustinfer.card import Card, InputSpec
from robustinfer.cli.main import app
from robustinfer.engines.inspection import inspect_model
from robustinfer.errors import ArgumentError, ExportError

from .conftest import make_ensemble, make_heads

IMAGES = synthetic_images(InputSpec(1, 8, 8), 40)
BETAS = (1.0, -0.4, 0.7)
Made = dict[str, Any]


def noisy(count: int, seed: int = 0) -> npt.NDArray[np.float32]:
    return np.random.default_rng(seed).normal(0.5, 0.3, (count, 1, 8, 8)).astype(np.float32)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """One ensemble as several cascades; labels of the held-out images are its own, so that some are certified."""
    folder, (ensemble, card) = tmp_path_factory.mktemp("cascade"), make_ensemble(betas=BETAS)
    with torch.inference_mode():
        labels = ensemble(torch.from_numpy(IMAGES.pixels / np.float32(255))).argmax(1).numpy()
    held_out = HeldOut(IMAGES.source, IMAGES.pixels, labels.astype(np.int64))
    fitted: dict[str, Any] = {"cascade": CascadeOptions(agreement=0.95), "fitting": IMAGES}
    wanted: dict[str, dict[str, Any]] = {
        "margin.onnx": {**fitted, "sampler": True},
        "margin.pt": {**fitted, "sampler": True, "held_out": held_out},
        "int8.onnx": {**fitted, "precision": "int8", "calibration": IMAGES},
        "consensus.onnx": {**fitted, "cascade": CascadeOptions(consensus=2)},
        "consensus.pt": {**fitted, "cascade": CascadeOptions(consensus=2)},
    }
    files = {name: export_ensemble(ensemble, card, folder / name, samples=100, **o) for name, o in wanted.items()}
    return {"ensemble": ensemble, "card": card, "files": files}


NAMES = ("margin.onnx", "margin.pt", "int8.onnx", "consensus.onnx", "consensus.pt")
FLOATS = tuple(name for name in NAMES if name != "int8.onnx")


def rule_of(card: Card) -> Rule:
    """The rule as the card tells it."""
    cascade = card.cascade
    assert cascade is not None
    order = tuple(stage - 1 for stage in cascade["order"])
    thresholds = tuple(np.inf if limit is None else limit for limit in cascade.get("thresholds", ()))
    return Rule(order, thresholds, cascade.get("consensus", 0))


def test_a_cascade_whose_samples_leave_by_rounding_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are not compared, so there may be few of them only: here every tenth sample is one."""

    def undecided(self: CascadeReference, image: Tensor, tolerance: float) -> npt.NDArray[np.bool_]:
        return np.equal(np.arange(len(image)) % 10, 0)

    monkeypatch.setattr(CascadeReference, "undecided", undecided)
    ensemble, card = make_ensemble(betas=BETAS)
    options: dict[str, Any] = {"cascade": CascadeOptions(agreement=0.95), "fitting": IMAGES, "samples": 100}
    with pytest.raises(ExportError, match=r"Rounding decides for \d+ of 108 samples .* more than 5%"):
        export_ensemble(ensemble, card, tmp_path / "a.onnx", **options)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", FLOATS)
def test_scores_are_the_sums_at_which_samples_leave(made: Made, name: str) -> None:
    """By its card alone a cascade can be computed again from the members, all of them asked, and nothing compressed."""
    predictor = Predictor.load(made["files"][name].path)
    images = noisy(200)
    members, betas = made["ensemble"].members, made["ensemble"].betas
    with torch.inference_mode():
        terms = torch.stack([b * m(torch.from_numpy(images)) for b, m in zip(betas, members, strict=True)]).numpy()
    asked, expected = walk(rule_of(predictor.card), terms)
    assert len(set(asked)) > 1, "some leave, some stay"
    found = predictor.engine.scores(images)
    assert np.abs(found - expected).max() < 1e-5
    plain = terms.sum(axis=0)
    assert np.abs(found[asked == len(members)] - plain[asked == len(members)]).max() < 1e-5
    assert np.abs(found[asked < len(members)] - plain[asked < len(members)]).max() > 1e-3


@pytest.mark.parametrize("name", NAMES)
def test_the_scores_of_an_image_do_not_depend_on_its_neighbours(made: Made, name: str) -> None:
    engine = Predictor.load(made["files"][name].path).engine
    images = noisy(40)
    alone = np.concatenate([engine.scores(image[None]) for image in images])
    order = np.random.default_rng(1).permutation(40)
    for found in (engine.scores(images), engine.scores(images[order])[np.argsort(order)]):
        assert np.abs(found - alone).max() < 1e-6  # a product of one row may be rounded differently


@pytest.mark.parametrize("name", ["margin.onnx", "margin.pt", "int8.onnx"])
def test_batches_of_which_nothing_is_left_or_nobody_leaves(made: Made, name: str) -> None:
    engine = Predictor.load(made["files"][name].path).engine
    images = noisy(200)
    rule = rule_of(made["files"][name].card)
    with torch.inference_mode():
        terms = CascadeReference(made["ensemble"], rule).terms(torch.from_numpy(images))
    asked, _ = walk(rule, terms)
    whole = engine.scores(images)
    for chosen in (asked == 1, asked == 3):
        assert chosen.sum() > 3
        assert np.abs(engine.scores(images[chosen]) - whole[chosen]).max() < 1e-6


def test_plain_onnxruntime_runs_it_without_branches(made: Made) -> None:
    model = onnx.load(made["files"]["int8.onnx"].path)
    onnx.checker.check_model(model, full_check=True)
    operators = {node.op_type for node in model.graph.node}
    assert {"TopK", "NonZero", "Gather", "ScatterND", "QuantizeLinear"} <= operators
    assert not operators & {"If", "Loop", "DynamicQuantizeLinear"}
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    assert [output.name for output in session.get_outputs()] == ["scores"]
    assert session.run(None, {"image": noisy(5)})[0].shape == (5, 4)


@pytest.mark.parametrize("name", NAMES)
def test_the_card_says_what_the_fit_found(made: Made, name: str) -> None:
    card = Predictor.load(made["files"][name].path).card
    cascade = card.cascade
    assert cascade is not None
    assert sorted(cascade["order"]) == [1, 2, 3]
    assert cascade["reached"][0] == 1.0
    assert cascade["members_asked"] == pytest.approx(sum(cascade["reached"]), abs=1e-3)
    assert (cascade["fitted"], cascade["judged"], cascade["copies"], cascade["sigma"]) == (20, 20, 8, 0.25)
    if cascade["rule"] == "margin":
        assert cascade["agreement_fitted"] >= 0.95
    assert card.parity["flips"] <= (10 if name == "int8.onnx" else 0)
    assert "relative_difference" in card.parity
    assert Card.loads(card.dumps()) == card


def test_certified_accuracy_stands_beside_that_of_the_plain_ensemble(made: Made) -> None:
    measured = made["files"]["margin.pt"].card.parity["held_out"]
    assert measured["count"] == 40
    for name in ("float32", "this file"):
        assert 0 < measured[name]["certified_accuracy"] <= 1
    assert measured["float32"] != measured["this file"]


@pytest.mark.parametrize("name", NAMES)
def test_certificates_of_cascades_are_replayed(made: Made, name: str) -> None:
    path = made["files"][name].path
    certificate = Predictor.load(path).certify(IMAGES.pixels[3], n=300, seed=1)
    assert Predictor.load(path, batch=7).verify(certificate, IMAGES.pixels[3]).ok


@pytest.mark.parametrize("name", ["margin.pt", "int8.onnx"])
def test_a_worker_answers_with_certificates_of_cascades(made: Made, name: str) -> None:
    """Requests that arrive together share batches, and each gets what it would get alone."""
    predictor, images = Predictor.load(made["files"][name].path), IMAGES.pixels[3:6]
    worker = Worker(predictor, name="cascade", limits=Limits(allow_seeds=True), state=State(None))
    bodies = [json.dumps({"image": image[0].tolist(), "n": 200, "seed": 5}).encode() for image in images]
    answers = worker.answer([Incoming({"body": body}, request_id="r") for body in bodies])
    for image, answer in zip(images, answers, strict=True):
        assert int(answer.status) == 200
        assert json.loads(answer.body)["counts"] == list(predictor.certify(image, n=200, seed=5).counts)


def test_cost(made: Made, capsys: pytest.CaptureFixture[str]) -> None:
    """What a sample costs on average, from the card; and at most, which all formats agree on."""
    found = {name: inspect_model(made["files"][name].path) for name in ("margin.onnx", "margin.pt")}
    one, other = found["margin.onnx"], found["margin.pt"]
    assert one.flops == other.flops
    cascade = made["files"]["margin.onnx"].card.cascade
    share = cascade["members_asked"] / 3  # the members are equal
    assert one.flops is not None
    assert one.expected_flops is not None
    assert one.expected_flops == pytest.approx(share * one.flops, rel=1e-3)
    path = str(made["files"]["margin.onnx"].path)
    app(["inspect", path], standalone_mode=False)
    text = capsys.readouterr().out
    assert f"{cascade['members_asked']:.2f} of 3 members asked per sample" in text
    assert f"{one.expected_flops / 1e6:,.2f} MFLOP per sample on average" in text
    app(["bench", path, "--batches", "4", "--seconds", "0.01"], standalone_mode=False)
    assert f"{cascade['members_asked']:.2f} of 3 members asked per sample" in capsys.readouterr().err


def test_a_shared_trunk_is_computed_once(tmp_path: Path) -> None:
    ensemble, card = make_heads()
    options: dict[str, Any] = {"cascade": CascadeOptions(agreement=0.9), "fitting": IMAGES, "samples": 50}
    exported = export_ensemble(ensemble, card, tmp_path / "heads.onnx", **options)
    cascade = exported.card.cascade
    assert cascade is not None
    assert cascade["flops"]["shared"] > 0.8 * max(cascade["flops"]["members"])
    inspection = inspect_model(exported.path)
    assert inspection.flops == cascade["flops"]["shared"] + sum(cascade["flops"]["members"])
    convolutions = [node for node in onnx.load(exported.path).graph.node if node.op_type == "Conv"]
    assert sum(node.output[0].startswith("front/") for node in convolutions) > 1


class _Mixing(nn.Module):
    """Looks at the whole batch."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(64, 4)

    def forward(self, image: Tensor) -> Tensor:
        scores: Tensor = self.head(image.flatten(1))
        return scores - scores.mean(dim=0, keepdim=True)


@pytest.mark.parametrize("name", ["a.onnx", "a.pt"])
def test_members_that_mix_rows_are_refused(tmp_path: Path, name: str) -> None:
    """Also a last member, whom hardly a sample would reach."""
    torch.manual_seed(0)
    ensemble, card = make_ensemble(betas=(1.0,))
    mixed = Ensemble([*ensemble.members, _Mixing()], (1.0, 1.0)).freeze()
    card = dataclasses.replace(card, members=())
    with pytest.raises(ExportError, match="cannot be a cascade: The scores of an image depend on"):
        export_ensemble(mixed, card, tmp_path / name, cascade=Rule((0, 1), (0.0,)), samples=20)
    assert not list(tmp_path.iterdir())


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("a.pt2", {}, "no cascade as .pt2: export it as .onnx or .pt"),
    ("a.onnx", {"fitting": None}, "held-out images of the training data, under noise, .*--data"),
    ("a.onnx", {"precision": "fp16"}, "float32 or int8"),
    ("a.onnx", {"precision": "int8"}, "int8 is calibrated on noisy training images"),
    ("a.pt", {"fitting": synthetic_images(InputSpec(1, 8, 8), 19)}, "at least 20 held-out images"),
    ("a.pt", {"fitting": Images("x:train, held out", IMAGES.pixels[:0])}, "has 0. A training holds out .*`validation`"),
    ("a.pt", {"cascade": CascadeOptions(consensus=3)}, "2 to 2 of 3 members; found 3"),
    ("a.pt", {"cascade": Rule((1, 0), (0.1,))}, "orders 2 members, and the ensemble has 3"),
    ("a.pt", {"votes": True}, "with --fused"),
]


@pytest.mark.parametrize(("name", "options", "sentence"), REFUSED)
def test_what_cannot_be_a_cascade_is_refused(tmp_path: Path, name: str, options: dict[str, Any], sentence: str) -> None:
    ensemble, card = make_ensemble(betas=(1.0, 0.5, 0.5))
    if options.pop("votes", False):
        card = dataclasses.replace(card, kind="votes")
    chosen: dict[str, Any] = {"cascade": CascadeOptions(), "fitting": IMAGES, "samples": 20} | options
    with pytest.raises(ExportError, match=sentence):
        export_ensemble(ensemble, card, tmp_path / name, **chosen)
    assert not list(tmp_path.iterdir())


BROKEN: list[Callable[[], object]] = [
    lambda: Rule((0,)),
    lambda: Rule((0, 0), (0.1,)),
    lambda: Rule((0, 1), (0.1, 0.2)),
    lambda: Rule((0, 1), (float("nan"),)),
    lambda: Rule((0, 1, 2), (0.1, 0.2), consensus=2),
    lambda: Rule((0, 1), consensus=2),
]


@pytest.mark.parametrize("make", BROKEN)
def test_rules_that_make_no_sense(make: Callable[[], object]) -> None:
    with pytest.raises(ExportError):
        make()


def test_an_agreement_that_makes_no_sense_is_a_misuse() -> None:
    for agreement in (1.0, 0.4, float("nan")):
        with pytest.raises(ArgumentError, match=r"from 0\.5 to below 1"):
            CascadeOptions(agreement=agreement)


def test_the_command_fits_on_what_the_training_held_out(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "digits.pt"
    app(["export", str(run.path), "--out", str(out), "--cascade", "--agreement", "0.9"], standalone_mode=False)
    text = capsys.readouterr().out
    cascade = Predictor.load(out).card.cascade
    assert cascade is not None
    assert cascade["images"] == "digits:train, held out"
    assert f"asks {cascade['members_asked']:.2f} of 2 members per sample" in text
    assert "as the plain file in float32" in text


def test_the_command_refuses_what_goes_with_cascades_only(run: Run, tmp_path: Path) -> None:
    for options in (
        ["--agreement", "0.9"],
        ["--cascade", "--agreement", "0.9", "--consensus", "2"],
        ["--cascade", "--agreement", "1.5"],
    ):
        with pytest.raises(ArgumentError):
            app(["export", str(run.path), "--out", str(tmp_path / "a.pt"), *options], standalone_mode=False)


def test_no_data_no_cascade(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor with images of another size: the sentence says what was expected, what was found, what to do."""
    from robust.train.data import datasets
    from robust.train.data.pixels import TensorPixels

    def refuse(sentence: str) -> None:
        with pytest.raises(ExportError, match=sentence):
            export_run(run, tmp_path / "a.pt", cascade=CascadeOptions())
        assert not (tmp_path / "a.pt").exists()

    small, read = datasets.load_data("digits", split="train"), datasets.load_data
    halved = dataclasses.replace(small, pixels=TensorPixels(small.take(torch.arange(30))[:, :, ::2, ::2]))
    monkeypatch.setattr(datasets, "load_data", lambda *_, **__: halved)
    refuse(
        r"\(digits\) cannot be read: Expected images of shape \(1, 8, 8\), found .* of shape .*4, 4\). Name .*--data"
    )
    missing = tmp_path.parent / "nowhere.npz"
    monkeypatch.setattr(datasets, "load_data", lambda _, **options: read(f"npz:{missing}", **options))
    refuse("cannot be read: .*nowhere.npz.* Name its folder with --data")


def test_too_few_members(run: Run, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="one after the other; found 1: export more stages"):
        export_run(run, tmp_path / "a.pt", stages=1, cascade=CascadeOptions())
    with pytest.raises(ExportError, match="at least 2 of 3 or more members; found 2 of 2"):
        export_run(run, tmp_path / "a.pt", cascade=CascadeOptions(consensus=2))
    assert not (tmp_path / "a.pt").exists()
