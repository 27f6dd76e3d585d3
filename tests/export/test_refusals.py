"""An export that fails says why in a sentence, and leaves no file."""

import dataclasses
import resource
import subprocess
import sys
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch
from robust.export import export_ensemble, export_run, exporter
from robust.export.fusion import Fused
from robust.train.members.ensemble import Ensemble
from robust.train.runs.run import Run
from torch import Tensor, nn

from robustinfer.card import Card, InputSpec
from robustinfer.errors import ExportError, RobustinferError, RunError

from .conftest import make_ensemble


def refused(folder: Path, match: str, ensemble: Ensemble, card: Card, name: str = "out/model.pt") -> None:
    with pytest.raises(ExportError, match=match) as caught:
        export_ensemble(ensemble, card, folder / name, samples=20)
    assert "\n" not in str(caught.value)
    assert not any(folder.iterdir())


def test_training_mode(tmp_path: Path) -> None:
    ensemble, card = make_ensemble("resnet12", shape=(1, 9, 9))
    refused(tmp_path, "training mode", ensemble.train(), card)


class BatchStatistics(nn.Module):
    """A user's own network that normalises by the statistics of the batch, in evaluation mode as well."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4, track_running_stats=False), nn.ReLU())
        self.head = nn.Linear(4, 4)

    def forward(self, image: Tensor) -> Tensor:
        scores: Tensor = self.head(self.body(image).mean(dim=(2, 3)))
        return scores


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")  # torch looks at sizes here; a user sees it warn
@pytest.mark.parametrize("suffix", [".onnx", ".pt", ".pt2"])
@pytest.mark.parametrize("kind", ["scores", "votes"])
def test_scores_that_depend_on_the_batch(tmp_path: Path, suffix: str, kind: Literal["scores", "votes"]) -> None:
    torch.manual_seed(0)
    ensemble, card = make_ensemble(betas=(1.0, 0.4))
    ensemble = Ensemble([*list(ensemble.members)[:1], BatchStatistics().eval()], (1.0, 0.4)).freeze()
    card = dataclasses.replace(card, kind=kind)
    refused(tmp_path, "depend on the images beside it|behaves as in training mode", ensemble, card, f"model{suffix}")


def test_classes_and_outputs_that_do_not_match(tmp_path: Path) -> None:
    ensemble, _ = make_ensemble(classes=4)
    _, card = make_ensemble(classes=5)
    refused(tmp_path, "classes and outputs do not match", ensemble, card)


def test_images_of_another_size(tmp_path: Path) -> None:
    ensemble, _ = make_ensemble(shape=(1, 8, 8))
    _, card = make_ensemble(shape=(3, 8, 8))
    refused(tmp_path, "does not take images of shape", ensemble, card)


def test_another_suffix_format_or_opset(tmp_path: Path) -> None:
    ensemble, card = make_ensemble()
    refused(tmp_path, "ends in .onnx, .pt or .pt2", ensemble, card, "model.bin")
    for options, match in (
        ({"format": "onnx"}, "ends in .onnx"),
        ({"format": "tflite"}, "is one of onnx"),
        ({"opset": 20}, "Only ONNX files"),
        ({"samples": 0}, "at least one sample"),
    ):
        with pytest.raises(ExportError, match=match):
            export_ensemble(ensemble, card, tmp_path / "model.pt", **options)
    with pytest.raises(ExportError, match="opset 18 to 23"):
        export_ensemble(ensemble, card, tmp_path / "model.onnx", opset=11)
    assert not any(tmp_path.iterdir())


class _Dropping(nn.Module):
    """Chance in evaluation mode: certificates of it would mean nothing."""

    def forward(self, image: Tensor) -> Tensor:
        return torch.nn.functional.dropout(image.flatten(1), 0.5, training=True)[:, :2]


def test_members_that_draw_by_chance(tmp_path: Path) -> None:
    card = Card(classes=("a", "b"), input=InputSpec(1, 2, 2), sigma=0.25)
    ensemble = Ensemble([_Dropping()], [1.0]).freeze()
    refused(tmp_path, "members must be deterministic", ensemble, card, "model.onnx")


def test_a_file_that_differs_says_where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One weight of one member is changed after fusion, as a faulty exporter would."""
    ensemble, card = make_ensemble()
    fuse = exporter.fuse  # type: ignore[attr-defined]

    def faulty(wanted: Ensemble, spec: InputSpec, **how: bool) -> Fused:
        fused = fuse(wanted, spec, **how)
        fused.members[1].get_parameter("head.bias").data[2] += 0.05
        return fused

    monkeypatch.setattr(exporter, "fuse", faulty)
    before = tmp_path / "model.pt"
    before.write_bytes(b"what was there before")
    with pytest.raises(ExportError, match=r"differs from the ensemble by 0\.05.*synthetic image \d.*'class 2'"):
        export_ensemble(ensemble, card, before, samples=20)
    assert before.read_bytes() == b"what was there before"
    assert list(tmp_path.iterdir()) == [before]


