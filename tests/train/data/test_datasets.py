"""Data sets: read right, split once, and refused with a sentence before anything is trained."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from robust.train import Recipe, train
from robust.train.data.batches import Batches
from robust.train.data.datasets import load_data
from robust.train.data.pixels import FilePixels, folder_input, folder_pixels
from robust.train.machine.processes import Processes

from robustinfer.errors import DataError, RecipeError, RobustinferError


def write_images(folder: Path, classes: tuple[str, ...] = ("cat", "dog"), *, count: int = 10, side: int = 8) -> Path:
    for label, name in enumerate(classes):
        (folder / name).mkdir(parents=True)
        for number in range(count):
            pixels = np.full((side, side), 20 * label + number, dtype=np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{number}.png")
    return folder


def test_digits_are_one_tensor_with_a_held_out_part() -> None:
    data, test = load_data("digits"), load_data("digits", split="test")
    assert data.input.shape == (1, 8, 8)
    assert len(data) + len(test) == 1797
    training, held_out = data.split(0.1)
    assert len(held_out) == round(0.1 * len(data))
    assert training.indices is not None
    assert held_out.indices is not None
    both = torch.cat([training.indices, held_out.indices])
    assert both.sort().values.tolist() == list(range(len(data)))
    assert data.split(0.1)[1].digest() == held_out.digest() != training.digest()
    mean, std = training.moments()
    pixels = training.take(torch.arange(len(training))).double() / 255
    assert mean.item() == pytest.approx(pixels.mean().item(), rel=1e-5)
    assert std.item() == pytest.approx(pixels.std().item(), rel=1e-5)


def test_a_folder_on_disk_reads_the_same_as_in_memory(tmp_path: Path) -> None:
    files = sorted(write_images(tmp_path / "set").rglob("*.png"))
    spec = folder_input(tmp_path, files, 0)
    in_memory, on_disk = folder_pixels(tmp_path, files, spec), folder_pixels(tmp_path, files, spec, memory=0)
    assert isinstance(on_disk, FilePixels)
    chosen = torch.tensor([3, 17, 3])
    assert torch.equal(in_memory.take(chosen), on_disk.take(chosen))
    assert in_memory.shape == on_disk.shape == (1, 8, 8)


def test_folders_of_train_and_test_and_a_size(tmp_path: Path) -> None:
    write_images(tmp_path / "train", side=9)
    write_images(tmp_path / "test", count=3, side=12)
    data = load_data(f"folder:{tmp_path}", size=6)
    assert len(data) == 20
    assert len(load_data(f"folder:{tmp_path}", split="test", size=6)) == 6
    assert data.classes == ("cat", "dog")
    assert (data.input.shape, data.input.resize) == ((1, 6, 6), "bilinear")


def test_a_model_of_arrays_takes_pictures_of_any_size_if_the_recipe_names_theirs(tmp_path: Path) -> None:
    arrays = tmp_path / "set.npz"
    np.savez(arrays, x=np.zeros((10, 6, 6, 3), np.uint8), y=np.arange(10) % 2)
    found = {size: load_data(f"npz:{arrays}", size=size).input.resize for size in (0, 5, 6)}
    assert found == {0: "refuse", 5: "refuse", 6: "bilinear"}


def test_bad_folders_are_refused(tmp_path: Path) -> None:
    mixed = write_images(tmp_path / "mixed")
    Image.new("L", (5, 4)).save(mixed / "dog" / "odd.png")
    empty = write_images(tmp_path / "empty")
    (empty / "eel").mkdir()
    broken = write_images(tmp_path / "broken")
    (broken / "cat" / "0.png").write_bytes(b"no picture")
    for folder, sentence in (
        (mixed, "mixed sizes: .* is 8x8, odd.png is 4x5; set `size`"),
        (empty, "eel holds no images; fill it or remove it"),
        (broken, "0.png: This is not a PNG, JPEG, PPM, WebP or npy image.*Repair or remove it"),
        (tmp_path / "nothing", "There is no folder"),
    ):
        with pytest.raises(DataError, match=sentence):
            load_data(f"folder:{folder}")


def test_missing_sets_say_where_they_belong(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"no complete mnist in .*--data mnist:DIR, or fetch it with: robust data mnist:\S+ --download"
    ):
        load_data("mnist", root=tmp_path)
    with pytest.raises(DataError, match="A data set is digits, mnist:DIR, cifar10:DIR, imagenet:DIR, folder:PATH"):
        load_data("mmnist")


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"limit": 12}, "These classes have no training image"),
        ({"validation": 0.0001}, "leaves none to validate on; raise `validation`"),
        ({"batch": 5000}, "A batch of 5000 images needs as many to train on"),
        ({"norm": "l2", "delta": 9.0}, "No two images of digits are 9 apart in l2"),
        ({"architecture": "resnet13"}, "An architecture is one of cnn"),
        ({"architecture": "lenet"}, "lenet does not take images of shape"),
        ({"architecture": "nowhere:net"}, "cannot be imported"),
        ({"architecture": "torch.nn:Identity"}, "gives scores of shape"),
    ],
)
def test_what_cannot_be_trained_is_refused_before_a_run_folder_exists(
    tmp_path: Path, changes: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(RobustinferError, match=sentence) as refusal:
        train(Recipe(data="digits", **changes), tmp_path / "run", device="cpu")
    assert isinstance(refusal.value, RecipeError | DataError)
    assert not (tmp_path / "run").exists()


def test_augmentation_shifts_and_mirrors_but_keeps_the_label(tmp_path: Path) -> None:
    data, _ = load_data("digits").split(0.1)
    recipe = Recipe(data="digits", augment="crop-flip", batch=64)
    batches = Batches(recipe, 1, data, Processes(torch.device("cpu")))
    plain = Batches(recipe.replace(augment="none"), 1, data, Processes(torch.device("cpu")))
    changed, image = batches.batch(0, 3), plain.batch(0, 3)
    assert torch.equal(changed.labels, image.labels)
    assert torch.equal(changed.image, batches.batch(0, 3).image), "the same step draws the same change"
    padded = torch.nn.functional.pad(image.image, (1, 1, 1, 1))
    windows = [padded[:, :, y : y + 8, x : x + 8] for y in range(3) for x in range(3)]
    candidates = torch.stack([*windows, *(window.flip(3) for window in windows)])
    found = (candidates == changed.image).flatten(2).all(dim=2)
    assert found.any(dim=0).all(), "every image is one of the 18 shifted, mirrored versions of itself"
    assert found.float().argmax(dim=0).unique().numel() > 9
