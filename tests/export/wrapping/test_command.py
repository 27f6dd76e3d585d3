"""`robust wrap` and `--card` from the command line, with what is said about noise."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from robustinfer import Card, InputSpec

from ...commands import Robust
from .test_wrapper import CLASSES, graph


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    graph(tmp_path / "foreign.onnx", batch=1, flatten="constant")
    (tmp_path / "labels.txt").write_text("\n".join(CLASSES) + "\n")
    pixels = np.random.default_rng(3).integers(0, 256, (9, 12, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "photo.png")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_wrap_then_certify(folder: Path, robust: Robust) -> None:
    options = ["--classes", "labels.txt", "--mean", "0.5,0.4,0.3", "--std", "0.2", "--samples", "20", "--crop", "0.9"]
    code, out, err = robust("wrap", "foreign.onnx", *options, "--sigma", "0.25", "--images", ".", "--out", "m.onnx")
    assert code == 0, err
    assert "same label as the original on 1 of 1 images" in out
    assert "its fixed batch size of 1 is dynamic now" in err
    assert "under sigma 0.25 this network keeps" in err
    code, out, err = robust("certify", "m.onnx", "photo.png", "--n", "300", "--json")
    assert code == 0, err
    assert json.loads(out)["plain"]["class_name"] in CLASSES
    code, out, _ = robust("inspect", "m.onnx")
    assert "0.25, chosen when wrapped: not trained with noise" in out
    assert "the inner 0.9 of each side is kept" in out


def test_options_that_are_not_numbers(folder: Path, robust: Robust) -> None:
    for option, value in (("--mean", "a,b"), ("--size", "4by6")):
        words = ["wrap", "foreign.onnx", "--classes", "labels.txt", "--out", "m.onnx", option, value]
        code, _, err = robust(*words)
        assert code == 2
        assert f"Expected {option} as" in err


def test_a_file_that_is_not_there(folder: Path, robust: Robust) -> None:
    code, _, err = robust("wrap", "gone.onnx", "--classes", "labels.txt", "--out", "m.onnx")
    assert (code, "There is no model file gone.onnx." in err) == (2, True)


def test_a_card_beside_a_file_without_one(folder: Path, robust: Robust) -> None:
    graph(folder / "free.onnx")
    card = Card(classes=CLASSES, input=InputSpec(3, 4, 6, resize="bilinear"), name="theirs")
    (folder / "card.json").write_text(card.dumps())
    code, _, err = robust("certify", "free.onnx", "photo.png", "--n", "200", "--sigma", "0.5")
    assert code == 1
    assert "robust wrap" in err
    beside = ["--card", "card.json"]
    words = ["certify", "free.onnx", "photo.png", "--n", "200", "--sigma", "0.5", *beside]
    code, out, err = robust(*words)
    assert (code, out[:10]) == (0, "photo.png:"), err
    code, out, err = robust("predict", "free.onnx", "photo.png", "--plain", "--json", *beside)
    assert json.loads(out)["class_name"] in CLASSES
    code, out, err = robust("inspect", "free.onnx", "--json", *beside)
    assert json.loads(out)["card"]["name"] == "theirs"
    code, out, err = robust("serve", "free.onnx", "--check", *beside)
    assert json.loads(out)["models"][0]["name"] == "free", err  # served under the name of the file
    code, out, err = robust("serve", "free.onnx", "a=free.onnx", "--check", *beside)
    assert "A card is given for one model, found 2" in err
