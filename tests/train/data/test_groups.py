"""Groups stay together where a training holds images out, limits draw over classes, and broken files are left out."""

import logging
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from robust.train.data.datasets import load_data

from robustinfer.errors import DataError


def write_folder(root: Path, count: int = 20) -> Path:
    for label, name in enumerate(("cat", "dog")):
        (root / "train" / name).mkdir(parents=True)
        for number in range(count):
            pixels = np.full((4, 4), 90 * label + number, np.uint8)
            Image.fromarray(pixels).save(root / "train" / name / f"{number // 4}_{number:02}.png")
    return root


def test_held_out_images_are_whole_groups(tmp_path: Path) -> None:
    data = load_data(f"folder:{write_folder(tmp_path)}?group=^(.*)_")
    train, held_out = data.split(0.2)
    assert train.groups is not None
    assert held_out.groups is not None
    assert not set(train.groups.tolist()) & set(held_out.groups.tolist())
    assert (len(train), len(held_out)) == (32, 8)
    assert torch.equal(data.split(0.2)[1].labels, held_out.labels)
    assert len(held_out.take(torch.arange(8))) == 8


def test_the_first_images_of_a_folder_are_of_all_classes(tmp_path: Path) -> None:
    data = load_data(f"folder:{write_folder(tmp_path)}")
    assert data.head(10).labels.tolist() == [0] * 5 + [1] * 5


def test_broken_files_are_left_out_of_training(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = write_folder(tmp_path)
    whole = load_data(f"folder:{folder}")
    (folder / "train" / "cat" / "0_00.png").write_bytes(b"no picture")
    with pytest.raises(DataError, match=r"0_00.png: This is not a PNG.*--skip-unreadable"):
        load_data(f"folder:{folder}")
    with caplog.at_level(logging.WARNING):
        data = load_data(f"folder:{folder}", skip_unreadable=1)
    assert "0_00.png" in caplog.text
    assert (len(data), len(whole)) == (39, 40)
    assert torch.equal(data.take(torch.arange(39)), whole.take(torch.arange(1, 40)))
    (folder / "train" / "dog" / "0_01.png").write_bytes(b"no picture")
    with pytest.raises(DataError, match="More than 1 files are unreadable"):
        load_data(f"folder:{folder}", skip_unreadable=1)
