"""Folders as people have them: limits over classes, files by name, unreadable files, sets without a split."""

import csv
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from robustinfer import Card, Certificate, InputSpec, Predictor
from robustinfer.certificate_file import certify_data, read_certificates
from robustinfer.data import choose_readable, load_images, unlabelled_images
from robustinfer.data.splits import choose, first_of_each_class, is_class_by_class, split_groups
from robustinfer.errors import ArgumentError, CertificateError, DataError, MissingDataError

from ...commands import Robust

CARD = Card(classes=("0", "1"), input=InputSpec(1, 2, 2))


def write_folder(root: Path, *, classes: tuple[str, ...] = ("0", "1"), count: int = 10, side: int = 2) -> Path:
    for label, name in enumerate(classes):
        (root / name).mkdir(parents=True)
        for number in range(count):
            pixels = np.full((side, side), 100 * label + number, np.uint8)
            Image.fromarray(pixels).save(root / name / f"{number:02}.png")
    return root


@pytest.fixture
def model(linear_model: Callable[..., Path]) -> Path:
    weights = np.array([[0.0, 0, 0, 0], [1, 0, 0, 0]])
    return linear_model(weights, [0.3, 0], shape=(1, 2, 2), card=Card(CARD.classes, CARD.input, sigma=0.25))


@pytest.mark.parametrize("limit", [1, 2, 5, 6, 19])
def test_a_limit_draws_evenly_where_class_follows_class(limit: int) -> None:
    labels = np.repeat([3, 0, 7], (8, 2, 10))
    assert is_class_by_class(labels)
    chosen = choose(labels, limit=limit)
    assert len(chosen) == limit
    assert (np.diff(chosen) > 0).all()
    counts = {label: int((labels[chosen] == label).sum()) for label in (3, 0, 7)}
    for label, size in ((3, 8), (0, 2), (7, 10)):  # no class has two more than another that has images left
        assert all(counts[label] <= counts[other] + 1 or counts[other] == (labels == other).sum() for other in counts)
        assert counts[label] <= size
    assert set(choose(labels, limit=limit - 1).tolist()) <= set(chosen.tolist())


def test_a_limit_takes_the_first_images_of_a_mixed_set() -> None:
    labels = np.array([0, 1, 0, 1, 1, 0])
    assert not is_class_by_class(labels)
    assert choose(labels, limit=3).tolist() == [0, 1, 2]
    assert choose(labels, every=2).tolist() == [0, 2, 4]
    assert choose(labels, limit=3, left_out=[1]).tolist() == [0, 2, 3]
    assert first_of_each_class(np.array([0, 0, 1]), 9).tolist() == [0, 1, 2]


def test_groups_stay_whole_and_every_fifth_is_test() -> None:
    groups = np.array(["z", "z", "y", "x", "x", "w", "v", "v", "u", "z"])
    assert split_groups(groups, test=True).tolist() == [6, 7]
    assert split_groups(groups, test=False).tolist() == [0, 1, 2, 3, 4, 5, 8, 9]


def test_certificates_of_a_folder_name_their_files(model: Path, tmp_path: Path) -> None:
    folder, path = write_folder(tmp_path / "set"), tmp_path / "c.jsonl"
    predictor = Predictor.load(model)
    data = load_images(f"folder:{folder}", predictor.card, split="all")
    entries = list(certify_data(predictor, data, path, limit=6, n=100, seed=1))
    assert [entry.file for entry in entries] == [f"{name}/{number:02}.png" for name in "01" for number in range(3)]
    header, read = read_certificates(path)
    assert read == entries
    assert list(header.numbers) == [0, 1, 2, 10, 11, 12]
    assert (header.data, header.split, header.data_name) == (f"folder:{folder}", "all", "folder:set")
    again = load_images(header.data, predictor.card, split=header.split)
    for entry in entries:
        assert predictor.verify(entry.certificate, again.read(entry.index)).ok
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:3]))
    assert [entry.file for entry in certify_data(predictor, data, path, limit=6, n=100, seed=1)] == [
        entry.file for entry in entries
    ]


def test_a_header_that_needs_no_new_field_has_none(model: Path, tmp_path: Path) -> None:
    """So that older versions read the file."""
    predictor = Predictor.load(model)
    folder = write_folder(tmp_path / "set")
    list(certify_data(predictor, load_images(f"folder:{folder}", predictor.card), tmp_path / "c.jsonl", n=100))
    header = json.loads((tmp_path / "c.jsonl").read_text().splitlines()[0])["header"]
    assert {"split", "images"}.isdisjoint(header)


