"""Data sets as people have them: each kind is read as its own files say, with groups and without a split."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from robustinfer import Card, InputSpec
from robustinfer.data import DataSpec, find_data, load_images, open_source, parse_data, place_data
from robustinfer.errors import DataError, MissingDataError

from ...commands import Robust

PIXELS = np.random.default_rng(5).integers(0, 256, (12, 4, 4, 3), dtype=np.uint8)


def save(number: int, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(PIXELS[number]).save(path)


def test_names_of_data_sets() -> None:
    assert parse_data("folder:a/b?group=^(\\d+)_") == DataSpec("folder", "a/b", "^(\\d+)_")
    for text in ("folder:a/b?group=x", "digits", "mnist:data", "torchvision:SVHN:data"):
        assert str(parse_data(text)) == text
    assert parse_data("torchvision:SVHN:a").resolved().path == f"SVHN:{Path('a').resolve()}"
    assert [parse_data(text).short for text in ("folder:/a/b", "mnist:/a", "npz:/a/b.npz", "torchvision:SVHN:/a")] == [
        "folder:b", "mnist", "npz:b.npz", "torchvision:SVHN"
    ]  # fmt: skip
    for text in ("folder", "folder:", "mnist:", "nothing:x", "npz:a?group=", "digits:x"):
        with pytest.raises(MissingDataError):
            parse_data(text)
    with pytest.raises(DataError, match="not one"):
        parse_data("folder:a?group=(")


def test_one_meaning_of_a_name(tmp_path: Path) -> None:
    here = str(tmp_path)
    assert place_data(None, "mnist") == ("mnist", "data")
    assert place_data(here, "mnist") == place_data(f"mnist:{here}", "digits") == ("mnist", here)
    assert place_data(f"folder:{here}", "digits") == place_data(here, "folder:x") == (f"folder:{here}", "data")
    assert place_data("not/there", "mnist", download=True) == ("mnist", "not/there")
    assert str(find_data(here, "torchvision:SVHN:elsewhere")) == f"torchvision:SVHN:{here}"
    assert place_data(here, "npz:data/signs.npz") == (f"npz:{tmp_path / 'signs.npz'}", "data")
    for trained_on in ("digits", "mnist", "folder:x"):
        with pytest.raises(MissingDataError):
            place_data("not/there", trained_on)


@pytest.mark.parametrize("suffix", ["ppm", "webp", "png"])
def test_suffixes(suffix: str, tmp_path: Path) -> None:
    for label in ("a", "b"):
        path = tmp_path / "test" / label / f"x.{suffix}"
        path.parent.mkdir(parents=True)
        Image.fromarray(PIXELS[0]).save(path, lossless=True)  # which concerns WebP alone
    data = load_images(f"folder:{tmp_path}", Card(classes=("a", "b"), input=InputSpec(3, 4, 4)))
    assert np.array_equal(data.read(1), np.moveaxis(PIXELS[0], 2, 0))


def test_plain_ppm_is_refused(tmp_path: Path) -> None:
    for label in ("a", "b"):
        (tmp_path / "test" / label).mkdir(parents=True)
        (tmp_path / "test" / label / "x.ppm").write_bytes(b"P3 1 1 255 1 2 3\n")
    data = load_images(f"folder:{tmp_path}", Card(classes=("a", "b"), input=InputSpec(3, 1, 1)))
    with pytest.raises(Exception, match="plain text: save it as binary"):
        data.read(0)


def test_medmnist(tmp_path: Path) -> None:
    labels = (np.arange(12) % 3).reshape(-1, 1).astype(np.uint8)
    parts = {"train": slice(0, 6), "val": slice(6, 8), "test": slice(8, 12)}
    arrays: dict[str, Any] = {f"{name}_images": PIXELS[part] for name, part in parts.items()}
    arrays |= {f"{name}_labels": labels[part] for name, part in parts.items()}
    np.savez(tmp_path / "pathmnist.npz", **arrays)
    source = open_source(parse_data(f"npz:{tmp_path / 'pathmnist.npz'}"), "test")
    assert source.labels.tolist() == labels[8:, 0].tolist()
    assert source.images is not None
    assert np.array_equal(source.images, np.moveaxis(PIXELS[8:], 3, 1))
    arrays["test_labels"] = np.zeros((4, 14), np.uint8)
    np.savez(tmp_path / "chestmnist.npz", **arrays)
    with pytest.raises(DataError, match="14 labels per image; a classifier needs one"):
        open_source(parse_data(f"npz:{tmp_path / 'chestmnist.npz'}"), "test")


def test_npz_without_a_split_keeps_groups_together(tmp_path: Path) -> None:
    groups = np.repeat(np.arange(6), 2)
    np.savez(tmp_path / "a.npz", x=PIXELS, y=np.arange(12) % 2, group=groups)
    spec = parse_data(f"npz:{tmp_path / 'a.npz'}")
    train, test = open_source(spec, "train"), open_source(spec, "test")
    assert train.groups is not None
    assert test.groups is not None
    assert set(train.groups) == {0, 1, 2, 3, 5}
    assert set(test.groups) == {4}
    assert "every fifth group is used, 2 of 12 images" in test.rule


def test_a_pattern_keeps_files_together(tmp_path: Path) -> None:
    for number in range(12):
        save(number, tmp_path / "ab"[number % 2] / f"p{number // 2}_{number}.png")
    spec = parse_data(f"folder:{tmp_path}?group=p(\\d+)_")
    parts = {split: open_source(spec, split) for split in ("train", "test")}
    found = {split: {name.split("/p")[1][0] for name in part.names} for split, part in parts.items()}
    assert found == {"train": {"0", "1", "2", "3", "5"}, "test": {"4"}}
    with pytest.raises(DataError, match=r"finds nothing in a/p0_0\.png"):
        open_source(parse_data(f"folder:{tmp_path}?group=q"), "test")


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_csv(delimiter: str, tmp_path: Path) -> None:
    for number in range(12):
        save(number, tmp_path / "pics" / f"{number}.png")
    rows = [["path", "label", "split"]]
    rows += [[f"pics/{n}.png", ("cat", "dog")[n % 2], "test" if n > 8 else "train"] for n in range(12)]
    table = tmp_path / "table.csv"
    table.write_text("\n".join(delimiter.join(row) for row in rows))
    card = Card(classes=("ant", "cat", "dog"), input=InputSpec(3, 4, 4))
    data = load_images(f"csv:{table}", card)
    assert data.files == ("pics/9.png", "pics/10.png", "pics/11.png")
    assert data.labels.tolist() == [2, 1, 2]
    assert np.array_equal(data.read(0), np.moveaxis(PIXELS[9], 2, 0))
    table.write_text("path,label\npics/0.png\n")
    with pytest.raises(DataError, match="Line 2"):
        open_source(parse_data(f"csv:{table}"))
    table.write_text("a,b\n1,2\n")
    with pytest.raises(DataError, match="names the columns path and label"):
        open_source(parse_data(f"csv:{table}"))


def test_csv_with_numbers_and_groups(tmp_path: Path) -> None:
    for number in range(12):
        save(number, tmp_path / f"{number}.png")
    lines = [f"{n}.png,{n % 2},{n // 2}" for n in range(12)]
    (tmp_path / "t.csv").write_text("\n".join(["file,target,group", *lines]))
    data = load_images(f"csv:{tmp_path / 't.csv'}", Card(classes=("even", "odd"), input=InputSpec(3, 4, 4)))
    assert data.labels.tolist() == [0, 1]
    assert data.files == ("8.png", "9.png")


def test_gtsrb(tmp_path: Path) -> None:
    root = tmp_path / "gtsrb" / "GTSRB"
    for number in range(8):
        save(number, root / "Training" / f"{number % 2:05}" / f"{number // 4:05}_{number:05}.ppm")
    for number in (0, 1):
        save(8 + number, root / "Final_Test" / "Images" / f"{number:05}.ppm")
    table = (
        "Filename;Width;Height;Roi.X1;Roi.Y1;Roi.X2;Roi.Y2;ClassId\n00000.ppm;4;4;0;0;3;3;1\n00001.ppm;4;4;0;0;3;3;0\n"
    )
    (tmp_path / "gtsrb" / "GT-final_test.csv").write_text(table)
    train = open_source(parse_data(f"gtsrb:{tmp_path}"), "train")
    assert (len(train), train.classes) == (8, ("0", "1"))
    assert train.groups is not None
    assert len(set(train.groups)) == 4
    data = load_images(f"gtsrb:{tmp_path}", Card(classes=("stop", "yield"), input=InputSpec(3, 4, 4)))
    assert data.labels.tolist() == [1, 0]
    assert np.array_equal(data.read(0), np.moveaxis(PIXELS[8], 2, 0))
    with pytest.raises(MissingDataError, match="GTSRB/Training"):
        open_source(parse_data(f"gtsrb:{tmp_path / 'gtsrb' / 'GTSRB' / 'Training'}"))


def test_torchvision(tmp_path: Path) -> None:
    with pytest.raises(MissingDataError, match=r"no complete SVHN.*robust data torchvision:SVHN:\S+ --download"):
        open_source(parse_data(f"torchvision:SVHN:{tmp_path}"))
    with pytest.raises(MissingDataError, match="CocoDetection cannot be read as images of one class each"):
        open_source(parse_data(f"torchvision:CocoDetection:{tmp_path}"))
    for number in range(10):
        save(number, tmp_path / "eurosat" / "2750" / ("Forest", "River")[number % 2] / f"{number}.png")
    source = open_source(parse_data(f"torchvision:EuroSAT:{tmp_path}"), "test")
    assert (len(source), source.classes) == (2, ("Forest", "River"))
    assert "every fifth image" in source.rule


def test_parquet(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    def encoded(number: int) -> dict[str, Any]:
        stream = io.BytesIO()
        Image.fromarray(PIXELS[number]).save(stream, format="PNG")
        return {"bytes": stream.getvalue(), "path": None}

    features = {"info": {"features": {"label": {"names": ["cat", "dog"], "_type": "ClassLabel"}}}}
    for name, numbers in (("train-00000-of-00001", range(8)), ("validation-00000-of-00001", range(8, 12))):
        table = pyarrow.table({"image": [encoded(n) for n in numbers], "label": [n % 2 for n in numbers]})
        table = table.replace_schema_metadata({"huggingface": json.dumps(features)})
        parquet.write_table(table, tmp_path / f"{name}.parquet")
    data = load_images(f"parquet:{tmp_path}", Card(classes=("dog", "cat"), input=InputSpec(3, 4, 4)))
    assert data.labels.tolist() == [1, 0, 1, 0]
    assert np.array_equal(data.read(3), np.moveaxis(PIXELS[11], 2, 0))


def test_the_command_describes_a_folder(robust: Robust, tmp_path: Path) -> None:
    for number in range(10):
        save(number, tmp_path / "set" / "train" / "ab"[number % 2] / f"{number}.png")
    for number, name in ((10, "a/x.png"), (1, "b/y.png")):
        save(number, tmp_path / "set" / "test" / name)
    (tmp_path / "set" / "train" / "a" / "broken.png").write_bytes(b"no picture")
    sheet = tmp_path / "out" / "sheet.png"
    answer = robust("data", f"folder:{tmp_path / 'set'}", "--json", "--sheet", sheet)
    assert answer.code == 0, answer.err
    found = json.loads(answer.out)
    assert found["parts"]["train"]["classes"] == {"a": 6, "b": 5}
    assert found["parts"]["train"]["sizes"] == {"4x4": 10}
    assert list(found["parts"]["train"]["unreadable"]) == ["train/a/broken.png"]
    assert found["across"] == ["test/b/y.png = train/b/1.png"]
    with Image.open(sheet) as picture:
        assert picture.size == (800, 128)
    assert robust("data", f"folder:{tmp_path / 'set'}", "--max-unreadable", 0).code == 1
    answer = robust("data", f"folder:{tmp_path / 'set'}", "--max-unreadable", 1)
    assert answer.code == 0, answer.err
    assert "unreadable: 1" in answer.out


def test_statistics_of_arrays(robust: Robust, tmp_path: Path) -> None:
    labels = np.arange(12) % 2
    np.savez(
        tmp_path / "a.npz", x_train=PIXELS, y_train=labels, group_train=labels, x_test=PIXELS[:2], y_test=labels[:2],
        group_test=[1, 7],
    )  # fmt: skip
    found = json.loads(robust("data", f"npz:{tmp_path / 'a.npz'}", "--json").out)
    part = found["parts"]["train"]
    assert part["mean"] == pytest.approx((PIXELS / 255).mean(axis=(0, 1, 2)), abs=1e-4)
    assert part["std"] == pytest.approx((PIXELS / 255).std(axis=(0, 1, 2)), abs=1e-4)
    assert found["across"] == ["image 0 = image 0", "image 1 = image 1"]
    assert found["shared_groups"] == ["1"]
