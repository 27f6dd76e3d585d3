"""Run folders: what is written can be read, what is damaged or of another recipe is refused, nothing is lost."""

import errno
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from robust.train import Recipe, Run, train
from robust.train.runs import run as run_module

from robustinfer.errors import RunError, TrainingError
from robustinfer.files import sha256


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Run:
    recipe = Recipe(
        name="three", data="digits", limit=128, width=0.125, stages=3, epochs=1, growth=1, batch=64, steps=1,
        previous="exact", betas="corrective", validation_images=30, optimizer="adam",
    )  # fmt: skip
    return train(recipe, tmp_path_factory.mktemp("runs") / "three", device="cpu")


def copy(run: Run, folder: Path) -> Path:
    folder.mkdir()
    for file in run.path.iterdir():
        if file.is_file():
            (folder / file.name).write_bytes(file.read_bytes())
    return folder


def test_the_ensemble_is_the_weighted_sum_of_its_members(trained: Run) -> None:
    image = torch.rand(5, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    stages = trained.stages
    assert [stage.number for stage in stages] == [1, 2, 3]
    for count in (1, 2, 3):
        betas = stages[count - 1].betas
        assert len(betas) == count
        by_hand = sum(beta * trained.member(number + 1).eval()(image) for number, beta in enumerate(betas))
        torch.testing.assert_close(trained.ensemble(count)(image), by_hand)
    last = trained.ensemble()
    assert not last.training
    assert not any(parameter.requires_grad for parameter in last.parameters())
    prefixes = list(last.staged(image))
    torch.testing.assert_close(prefixes[-1], last(image))
    torch.testing.assert_close(prefixes[0], last.betas[0] * last.members[0](image))


def test_corrective_weights_move_the_weights_of_earlier_members(trained: Run) -> None:
    first, second, _ = trained.stages
    assert first.betas[0] != second.betas[0]


def test_provenance_and_documents(trained: Run) -> None:
    assert trained.provenance["data_digest"].startswith("sha256:")
    assert trained.provenance["recipe"] == "three"
    assert trained.provenance["versions"]["torch"]
    assert trained.classes == tuple("0123456789")
    assert (trained.path / "curves.png").read_bytes().startswith(b"\x89PNG")
    for stage in trained.stages:
        assert stage.digest == sha256(stage.path)
        assert set(stage.metrics) >= {"edge", "robust_accuracy", "member_robust_accuracy", "epochs"}
    lines = [json.loads(line) for line in (trained.path / "metrics.jsonl").read_text().splitlines()]
    assert [(line["stage"], line["epoch"]) for line in lines if line["kind"] == "epoch"] == [(1, 0), (2, 0), (3, 0)]


def test_frozen_members_are_unchanged_by_later_stages(trained: Run, tmp_path: Path) -> None:
    """The first stage of a run of one stage is the first stage of a run of three, bit for bit."""
    alone = train(trained.recipe.replace(stages=1), tmp_path / "one", device="cpu")
    assert alone.stages[0].path.read_bytes() == trained.stages[0].path.read_bytes()
    assert trained.stages[0].path.read_bytes() != trained.stages[1].path.read_bytes()


@pytest.mark.parametrize(
    ("file", "content", "sentence"),
    [
        ("recipe.toml", None, "is not a run folder"),
        ("recipe.toml", "stages = 3", "is damaged"),
        ("recipe.toml", "stages = = 3", "is not a TOML document"),
        ("stage-02.json", None, r"holds stages \[1, 3\]; expected 1, 2, ... without a gap"),
        ("stage-02.json", "{", "cannot be read"),
        ("stage-02.json", "[]", "holds a JSON object"),
        ("stage-02.json", "{}", "is damaged"),
    ],
)
def test_damaged_folders_are_refused(
    trained: Run, tmp_path: Path, file: str, content: str | None, sentence: str
) -> None:
    folder = copy(trained, tmp_path / "run")
    if content is None:
        (folder / file).unlink()
    else:
        (folder / file).write_text(content)
    with pytest.raises(RunError, match=sentence):
        Run.open(folder)


def test_changed_weights_are_noticed(trained: Run, tmp_path: Path) -> None:
    folder = copy(trained, tmp_path / "run")
    weights = folder / "stage-02.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\0")
    assert len(Run.open(folder).ensemble(1).members) == 1
    with pytest.raises(RunError, match=r"stage-02.safetensors is missing or is not the file its stage-02.json names"):
        Run.open(folder).ensemble()


