"""Fine-tuning: a training starts from parameters that are there already, and says what does not fit."""

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from robust.train import Recipe, Run, Start, train
from robust.train.members.pretrained import read_parameters
from safetensors.torch import load_file, save_file

from robustinfer.errors import RecipeError, RunError, StoppedError

MODULE = """
from torch import nn

def make(input, classes):
    return small(classes, pixels=input.channels * input.height * input.width)

def small(classes, pixels=64):
    layers = [nn.Flatten(), nn.Linear(pixels, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, classes)]
    return nn.Sequential(*layers)
"""
STILL = 1e-12  # a learning rate at which parameters stay where they are
ONE = {"stages": 1, "betas": "trained", "refit": False}


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run of two stages, trained without an attack."""
    recipe = Recipe(
        name="clean", limit=192, width=0.125, stages=2, epochs=1, batch=64, attack="none", validation_images=30
    )
    return train(recipe, tmp_path_factory.mktemp("clean") / "run", device="cpu")


@pytest.fixture
def mynet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A module of the user's."""
    (tmp_path / "mynet.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "mynet", raising=False)
    return importlib.import_module("mynet")


def test_stage_one_starts_from_the_last_member_of_a_run(tiny: Recipe, clean: Run, tmp_path: Path) -> None:
    recipe = tiny.replace(width=1.0, learning_rate=STILL, **ONE)
    run = train(recipe, tmp_path / "run", device="cpu", start=Start(str(clean.path)))
    assert run.recipe.width == clean.recipe.width
    source, found = clean.member(2).state_dict(), run.member(1).state_dict()
    assert all(torch.equal(tensor, load_file(run.path / "start.safetensors")[name]) for name, tensor in source.items())
    for name, tensor in source.items():
        torch.testing.assert_close(found[name], tensor, atol=1e-6, rtol=0)
    assert run.provenance["start"] == {"source": str(clean.path), "random": []}


def test_a_network_of_the_users_with_other_classes_and_its_normalisation(
    tiny: Recipe, mynet: Any, tmp_path: Path
) -> None:
    """Trained for 7 classes and saved as .pth: the body is taken over, the head is new, the buffers are as given."""
    body = mynet.small(7)
    torch.save(
        {"state_dict": {f"module.{name}": value for name, value in body.state_dict().items()}}, tmp_path / "p.pth"
    )
    start = Start("mynet:small(10, pixels=64)", tmp_path / "p.pth", mean=(0.25,), std=(0.5,))
    run = train(tiny.replace(learning_rate=STILL, **ONE), tmp_path / "run", device="cpu", start=start)
    assert run.recipe.architecture == "mynet:small(10, pixels=64)"
    assert run.provenance["start"]["random"] == ["4.bias", "4.weight"]
    first = load_file(run.path / "start.safetensors")
    assert torch.equal(first["network.1.weight"], body.state_dict()["1.weight"])
    assert first["network.4.weight"].shape == (10, 12)
    member = run.member(1).eval()
    image = torch.rand(3, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(member(image), member.network((image - 0.25) / 0.5))
    assert (float(member.mean), float(member.std)) == (0.25, 0.5)


def test_a_factory_without_a_file_and_a_file_without_a_factory(
    tiny: Recipe, mynet: Any, clean: Run, tmp_path: Path
) -> None:
    recipe = tiny.replace(learning_rate=STILL, **ONE)
    run = train(recipe, tmp_path / "factory", device="cpu", start=Start("mynet:make"))
    assert run.recipe.architecture == "mynet:make"
    source = clean.path / "stage-01.safetensors"
    again = train(recipe, tmp_path / "file", device="cpu", start=Start(str(source)))
    for name, tensor in load_file(source).items():
        torch.testing.assert_close(again.member(1).state_dict()[name], tensor, atol=1e-6, rtol=0)


def test_an_interrupted_fine_tuning_ends_like_an_uninterrupted_one(tiny: Recipe, clean: Run, tmp_path: Path) -> None:
    """It was stopped after a step, and then its start was lost; without a checkpoint it begins from the start again."""
    start = Start(str(clean.path))
    whole = train(tiny, tmp_path / "whole", device="cpu", start=start)
    folder = tmp_path / "run"
    with pytest.raises(StoppedError):
        train(tiny, folder, device="cpu", start=start, stop=lambda: True)
    for name in ("resume.safetensors", "resume.json", "start.safetensors"):
        (folder / name).unlink()
    with pytest.raises(RunError, match=r"start.safetensors is missing or damaged .*: give --from again"):
        train(tiny, folder, device="cpu", resume=True)
    with pytest.raises(RunError, match="was not started from"):
        train(tiny, folder, device="cpu", resume=True, start=Start(str(clean.path / "stage-01.safetensors")))
    resumed = train(tiny, folder, device="cpu", resume=True, start=start)
    assert [stage.digest for stage in resumed.stages] == [stage.digest for stage in whole.stages]
    plain = train(tiny, tmp_path / "plain", device="cpu")
    assert [stage.digest for stage in plain.stages] != [stage.digest for stage in whole.stages]


def test_what_does_not_fit_is_said(tiny: Recipe, mynet: Any, clean: Run, tmp_path: Path) -> None:
    save_file({"odd": torch.zeros(1)}, tmp_path / "odd.safetensors")
    state = mynet.small(10).state_dict()
    wide = {name: torch.zeros([2 * size for size in value.shape]) for name, value in state.items()}
    torch.save(wide, tmp_path / "wide.pth")
    torch.save(mynet.small(10), tmp_path / "whole.pth")
    (tmp_path / "half.pth").write_bytes(b"half a file")
    for start, sentence in (
        (Start(str(tmp_path / "odd.safetensors")), r"they lack .* \(\d+ missing names, 1 unexpected\)"),
        (Start("mynet:make", tmp_path / "wide.pth"), "do not fit the architecture: 1.bias has the shape"),
        (Start("mynet:make", tmp_path / "whole.pth"), "holds more than tensors, and nothing else is unpickled"),
        (Start("mynet:make", tmp_path / "half.pth"), "damaged, or not a file of parameters|holds more than tensors"),
        (Start("mynet:make", tmp_path / "no.pth"), "There is no file of parameters"),
        (Start("mynet:small(10, pixels=x)"), r"module:factory\(...\) with literals"),
        (Start("mynet:nothing"), "cannot be imported"),
        (Start(str(clean.path), mean=(0.5, 0.5), std=(1.0, 1.0)), "has 1 means and as many positive deviations"),
    ):
        with pytest.raises(RecipeError, match=sentence):
            train(tiny, tmp_path / "run", device="cpu", start=start)
        assert not (tmp_path / "run").exists()
    with pytest.raises(RecipeError, match=r"Only a module:factory takes a file of parameters"):
        Start(str(clean.path), tmp_path / "wide.pth")
    with pytest.raises(RecipeError, match="a mean and a std per channel"):
        Start("mynet:make", mean=(0.5,))
    with pytest.raises(RecipeError, match=r"a .safetensors or .pth file; found mynet.py"):
        read_parameters(tmp_path / "mynet.py")
