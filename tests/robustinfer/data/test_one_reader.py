"""Training, evaluation, certification and serving see the same pixels of the same file."""

import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from robust.serve.service.limits import Limits
from robust.serve.service.reading import read
from robust.train.data.datasets import ImageData, load_data
from robust.train.data.pixels import folder_pixels
from robust.train.evaluation.evaluation import load_test_images

from robustinfer.card import Card, InputSpec
from robustinfer.data import class_folders, load_images
from robustinfer.errors import DataError, ImageFileError
from robustinfer.images import decode_image, picture_shape

ORIENTATIONS = range(1, 9)


def photo(height: int, width: int) -> Image.Image:
    """Smooth colours with detail on top: crops and interpolations that differ show."""
    y, x = np.mgrid[0:height, 0:width]
    waves = [np.sin(x / (3 + c)) + np.cos(y / (5 + c)) + (x * (c + 1) + y) / (height + width) for c in range(3)]
    pixels = np.stack(waves, axis=2)
    scaled = (pixels - pixels.min()) / np.ptp(pixels) * 255
    return Image.fromarray(scaled.round().astype(np.uint8))


def write_pictures(folder: Path) -> Path:
    """Two classes, five files of each kind: odd sizes, orientations, modes. Returns the folder."""
    pictures = {
        "odd.png": photo(481, 641),
        "tall.jpg": photo(97, 33),
        "tiny.png": photo(5, 3),
        "exact.png": photo(32, 32),
        "grey.png": photo(61, 47).convert("L"),
        "grey.jpg": photo(47, 61).convert("L"),
        "rgba.png": photo(50, 70).convert("RGBA"),
        "alpha.png": photo(51, 70).convert("LA"),
        "palette.png": photo(52, 75).quantize(32),
        "bilevel.png": photo(40, 45).convert("1"),
    }
    for name, picture in pictures.items():
        for label in ("cat", "dog"):
            (folder / label).mkdir(parents=True, exist_ok=True)
            picture.save(folder / label / name)
    see_through = photo(52, 75).quantize(32)
    see_through.save(folder / "cat" / "see_through.png", transparency=bytes(range(0, 256, 8)))
    see_through.save(folder / "dog" / "one_colour.png", transparency=3)
    for turn in ORIENTATIONS:
        for suffix in ("jpg", "png"):
            picture = photo(39 + turn, 61)
            exif = picture.getexif()
            exif[0x0112] = turn
            picture.save(folder / "cat" / f"turned{turn}.{suffix}", exif=exif)
    return folder


def all_images(data: ImageData) -> np.ndarray:
    return data.take(torch.arange(len(data))).numpy()


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("pictures")
    for split in ("train", "test"):
        write_pictures(root / split)
    return root


def test_four_ways_to_the_same_pixels(pictures: Path) -> None:
    training = load_data(f"folder:{pictures}", size=32)
    card = Card(classes=training.classes, input=training.input)
    assert card.input == InputSpec(3, 32, 32, resize="bilinear")
    evaluated = load_test_images(f"folder:{pictures}", "digits", model=card)
    certified = load_images(f"folder:{pictures}", card)
    files, _, _ = class_folders(pictures, "test")
    on_disk = folder_pixels(pictures, files, card.input, memory=0)
    expected = np.stack([certified.read(number) for number in range(len(certified))])
    assert len(expected) == len(files) == 38
    assert expected.dtype == np.uint8
    assert np.array_equal(all_images(training), expected)
    assert np.array_equal(all_images(evaluated), expected)
    assert np.array_equal(on_disk.take(torch.arange(len(files))).numpy(), expected)
    for number, file in enumerate(files):
        body = {"body": file.read_bytes()}
        (served,) = read(body, content_type="", spec=card.input, limits=Limits()).images
        assert np.array_equal(served, expected[number]), file
    assert training.labels.tolist() == evaluated.labels.tolist() == certified.labels.tolist()