def test_a_folder_that_exists_or_is_of_another_recipe_is_left_alone(trained: Run, tmp_path: Path) -> None:
    folder = copy(trained, tmp_path / "run")
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    with pytest.raises(RunError, match="already exists: choose another --out, or use --resume"):
        train(trained.recipe, folder, device="cpu")
    with pytest.raises(RunError, match=r"a run of another recipe: `delta` is 0.1 there and 0.2 here"):
        train(trained.recipe.replace(delta=0.2), folder, device="cpu", resume=True)
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before


def test_a_full_disk_is_said_before_and_during_the_training(
    tiny: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": 1000}))
        with pytest.raises(TrainingError, match="only 0 MB are free"):
            train(tiny, tmp_path / "early", device="cpu")
    assert not (tmp_path / "early").exists()

    original = run_module.save_tensors

    def full(path: Path, *arguments: Any) -> None:
        if path.name == "stage-02.safetensors":
            raise OSError(errno.ENOSPC, "No space left on device")
        original(path, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(run_module, "save_tensors", full)
        with pytest.raises(TrainingError, match="is full: free some space and continue with --resume"):
            train(tiny, tmp_path / "late", device="cpu")
    assert len(Run.open(tmp_path / "late").stages) == 1
    assert len(train(tiny, tmp_path / "late", device="cpu", resume=True).stages) == 2


def test_independent_members_know_nothing_of_each_other(tiny: Recipe, tmp_path: Path) -> None:
    recipe = tiny.replace(booster="independent", growth=1, select="last")
    run = train(recipe, tmp_path / "run", device="cpu")
    assert [stage.betas for stage in run.stages] == [(1.0,), (0.5, 0.5)]
    first, second = (stage.path.read_bytes() for stage in run.stages)
    assert first != second


def test_dropped_members_are_left_out(trained: Run, tmp_path: Path) -> None:
    folder = copy(trained, tmp_path / "run")
    document = json.loads((folder / "stage-03.json").read_text())
    document["betas"][1] = 0.0
    (folder / "stage-03.json").write_text(json.dumps(document))
    run = Run.open(folder)
    assert run.kept() == (1, 3)
    assert len(run.ensemble().members) == 2
    assert len(run.ensemble(2).members) == 2


def test_members_with_a_small_share_are_dropped(trained: Run, tmp_path: Path) -> None:
    """Of two members, the one with less than half of the spread of the scores goes, and the other stays."""
    recipe = trained.recipe.replace(stages=2)
    dropped = train(recipe.replace(drop_below=0.5), tmp_path / "run", device="cpu")
    assert sum(beta == 0 for beta in trained.stages[1].betas) == 0
    assert sum(beta == 0 for beta in dropped.stages[1].betas) == 1
    assert len(dropped.ensemble().members) == len(dropped.kept()) == 1


def test_a_run_with_the_fields_of_an_earlier_release_opens_and_resumes(trained: Run, tmp_path: Path) -> None:
    folder = copy(trained, tmp_path / "run")
    text = (folder / "recipe.toml").read_text()
    old = text.replace('betas = "corrective"', 'weights = "corrective"\ninitial_beta = 1.0\nlabel_smoothing = 0.0')
    assert old != text
    (folder / "recipe.toml").write_text(old)
    assert Run.open(folder).recipe == trained.recipe
    (folder / "stage-03.json").unlink()
    resumed = train(trained.recipe, folder, device="cpu", resume=True)
    assert [stage.digest for stage in resumed.stages] == [stage.digest for stage in trained.stages]
