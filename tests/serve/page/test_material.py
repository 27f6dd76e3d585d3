"""What a page finds beside a model file."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from robust.serve.page import material_beside

from robustinfer import Predictor

from ..models import brightness_model
from .conftest import BRIGHT, constant


def test_finds_examples_attacks_and_the_ordinary_network(folder: Path, shown: Predictor) -> None:
    material = material_beside(folder / "tiny.onnx", shown.card)
    assert [example.name for example in material.examples] == ["bright, test image 7", "bright", "undecided"]
    assert np.array_equal(material.examples[0].image, constant(BRIGHT))
    direction = material.direction("bright, test image 7")
    assert direction is not None
    assert direction[0, 0, 0] == 178 - BRIGHT
    assert set(direction.ravel()[1:]) == {-8}
    assert material.direction("bright") is None
    assert material.direction("no such picture") is None
    assert material.ordinary is not None
    assert material.ordinary.card.name == "ordinary"


def test_an_attacked_picture_is_shown_once_under_its_own_name(folder: Path, tmp_path: Path, shown: Predictor) -> None:
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    Image.fromarray(constant(BRIGHT)[0]).save(tmp_path / "images" / "lamp.png")
    material = material_beside(tmp_path / "tiny.onnx", shown.card)
    assert [example.name for example in material.examples] == ["lamp", "bright", "undecided"]
    assert material.direction("lamp") is not None
    assert material.direction("bright") is None


def test_needs_nothing_beside_the_model(tmp_path: Path, shown: Predictor) -> None:
    model = brightness_model(tmp_path / "tiny.onnx")
    assert material_beside(model, shown.card) == type(material_beside(model, shown.card))()


def test_leaves_out_what_does_not_fit(folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    large = brightness_model(tmp_path / "large.onnx", name="large", shape=(1, 16, 16))
    found = material_beside(large, Predictor.load(large, threads=1).card)
    assert (found.examples, found.ordinary) == ((), None)
    assert "Expected an image of 16 x 16 pixels" in caplog.text
    assert "has other images or classes" in caplog.text


def test_broken_files_cost_only_themselves(
    folder: Path, tmp_path: Path, shown: Predictor, caplog: pytest.LogCaptureFixture
) -> None:
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    for name in ("attacked.npz", "ordinary.onnx", "images/bright.png"):
        (tmp_path / name).write_bytes(b"broken")
    found = material_beside(tmp_path / "tiny.onnx", shown.card)
    assert [example.name for example in found.examples] == ["undecided"]
    assert found.ordinary is None
    assert len(caplog.records) == 3


def test_a_model_is_not_its_own_ordinary_network(folder: Path, ordinary: Predictor) -> None:
    assert material_beside(folder / "ordinary.onnx", ordinary.card).ordinary is None