@pytest.mark.parametrize("shape", [(1, 32, 32), (3, 24, 40), (1, 31, 17)])
def test_the_model_says_how_a_folder_is_read(pictures: Path, shape: tuple[int, int, int]) -> None:
    """Not the files: a grey model is evaluated on grey pixels, one of another aspect ratio on those it takes."""
    card = Card(classes=("ant", "cat", "dog"), input=InputSpec(*shape, resize="bicubic"))
    certified = load_images(f"folder:{pictures}", card)
    evaluated = load_test_images(f"folder:{pictures}", "digits", model=card)
    assert np.array_equal(all_images(evaluated), np.stack([certified.read(i) for i in range(len(certified))]))
    assert evaluated.input == card.input
    assert evaluated.classes == card.classes
    assert evaluated.labels.tolist() == certified.labels.tolist()
    assert set(certified.labels.tolist()) == {1, 2}, "a class the folder lacks does not shift the others"


def test_a_turned_photo_is_turned_everywhere(tmp_path: Path) -> None:
    """Without `size` the files' own shape counts, after the camera's orientation."""
    upright = photo(30, 20)
    turned = upright.transpose(Image.Transpose.ROTATE_90)
    exif = turned.getexif()
    exif[0x0112] = 6
    for label in ("cat", "dog"):
        (tmp_path / label).mkdir()
        for number in range(5):
            upright.save(tmp_path / label / f"{number}.png")
            turned.save(tmp_path / label / f"turned{number}.png", exif=exif)
    assert picture_shape(tmp_path / "cat" / "turned0.png") == (3, 30, 20)
    data = load_data(f"folder:{tmp_path}")
    assert data.input == InputSpec(3, 30, 20)
    assert (all_images(data) == np.moveaxis(np.asarray(upright), 2, 0)).all()


def test_grey_pictures_of_16_bits_are_refused_everywhere(tmp_path: Path) -> None:
    picture = Image.fromarray(np.full((32, 32), 40_000, dtype=np.uint16))
    for label in ("cat", "dog"):
        (tmp_path / label).mkdir()
        for number in range(5):
            picture.save(tmp_path / label / f"{number}.png")
    card = Card(classes=("cat", "dog"), input=InputSpec(1, 32, 32, resize="bilinear"))
    with pytest.raises(DataError, match=r"0.png: Expected 8 bits per channel.*Repair or remove it"):
        load_data(f"folder:{tmp_path}", size=32)
    with pytest.raises(DataError, match="Expected 8 bits per channel"):
        load_test_images(f"folder:{tmp_path}", "digits", model=card)
    with pytest.raises(ImageFileError, match="Expected 8 bits per channel"):
        load_images(f"folder:{tmp_path}", card).read(0)
    body = {"body": (tmp_path / "cat" / "0.png").read_bytes()}
    with pytest.raises(ImageFileError, match="Expected 8 bits per channel"):
        read(body, content_type="", spec=card.input, limits=Limits())


def test_16_bits_per_colour_are_read_as_8(tmp_path: Path) -> None:
    """Pillow takes the upper byte; what matters here is that every reader is told the same."""
    import struct
    import zlib

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    values = np.random.default_rng(0).integers(0, 1 << 16, (4, 5, 3)).astype(">u2")
    rows = b"".join(b"\0" + row.tobytes() for row in values)
    header = struct.pack(">IIBBBBB", 5, 4, 16, 2, 0, 0, 0)
    parts = [chunk(b"IHDR", header), chunk(b"IDAT", zlib.compress(rows)), chunk(b"IEND", b"")]
    content = b"\x89PNG\r\n\x1a\n" + b"".join(parts)
    assert np.array_equal(decode_image(content, InputSpec(3, 4, 5)), np.moveaxis(values >> 8, 2, 0))


def test_reading_in_threads_leaves_the_warning_filters_alone(pictures: Path) -> None:
    before = list(warnings.filters)
    files, _, _ = class_folders(pictures, "test")
    pixels = folder_pixels(pictures, files, InputSpec(3, 8, 8, resize="bilinear"), memory=0)
    pixels.take(torch.arange(len(files)))
    assert list(warnings.filters) == before
