"""The sets of torchvision: every one is read or refused with a reason, and small ones in its own layouts are read."""

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from robustinfer.data import open_source, parse_data
from robustinfer.data.vision import _datasets
from robustinfer.data.vision_sets import REFUSED, SETS
from robustinfer.errors import MissingDataError, MissingExtraError

IMAGES = np.random.default_rng(0).integers(0, 256, (10, 28, 28), dtype=np.uint8)


def idx(path: Path, array: Any, code: int) -> None:
    """A file of the format that MNIST has: 0, 0, type, dimensions, sizes, values, all of them big-endian."""
    path.parent.mkdir(parents=True, exist_ok=True)
    head = struct.pack(f">HBB{array.ndim}I", 0, code, array.ndim, *array.shape)
    path.write_bytes(head + array.astype(array.dtype.newbyteorder(">")).tobytes())


def picture(path: Path, number: int = 0) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(IMAGES[number]).convert("RGB").save(path)


def opened(name: str, root: Path, split: str = "train") -> Any:
    return open_source(parse_data(f"torchvision:{name}:{root}"), split)


@pytest.fixture
def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small files in the right places do not have the checksums of the real ones."""
    datasets = _datasets()
    for module in ("fer2013", "semeion", "places365"):
        monkeypatch.setattr(getattr(datasets, module), "check_integrity", lambda path, md5=None: Path(path).is_file())


def test_every_set_of_torchvision_is_read_or_refused_with_a_reason() -> None:
    known = {name.partition("-")[0] for name in SETS}
    assert known.isdisjoint(REFUSED)
    assert known | set(REFUSED) == set(_datasets().__all__)
    with pytest.raises(MissingDataError, match=r"CelebA cannot be read as images of one class each: .* attributes"):
        opened("CelebA", Path("data"))
    with pytest.raises(MissingDataError, match="takes one of MNIST, FashionMNIST"):
        opened("Nonsense", Path("data"))


@pytest.mark.parametrize(("name", "classes"), [("EMNIST", 47), ("EMNIST-letters", 26), ("EMNIST-digits", 10)])
def test_emnist_and_its_variants(tmp_path: Path, name: str, classes: int) -> None:
    variant = name.partition("-")[2] or "balanced"
    labels = np.arange(10, dtype=np.uint8) + (variant == "letters")
    for part in ("train", "test"):
        idx(tmp_path / "EMNIST" / "raw" / f"emnist-{variant}-{part}-images-idx3-ubyte", IMAGES, 8)
        idx(tmp_path / "EMNIST" / "raw" / f"emnist-{variant}-{part}-labels-idx1-ubyte", labels, 8)
    source = opened(name, tmp_path, "test")
    assert source.labels.tolist() == list(range(10))
    assert len(source.classes) == classes
    assert "N/A" not in source.classes
    np.testing.assert_array_equal(source.images, IMAGES[:, None])


def test_qmnist(tmp_path: Path) -> None:
    rows = np.zeros((10, 8), dtype=np.int32)
    rows[:, 0], rows[:, 1] = np.arange(10), 99
    for part in ("train", "test"):
        idx(tmp_path / "QMNIST" / "raw" / f"qmnist-{part}-images-idx3-ubyte", IMAGES, 8)
        idx(tmp_path / "QMNIST" / "raw" / f"qmnist-{part}-labels-idx2-int", rows, 12)
    source = opened("QMNIST", tmp_path)
    assert source.labels.tolist() == list(range(10))
    assert source.images.shape == (10, 1, 28, 28)


def test_pcam(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    pixels = np.random.default_rng(1).integers(0, 256, (4, 96, 96, 3), dtype=np.uint8)
    (tmp_path / "pcam").mkdir()
    for part in ("train", "test"):
        for letter, array in (("x", pixels), ("y", np.array([0, 1, 1, 0], np.uint8).reshape(4, 1, 1, 1))):
            with h5py.File(tmp_path / "pcam" / f"camelyonpatch_level_2_split_{part}_{letter}.h5", "w") as file:
                file[letter] = array
    source = opened("PCAM", tmp_path, "test")
    assert (source.labels.tolist(), source.classes) == ([0, 1, 1, 0], ("no tumour", "tumour"))
    np.testing.assert_array_equal(source.images, pixels.transpose(0, 3, 1, 2))


def test_without_h5py_it_says_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "h5py", None)
    with pytest.raises(MissingExtraError, match=r"Reading PCAM needs .*'h5py'.*robustinfer\[hdf5\]"):
        opened("PCAM", tmp_path)


@pytest.mark.usefixtures("unchecked")
def test_fer2013(tmp_path: Path) -> None:
    face = " ".join(map(str, range(48 * 48 // 9))) + " 7" * (48 * 48 - 48 * 48 // 9)
    rows = [f"{label},{face},{usage}" for label, usage in ((3, "Training"), (0, "Training"), (6, "PublicTest"))]
    (tmp_path / "fer2013").mkdir()
    (tmp_path / "fer2013" / "fer2013.csv").write_text("\n".join(["emotion,pixels,Usage", *rows]) + "\n")
    source = opened("FER2013", tmp_path)
    assert (source.labels.tolist(), source.images.shape) == ([3, 0], (2, 1, 48, 48))
    assert source.classes[3] == "happy"
    assert opened("FER2013", tmp_path, "test").labels.tolist() == [6]
    with pytest.raises(MissingDataError, match="torchvision cannot download FER2013: fetch its files by hand"):
        open_source(parse_data(f"torchvision:FER2013:{tmp_path}"), download=True)
    (tmp_path / "fer2013" / "fer2013.csv").unlink()
    (tmp_path / "fer2013" / "test.csv").write_text(f"pixels\n{face}\n")
    with pytest.raises(MissingDataError, match=r"not in test\.csv: give the folder of fer2013\.csv"):
        opened("FER2013", tmp_path, "test")


@pytest.mark.parametrize(("name", "first", "second"), [("101", "accordion", "zebra"), ("256", "001.ak47", "002.flag")])
def test_caltech_is_split_by_the_fixed_rule(tmp_path: Path, name: str, first: str, second: str) -> None:
    with pytest.raises(MissingDataError, match=f"There is no complete Caltech{name}"):
        opened(f"Caltech{name}", tmp_path)
    assert not list(tmp_path.iterdir())  # looking for it makes no folders
    folder = tmp_path / f"caltech{name}" / f"{name}_ObjectCategories"
    for label, category in enumerate((first, second), start=1):
        for number in range(1, 6):
            start = "image" if name == "101" else f"{label:03d}"
            picture(folder / category / f"{start}_{number:04d}.jpg", number)
    if name == "101":
        picture(folder / "BACKGROUND_Google" / "image_0001.jpg")
        (tmp_path / "caltech101" / "Annotations").mkdir()
    whole = opened(f"Caltech{name}", tmp_path, "all")
    assert (whole.classes, len(whole)) == ((first, second), 10)
    assert all(file.is_file() for file in whole.files)
    test = opened(f"Caltech{name}", tmp_path, "test")
    assert "every fifth image" in test.rule
    assert test.labels.tolist() == [0, 1]


@pytest.mark.usefixtures("unchecked")
def test_semeion(tmp_path: Path) -> None:
    rows = np.zeros((10, 266))
    rows[:, :256] = np.random.default_rng(2).integers(0, 2, (10, 256))
    rows[np.arange(10), 256 + np.arange(10)] = 1
    np.savetxt(tmp_path / "semeion.data", rows)
    source = opened("SEMEION", tmp_path, "all")
    assert source.labels.tolist() == list(range(10))
    assert (source.images.shape, set(np.unique(source.images))) == ((10, 1, 16, 16), {0, 255})


def test_clevr_counts_things(tmp_path: Path) -> None:
    base = tmp_path / "clevr" / "CLEVR_v1.0"
    for part in ("train", "val"):
        scenes = []
        for number, count in enumerate((3, 10, 5)):
            picture(base / "images" / part / f"CLEVR_{part}_{number:06d}.png", number)
            scenes.append({"image_filename": f"CLEVR_{part}_{number:06d}.png", "objects": [{}] * count})
        (base / "scenes").mkdir(exist_ok=True)
        (base / "scenes" / f"CLEVR_{part}_scenes.json").write_text(json.dumps({"scenes": scenes}))
    source = opened("CLEVRClassification", tmp_path, "test")
    assert [source.classes[label] for label in source.labels] == ["3", "10", "5"]


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(("name", "size"), [("Places365", "large"), ("Places365-small", "256")])
def test_places365(tmp_path: Path, name: str, size: str) -> None:
    (tmp_path / "categories_places365.txt").write_text("/a/airfield 0\n/b/barn 1\n")
    (tmp_path / "places365_train_standard.txt").write_text("/a/airfield/1.jpg 0\n/b/barn/2.jpg 1\n")
    (tmp_path / "places365_val.txt").write_text("Places365_val_1.jpg 1\n")
    picture(tmp_path / f"data_{size}_standard" / "a" / "airfield" / "1.jpg")
    picture(tmp_path / f"data_{size}_standard" / "b" / "barn" / "2.jpg")
    picture(tmp_path / f"val_{size}" / "Places365_val_1.jpg")
    assert [file.is_file() for file in opened(name, tmp_path).files] == [True, True]
    test = opened(name, tmp_path, "test")
    assert (test.labels.tolist(), test.classes) == ([1], ("/a/airfield", "/b/barn"))