def test_the_refusal_says_what_differs(model: Path, tmp_path: Path) -> None:
    predictor = Predictor.load(model)
    data = load_images(f"folder:{write_folder(tmp_path / 'set')}", predictor.card, split="all")
    list(certify_data(predictor, data, tmp_path / "c.jsonl", limit=4, n=100, seed=1))
    with pytest.raises(CertificateError, match=r"another choice of images.*number of images is 4 there and 6 here"):
        list(certify_data(predictor, data, tmp_path / "c.jsonl", limit=6, n=100, seed=1))
    with pytest.raises(CertificateError, match=r"another choice of settings.*`n` is 100 there and 200 here"):
        list(certify_data(predictor, data, tmp_path / "c.jsonl", limit=4, n=200, seed=1))


def test_a_folder_that_was_moved_is_the_same_data(model: Path, tmp_path: Path) -> None:
    predictor = Predictor.load(model)
    write_folder(tmp_path / "set")
    data = load_images(f"folder:{tmp_path / 'set'}", predictor.card)
    list(certify_data(predictor, data, tmp_path / "c.jsonl", n=100, seed=1))
    (tmp_path / "set").rename(tmp_path / "moved")
    moved = load_images(f"folder:{tmp_path / 'moved'}", predictor.card)
    assert len(list(certify_data(predictor, moved, tmp_path / "c.jsonl", n=100))) == 4


@pytest.mark.parametrize("seed", [-1, 2**64])
def test_a_seed_outside_64_bits_is_refused_before_a_file_is_written(seed: int, model: Path, tmp_path: Path) -> None:
    predictor = Predictor.load(model)
    data = load_images(f"folder:{write_folder(tmp_path / 'set')}", predictor.card)
    with pytest.raises(ArgumentError, match="seed"):
        list(certify_data(predictor, data, tmp_path / "c.jsonl", n=100, seed=seed))
    assert not (tmp_path / "c.jsonl").exists()


def test_unreadable_files_are_left_out_up_to_a_limit(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "set")
    for name in ("0/00.png", "1/03.png"):
        (folder / name).write_bytes(b"no picture")
    data = load_images(f"folder:{folder}", CARD, split="all")
    with pytest.raises(DataError, match=r"00.png: This is not a PNG.*--skip-unreadable N"):
        choose_readable(data)
    with pytest.raises(DataError, match=r"More than 1 files are unreadable: .*1/03.png"):
        choose_readable(data, allowed=1)
    numbers, left_out = choose_readable(data, allowed=2)
    assert (len(numbers), sorted(left_out)) == (18, [0, 13])
    assert choose_readable(data, limit=8, allowed=2)[0].tolist() == [1, 2, 3, 4, 10, 11, 12, 14]


def test_mixed_sizes_are_refused_before_anything_is_certified(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "set")
    Image.new("L", (3, 2)).save(folder / "1" / "09.png")
    data = load_images(f"folder:{folder}", CARD)
    with pytest.raises(DataError, match=r"09.png: Expected an image of 2 x 2 pixels, found 3 x 2"):
        choose_readable(data)


def test_a_foreign_model_is_certified_on_all_of_a_set_without_a_split(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "set")
    trained = Card(classes=("0", "1"), input=InputSpec(1, 2, 2), training={"recipe": {"data": "folder:set"}})
    for card, split, count, part in (
        (CARD, "auto", 20, "all"),
        (trained, "auto", 4, "test"),
        (CARD, "test", 4, "test"),
        (trained, "train", 16, "train"),
        (trained, "all", 20, "all"),
    ):
        data = load_images(f"folder:{folder}", card, split=split)
        assert (len(data), data.split) == (count, part)
        assert "folder:set has no split" in data.rule
    divided = write_folder(tmp_path / "divided" / "test", count=2).parent
    write_folder(divided / "train", count=3)
    data = load_images(f"folder:{divided}", CARD, split="auto")
    assert (len(data), data.split, data.rule) == (4, "test", "")
    assert len(load_images(f"folder:{divided}", CARD, split="all")) == 10


def test_two_images_are_too_few_to_divide(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "set", count=1)
    with pytest.raises(DataError, match="every fifth image of 2 images leaves none: add images"):
        load_images(f"folder:{folder}", CARD)
    assert len(load_images(f"folder:{folder}", CARD, split="all")) == 2


