"""The recipes for traffic signs, from a folder with their file to a run; with a few drawn signs instead of the data."""

from pathlib import Path

import numpy as np
import pytest
import torch
from robust.train import Recipe, Run
from robust.train.data.datasets import load_data
from typer.testing import CliRunner

from robustinfer.cli.main import app

CLASSES, TRACKS, FRAMES = 3, 10, 4
SMALL = ["limit=48", "width=0.0625", "batch=12", "epochs=1", "noise_samples=1", "validation_images=4"]


@pytest.fixture(scope="module")
def signs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with squares of a colour per class; the frames of a track differ by noise."""
    stream, folder = np.random.default_rng(0), tmp_path_factory.mktemp("signs")
    tracks = np.arange(CLASSES * TRACKS).repeat(FRAMES)
    labels = tracks // TRACKS
    images = stream.integers(0, 60, (len(labels), 12, 12, 3), dtype=np.uint8)
    images[np.arange(len(labels)), 3:9, 3:9, labels] += 150
    np.savez(
        folder / "gtsrb-32.npz",
        x_train=images,
        y_train=labels,
        group_train=tracks,
        x_test=images[:6],
        y_test=labels[:6],
        classes=["stop", "yield", "keep right"],
    )
    return folder


@pytest.mark.parametrize("name", ["gtsrb-l2", "gtsrb-linf"])
def test_a_recipe_trains_on_the_file_of_its_name(name: str, signs: Path, tmp_path: Path) -> None:
    options = [word for field in SMALL for word in ("--set", field)]
    command = ["train", name, "--data", str(signs), "--out", str(tmp_path / name), "--threads", "1", *options]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    run = Run.open(tmp_path / name)
    assert run.classes == ("stop", "yield", "keep right")
    assert run.recipe.data == f"npz:{signs / 'gtsrb-32.npz'}"
    assert run.stages[-1].metrics["held_out_images"] == 12  # three whole tracks


@pytest.mark.parametrize("name", ["gtsrb-l2", "gtsrb-linf"])
def test_tracks_are_held_out_whole(name: str, signs: Path) -> None:
    recipe = Recipe.load(name)
    assert (recipe.architecture, recipe.width, recipe.optimizer, recipe.channels_last) == ("fast", 0.5, "muon", True)
    data, held_out = load_data(f"npz:{signs / 'gtsrb-32.npz'}", size=recipe.size).split(recipe.validation)
    assert data.groups is not None
    assert held_out.groups is not None
    assert not torch.isin(held_out.groups, data.groups).any()