def test_a_sampler_that_draws_other_noise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from robust.export.sampler import torch as sampler_torch

    ensemble, card = make_ensemble(sigma=0.5)
    monkeypatch.setattr(sampler_torch, "KEY_STEPS", (0x9E3779B97F4A7C16, 0xBB67AE8584CAA73B))
    with pytest.raises(ExportError, match="The sampler casts"):
        export_ensemble(ensemble, card, tmp_path / "model.pt", samples=20, sampler=True)
    assert not any(tmp_path.iterdir())


def test_an_unwritable_folder(tmp_path: Path) -> None:
    ensemble, card = make_ensemble()
    blocked = tmp_path / "blocked"
    blocked.write_text("a file where a folder is wanted")
    with pytest.raises(ExportError, match="Cannot write"):
        export_ensemble(ensemble, card, blocked / "model.pt", samples=20)
    with pytest.raises(ExportError, match="Cannot write"):
        export_ensemble(ensemble, card, Path("/proc/model.pt"), samples=20)
    assert list(tmp_path.iterdir()) == [blocked]


_FULL_DISK = """
import resource, sys
from pathlib import Path
from robust.export import export_run
from robustinfer.errors import ExportError
resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, 30_000))
try:
    export_run(sys.argv[1], sys.argv[2], samples=20)
except ExportError as error:
    print(error)
"""


def test_a_full_disk(tmp_path: Path, run: Run) -> None:
    """The system refuses the bytes beyond a limit below the size of the file, as a full disk does."""
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[1] in (resource.RLIM_INFINITY, -1)
    target = tmp_path / "out" / "model.pt"
    command = [sys.executable, "-W", "ignore", "-c", _FULL_DISK, str(run.path), str(target)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=200, check=True)
    assert "Cannot write" in result.stdout
    assert "free some space" in result.stdout
    assert not target.parent.exists()


def test_a_missing_member(tmp_path: Path, run: Run) -> None:
    (run.path / "stage-02.safetensors").unlink()
    _refused_run(run, tmp_path, RunError, "stage-02")


def test_a_corrupt_checkpoint(tmp_path: Path, run: Run) -> None:
    file = run.path / "stage-01.safetensors"
    content = bytearray(file.read_bytes())
    content[-5] ^= 0xFF
    file.write_bytes(content)
    _refused_run(run, tmp_path, RunError, "stage-01")


def test_a_run_without_stages(tmp_path: Path, run: Run) -> None:
    for file in run.path.glob("stage-*"):
        file.unlink()
    _refused_run(run, tmp_path, ExportError, "no finished stage")


def test_no_run_at_all_and_too_many_stages(tmp_path: Path, run: Run) -> None:
    with pytest.raises(RunError, match="not a run folder"):
        export_run(tmp_path / "nothing", tmp_path / "model.pt")
    with pytest.raises(RunError, match="2 finished stages"):
        export_run(run, tmp_path / "model.pt", stages=3)


def _refused_run(run: Run, folder: Path, error: type[RobustinferError], match: str) -> None:
    with pytest.raises(error, match=match):
        export_run(run.path, folder / "out" / "model.pt", samples=20)
    assert not (folder / "out").exists()


def test_an_ensemble_of_scores_that_are_not_finite(tmp_path: Path) -> None:
    ensemble, card = make_ensemble()
    ensemble.betas.fill_(np.inf)
    refused(tmp_path, "not finite", ensemble, card)
