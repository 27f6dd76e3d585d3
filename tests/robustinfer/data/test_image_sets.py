"""Image sets: folders and arrays become images with labels, and are known by a digest."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from robustinfer import Card, InputSpec, Predictor
from robustinfer.data import class_folders, load_images, npz_arrays, split_fifth
from robustinfer.errors import DataError


def test_the_digest_of_a_folder_is_that_of_its_files(tmp_path: Path) -> None:
    card = Card(classes=("cat", "dog"), input=InputSpec(1, 4, 4))
    for root in ("one", "two"):
        for label, name in enumerate(card.classes):
            (tmp_path / root / "test" / name).mkdir(parents=True)
            for number in range(3):
                picture = Image.fromarray(np.full((4, 4), 50 * label + number, np.uint8))
                picture.save(tmp_path / root / "test" / name / f"{number}.png")
    one, two = (load_images(f"folder:{tmp_path / root}", card) for root in ("one", "two"))
    assert one.digest(range(6)) == two.digest(range(6)) != one.digest(range(5))
    Image.fromarray(np.full((4, 4), 9, np.uint8)).save(tmp_path / "two" / "test" / "dog" / "2.png")
    assert one.digest(range(5)) == two.digest(range(5))
    assert one.digest(range(6)) != two.digest(range(6))
    (tmp_path / "two" / "test" / "dog" / "2.png").unlink()
    with pytest.raises(DataError, match="Cannot read the image"):
        two.digest(range(6))


def test_folder_of_classes(linear_model: Callable[..., Path], tmp_path: Path) -> None:
    card = Predictor.load(linear_model(np.eye(2, 4), shape=(1, 2, 2))).card
    for name in card.classes:
        (tmp_path / "set" / "test" / name).mkdir(parents=True)
        Image.fromarray(np.full((2, 2), 7, np.uint8)).save(tmp_path / "set" / "test" / name / "a.png")
    data = load_images(f"folder:{tmp_path / 'set'}", card)
    assert data.labels.tolist() == [0, 1]
    assert data.read(1).tolist() == np.full((1, 2, 2), 7).tolist()
    (tmp_path / "set" / "test" / "stranger").mkdir()
    with pytest.raises(DataError, match="holds no images"):
        load_images(f"folder:{tmp_path / 'set'}", card)
    Image.fromarray(np.full((2, 2), 7, np.uint8)).save(tmp_path / "set" / "test" / "stranger" / "a.png")
    with pytest.raises(DataError, match="'stranger', which the model does not know"):
        load_images(f"folder:{tmp_path / 'set'}", card)


def test_folder_without_a_split_takes_every_fifth(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for number in range(5):
            (tmp_path / name / f"{number}.png").touch()
    files, labels, classes = class_folders(tmp_path, "test")
    assert ([file.name for file in files], labels, classes) == (["4.png", "4.png"], [0, 1], ["a", "b"])
    assert len(class_folders(tmp_path, "train")[0]) == 8
    assert split_fifth(7, test=True).tolist() == [4]


@pytest.mark.parametrize(
    ("arrays", "sentence"),
    [
        ({"x_test": np.zeros((2, 2, 2)), "y_test": np.zeros(2, int)}, "uint8"),
        ({"x_test": np.zeros((2, 2, 2), np.uint8)}, "holds x_test, y_test"),
        ({"x_test": np.zeros((2, 2, 2), np.uint8), "y_test": np.zeros(3, int)}, "one whole number"),
        ({"x_test": np.zeros((2, 5, 2, 2), np.uint8), "y_test": np.zeros(2, int)}, "N x H x W"),
        (
            {"x_test": np.zeros((2, 2, 2), np.uint8), "y_test": np.array([0, 5]), "classes": np.array(["a", "b"])},
            "names 2",
        ),
    ],
)
def test_npz_files_are_checked(arrays: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "set.npz", **arrays)
    with pytest.raises(DataError, match=sentence):
        npz_arrays(tmp_path / "set.npz", "test")


@pytest.mark.parametrize("spec", ["nowhere", "folder:nowhere", "npz:nowhere.npz"])
def test_unknown_data_is_refused(spec: str, linear_model: Callable[..., Path]) -> None:
    card = Predictor.load(linear_model(np.eye(2, 4), shape=(1, 2, 2))).card
    with pytest.raises(DataError):
        load_images(spec, card)


def test_data_of_another_shape_is_refused(linear_model: Callable[..., Path]) -> None:
    card = Predictor.load(linear_model(np.eye(10, 4), shape=(1, 2, 2))).card
    with pytest.raises(DataError, match=r"shape \(1, 8, 8\), but the model takes \(1, 2, 2\)"):
        load_images("digits", card)