def test_pictures_without_labels(robust: Robust, model: Path, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "set")
    (folder / "0" / ".hidden.png").write_bytes(b"thumbnail")
    assert len(unlabelled_images([folder, folder / "0" / "00.png"], CARD)) == 21
    answer = robust("certify", model, folder, "--n", 100, "--seed", 7, "--json")
    assert answer.code == 0, answer.err
    printed = [json.loads(line) for line in answer.out.splitlines()]
    assert [line["file"] for line in printed] == sorted(str(file) for file in folder.glob("*/[0-9]*.png"))
    out = tmp_path / "answers.jsonl"
    answer = robust("certify", model, folder, "--n", 100, "--seed", 7, "--out", out, "--limit", 5)
    assert answer.code == 0, answer.err
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert [line | {"seconds": 0} for line in lines] == [
        {key: value for key, value in line.items() if key != "plain"} | {"seconds": 0} for line in printed[:5]
    ]
    assert Certificate.from_json(lines[0]).n == 100
    assert robust("certify", model, folder, "--n", 100, "--out", out).code != 0, "nothing is written over"
    assert len(out.read_text().splitlines()) == 5


def test_a_table_of_certificates(robust: Robust, model: Path, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "set", count=3)
    (folder / "1" / "00.png").write_bytes(b"no picture")
    out = tmp_path / "answers.csv"
    assert robust("certify", model, folder, "--n", 100, "--out", out).code == DataError.exit_code
    assert not out.exists()
    answer = robust("certify", model, folder, "--n", 100, "--out", out, "--skip-unreadable", 1)
    assert answer.code == 0, answer.err
    assert "left out: " in answer.err
    assert "1/00.png" in answer.err
    rows = list(csv.DictReader(out.read_text().splitlines()))
    assert [Path(row["file"]).name for row in rows] == ["00.png", "01.png", "02.png", "01.png", "02.png"]
    assert float(rows[0]["radius"]) >= 0
    assert rows[0]["model"].startswith("sha256:")
    assert robust("certify", model, folder, "--out", "a.txt").code == ArgumentError.exit_code


@pytest.mark.parametrize(
    "words",
    [
        ("certify", "nowhere.onnx", "IMAGE"),
        ("certify", "MODEL", "nowhere.png"),
        ("certify", "MODEL", "--data", "nowhere"),
        ("certify", "MODEL", "--data", "folder:nowhere"),
        ("certify", "MODEL", "--data", "npz:nowhere.npz"),
        ("inspect", "nowhere.onnx"),
        ("train", "digits-l2", "--data", "/does/not/exist"),
        ("train", "digits-l2", "--data", "FOLDER"),
        ("train", "mnist-l2", "--data", "/does/not/exist"),
    ],
)
def test_what_is_not_there_is_a_misuse(words: tuple[str, ...], robust: Robust, model: Path, tmp_path: Path) -> None:
    image = write_folder(tmp_path / "set") / "0" / "00.png"
    here = {"MODEL": str(model), "IMAGE": str(image), "FOLDER": str(tmp_path / "set")}
    answer = robust(*(here.get(word, word) for word in words))
    assert answer.code == 2
    assert answer.err.startswith("robust: ")


def test_a_folder_of_digits_is_not_taken_for_digits(tmp_path: Path) -> None:
    trained = Card(classes=CARD.classes, input=CARD.input, training={"recipe": {"data": "digits"}})
    with pytest.raises(MissingDataError, match="trained on digits, which are not in a folder: write folder:"):
        load_images(str(write_folder(tmp_path / "set")), trained)


def test_report_finds_the_pictures_of_a_folder(
    robust: Robust, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_folder(tmp_path / "set")
    monkeypatch.chdir(tmp_path)
    answer = robust("certify", model, "--data", "folder:set", "--n", 100, "--limit", 6, "--out", "c.jsonl")
    assert answer.code == 0, answer.err
    assert "all images are used" in answer.err
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    pytest.importorskip("jinja2")
    answer = robust("report", tmp_path / "c.jsonl", "--model", model, "--out", "report.html")
    assert answer.code == 0, answer.err
    assert "no gallery" not in answer.err
    answer = robust("verify", tmp_path / "c.jsonl", "--index", 11, "--model", model)
    assert answer.code == 0, answer.err
