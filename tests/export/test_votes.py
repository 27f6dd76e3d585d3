"""Files whose members vote: written in every format, certified, replayed and served like the others."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
import torch
from robust.export import export_ensemble, export_run
from robust.export.repositories import export_triton
from robust.train.runs.run import Run

from robustinfer import Predictor
from robustinfer.card import card_schema
from robustinfer.errors import ExportError
from robustinfer.smoothing.tally import plurality

from ..commands import Robust
from .conftest import make_ensemble, make_run

IMAGE = np.arange(64, dtype=np.uint8).reshape(1, 8, 8) * 4


def votes_file(path: Path, **changes: Any) -> Predictor:
    ensemble, card = make_ensemble(**{"betas": (0.5, 0.3, 0.2), **changes})
    return Predictor.load(export_ensemble(ensemble, dataclasses.replace(card, kind="votes"), path).path)


@pytest.mark.parametrize(("suffix", "architecture"), [(".onnx", "cnn"), (".pt", "resnet12"), (".pt2", "cnn")])
def test_the_graph_gives_the_scores_of_each_member(tmp_path: Path, suffix: str, architecture: str) -> None:
    ensemble, _ = make_ensemble(architecture, betas=(0.5, 0.3, 0.2))
    predictor = votes_file(tmp_path / f"votes{suffix}", architecture=architecture)
    images = torch.rand(5, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    expected = torch.stack([member(images) for member in ensemble.members], dim=1).numpy()
    found = predictor.engine.scores(images.numpy())
    np.testing.assert_allclose(found, expected, atol=1e-5 * np.abs(expected).max())
    np.testing.assert_allclose(predictor.scores(images.numpy()), plurality(expected, (0.5, 0.3, 0.2)))
    parity = predictor.card.parity
    assert (parity["samples"], parity["flips"]) == (1000, 0)  # three members on one sample are one observation
    assert parity["zeta"] >= 1 - 0.001 ** (1 / 1000)  # 0.0069, not the 0.0023 of 3,000 independent votes
    jsonschema.validate(json.loads(predictor.card.dumps()), card_schema())


def test_certificates_replay_and_are_served(tmp_path: Path) -> None:
    worker = pytest.importorskip("robust.serve.service.worker")
    from robust.serve.service.limits import Limits
    from robust.serve.service.state import State

    predictor = votes_file(tmp_path / "votes.pt", betas=[0.2] * 5)
    certificate = predictor.certify(IMAGE, n=1500, seed=4)
    assert predictor.verify(certificate, IMAGE).ok
    server = worker.Worker(predictor, name="tiny", limits=Limits(allow_seeds=True), state=State(None))
    server.warm_up()
    body = json.dumps({"image": IMAGE[0].tolist(), "n": 1500, "seed": 4}).encode()
    (answer,) = server.answer([worker.Incoming({"body": body}, request_id="r-1")])
    served = json.loads(answer.body)
    assert served["method"] == "clopper-pearson/votes"
    for key in ("label", "radius", "counts", "members"):
        assert served[key] == json.loads(json.dumps(certificate.to_json()))[key]


def test_the_commands(robust: Robust, tmp_path: Path, run: Run) -> None:
    """`robust export --members`, `robust certify --members`, and `robust verify` of what it says."""
    file, image, answer = tmp_path / "votes.onnx", tmp_path / "image.npy", tmp_path / "certificate.json"
    np.save(image, IMAGE)
    assert robust("export", run.path, "--out", file, "--members", "--samples", "50").code == 0
    assert "members that vote" in robust("inspect", file).out
    found = robust("certify", file, image, "--members", "--n", "1500", "--json").out
    assert len(json.loads(found)["members"]) == 2
    answer.write_text(found)
    assert "confirmed" in robust("verify", answer, "--model", file, "--image", image).out
    fused = json.loads(robust("certify", file, image, "--fused", "--n", "1500", "--json").out)
    assert "members" not in fused


def test_a_minimax_run_votes_and_others_add_up(tmp_path: Path, run: Run) -> None:
    minimax = make_run(tmp_path / "minimax", booster="minimax")
    kinds = {
        (one.recipe.booster, members): export_run(one, tmp_path / "model.pt", members=members, samples=20).card.kind
        for one, members in ((run, None), (run, True), (minimax, None), (minimax, False))
    }
    assert kinds == {
        ("greedy", None): "scores",
        ("greedy", True): "votes",
        ("minimax", None): "votes",
        ("minimax", False): "scores",
    }


def test_refusals(tmp_path: Path, run: Run) -> None:
    ensemble, card = make_ensemble()
    with pytest.raises(ExportError, match="cannot vote"):  # one of the weights is negative
        export_ensemble(ensemble, dataclasses.replace(card, kind="votes"), tmp_path / "votes.onnx")
    with pytest.raises(ExportError, match="no sampler"):
        export_run(run, tmp_path / "votes.onnx", members=True, sampler=True)
    with pytest.raises(ExportError, match="ensemble scores"):
        export_triton(run.path, tmp_path / "triton", members=True)
    assert not list(tmp_path.glob("*.onnx"))
