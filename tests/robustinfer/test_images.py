"""The input contract: layouts, files, and what is refused."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.lib.format import write_array_header_1_0
from PIL import Image

from robustinfer import InputSpec
from robustinfer.errors import DtypeError, ImageFileError, ShapeError
from robustinfer.images import as_batch, as_image, decode_image, image_digest, read_image, to_unit

COLOUR, GREY = InputSpec(3, 4, 5), InputSpec(1, 4, 5)
PIXELS = np.random.default_rng(0).integers(0, 256, size=(3, 4, 5), dtype=np.uint8)


def encoded(pixels: Any, form: Any = "PNG", **options: Any) -> Any:
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, form, **options)
    return stream.getvalue()


def npy(array: Any, **options: Any) -> Any:
    stream = io.BytesIO()
    np.save(stream, array, **options)
    return stream.getvalue()


def of_shape(*sizes: int) -> bytes:
    """An npy file of nothing that claims this shape."""
    stream = io.BytesIO()
    write_array_header_1_0(stream, {"descr": "|u1", "fortran_order": False, "shape": sizes})
    return stream.getvalue()


def test_layouts_that_are_clear_are_accepted() -> None:
    last = np.moveaxis(PIXELS, 0, 2)
    for image in (PIXELS, last, PIXELS[None], last[None], np.asfortranarray(PIXELS)):
        found = as_image(image, COLOUR)
        assert np.array_equal(found, PIXELS)
        assert found.flags.c_contiguous
    grey = PIXELS[:1]
    for image in (grey, grey[0], grey[0, :, :, None], grey[None]):
        assert np.array_equal(as_image(image, GREY), grey)


@pytest.mark.parametrize("image", [PIXELS, np.moveaxis(PIXELS, 0, 2), PIXELS[None], PIXELS.astype(np.float32) / 255])
def test_an_image_is_copied(image: Any) -> None:
    buffer = image.copy()
    found = as_image(buffer, COLOUR)
    kept = found.copy()
    buffer[:] = 0
    assert np.array_equal(found, kept)


def test_batches() -> None:
    batch = np.stack([PIXELS, PIXELS[:, ::-1]])
    for images in (batch, np.moveaxis(batch, 1, 3)):
        assert np.array_equal(as_batch(images, COLOUR), batch)
    assert np.array_equal(as_batch(PIXELS, COLOUR), PIXELS[None])
    assert np.array_equal(as_batch(batch[:, 0], GREY), batch[:, :1])
    assert as_batch(np.zeros((0, 3, 4, 5), np.uint8), COLOUR).shape == (0, 3, 4, 5)


def test_a_layout_that_is_not_clear_is_refused() -> None:
    cube = InputSpec(3, 3, 3)
    with pytest.raises(ShapeError, match="channels first or last: pass it in a batch"):
        as_image(np.zeros((3, 3, 3), np.uint8), cube)
    assert as_image(np.zeros((1, 3, 3, 3), np.uint8), cube).shape == (3, 3, 3)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_floating_pixels_become_float32(dtype: Any) -> None:
    image = as_image((PIXELS / 255).astype(dtype), COLOUR)
    assert image.dtype == np.float32
    assert np.abs(image - PIXELS / 255).max() < 1e-3


@given(st.integers(0, 255))
def test_uint8_is_divided_by_255(level: Any) -> None:
    assert to_unit(np.array([level], np.uint8))[0] == pytest.approx(level / 255, abs=1e-7)


def test_equal_pixels_have_equal_digests() -> None:
    assert image_digest(as_image(np.moveaxis(PIXELS, 0, 2), COLOUR)) == image_digest(PIXELS)
    others: list[Any] = [PIXELS[:, ::-1].copy(), PIXELS.astype(np.float32), PIXELS.reshape(3, 5, 4)]
    assert len({image_digest(image) for image in (PIXELS, *others)}) == 4


def test_files_are_read(tmp_path: Path) -> None:
    last = np.moveaxis(PIXELS, 0, 2)
    for name, content in (("x.png", encoded(last)), ("x.npy", npy(PIXELS)), ("y.npy", npy(last))):
        (tmp_path / name).write_bytes(content)
        assert np.array_equal(read_image(tmp_path / name, COLOUR), PIXELS)
    assert decode_image(encoded(last, "JPEG"), COLOUR).shape == (3, 4, 5)
    assert decode_image(encoded(last), GREY).shape == (1, 4, 5)
    assert decode_image(encoded(PIXELS[0]), COLOUR).shape == (3, 4, 5)


def test_the_camera_s_orientation_is_applied() -> None:
    picture = Image.fromarray(np.moveaxis(PIXELS, 0, 2))
    exif = picture.getexif()
    exif[0x0112] = 6  # turn by 90 degrees
    assert decode_image(encoded(np.moveaxis(PIXELS, 0, 2), exif=exif), InputSpec(3, 5, 4)).shape == (3, 5, 4)


def test_another_size_is_resized_only_where_the_card_says_so() -> None:
    content = encoded(np.zeros((20, 30, 3), np.uint8))
    with pytest.raises(ShapeError, match="Expected an image of 5 x 4 pixels, found 30 x 20"):
        decode_image(content, COLOUR)
    assert decode_image(content, InputSpec(3, 4, 5, resize="bilinear")).shape == (3, 4, 5)
    with pytest.raises(ShapeError, match="Expected an image of shape"):
        decode_image(npy(np.zeros((3, 20, 30), np.uint8)), InputSpec(3, 4, 5, resize="bilinear"))


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "not a PNG, JPEG, PPM, WebP or npy"),
        (b"hello", "not a PNG, JPEG, PPM, WebP or npy"),
        (encoded(np.moveaxis(PIXELS, 0, 2))[:60], "picture cannot be read"),
        (npy(PIXELS)[:100], "npy file cannot be read"),
        (npy(PIXELS)[:150], "npy file cannot be read"),
        (of_shape(0, 2**62, 2**62), "no arrays of its shape"),
        (of_shape(0, *[1] * 80), "no arrays of its shape"),
        (npy(np.array([{"a": 1}], dtype=object), allow_pickle=True), "holds Python objects"),
        (npy(np.zeros((3, 300, 300), np.uint8)), "more than 4000 values"),
        (encoded(np.zeros((300, 300, 3), np.uint8)), "300 x 300 pixels, more than 1000"),
        (encoded(np.zeros((4, 5), np.uint16)), "Expected 8 bits per channel"),
        (encoded(np.zeros((4, 5, 3), np.uint8), "GIF"), "not a PNG, JPEG, PPM, WebP or npy"),
    ],
)
def test_files_that_are_no_images(content: Any, sentence: Any) -> None:
    with pytest.raises(ImageFileError, match=sentence):
        decode_image(content, COLOUR, max_pixels=1000)


def test_an_npy_file_is_checked_whatever_files_came_before() -> None:
    """Headers that are alike are read once: the numbers behind them are each file's own."""
    other = 255 - PIXELS
    for pixels in (PIXELS, other, PIXELS):
        assert (decode_image(npy(pixels), COLOUR) == pixels).all()
    for content in (npy(other)[:-1], npy(other) + b"x"):
        with pytest.raises(ImageFileError, match="npy file cannot be read"):
            decode_image(content, COLOUR)
    # The version of the format says how long the length of the header is.
    newer = b"\x93NUMPY\x02\x00" + npy(PIXELS)[8:10] + b"\0\0" + npy(PIXELS)[10:]
    assert (decode_image(newer, COLOUR) == PIXELS).all()
    for version in (b"\x01\x01", b"\x04\x00", b"\0\0"):
        with pytest.raises(ImageFileError, match="header is damaged"):
            decode_image(npy(PIXELS)[:6] + version + npy(PIXELS)[8:], COLOUR)


def test_the_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ImageFileError, match=r"Cannot read the image .*none.png"):
        read_image(tmp_path / "none.png", COLOUR)
    (tmp_path / "x.npy").write_bytes(npy(PIXELS.astype(np.int32)))
    with pytest.raises(DtypeError, match=r"x.npy: Expected uint8"):
        read_image(tmp_path / "x.npy", COLOUR)


def test_picture_files_have_one_or_three_channels() -> None:
    with pytest.raises(ImageFileError, match="takes 4: use npy files"):
        decode_image(encoded(np.moveaxis(PIXELS, 0, 2)), InputSpec(4, 4, 5))


def scanned(times: int, size: tuple[int, int] = (64, 64)) -> bytes:
    """A progressive JPEG whose last scan is repeated `times` times: each costs a pass over the whole picture."""
    stream = io.BytesIO()
    noise = np.random.default_rng(1).integers(0, 256, (*size, 3), dtype=np.uint8)
    Image.fromarray(noise).save(stream, "JPEG", progressive=True, quality=20)
    content = stream.getvalue()
    last = content.rindex(b"\xff\xda")
    return content[:last] + content[last:-2] * times + content[-2:]


def test_a_jpeg_of_many_scans_is_refused_before_it_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = InputSpec(3, 64, 64)
    assert decode_image(scanned(2), spec).shape == (3, 64, 64)
    monkeypatch.setattr(Image.Image, "convert", lambda *_: pytest.fail("it was decoded"))
    with pytest.raises(ImageFileError, match="scans, more than 100"):
        decode_image(scanned(200), spec)


@pytest.mark.parametrize("size", [(65, 64), (2000, 3000)])
def test_a_picture_of_another_size_is_refused_by_its_header(
    monkeypatch: pytest.MonkeyPatch, size: tuple[int, int]
) -> None:
    content = scanned(1, size)
    monkeypatch.setattr(Image.Image, "convert", lambda *_: pytest.fail("it was decoded"))
    with pytest.raises(ShapeError, match="Expected an image of 64 x 64"):
        decode_image(content, InputSpec(3, 64, 64, resize="refuse"))


@pytest.mark.parametrize(("height", "width"), [(300, 451), (451, 300), (256, 256), (57, 41), (225, 224)])
@pytest.mark.parametrize("crop", [0.875, 0.9, 1.0])
def test_a_crop_reads_as_published_networks_do(height: int, width: int, crop: float) -> None:
    """torchvision's Resize(224 / crop) and CenterCrop(224), written down: the shorter side, then the centre."""
    pixels = np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)
    short, long = int(224 / crop), int(int(224 / crop) * max(height, width) / min(height, width))
    sides = (short, long) if width <= height else (long, short)
    resized = np.asarray(Image.fromarray(pixels).resize(sides, Image.Resampling.BICUBIC))
    top, left = (round((size - 224) / 2.0) for size in resized.shape[:2])
    expected = np.moveaxis(resized[top : top + 224, left : left + 224], 2, 0)
    found = decode_image(encoded(pixels), InputSpec(3, 224, 224, resize="bicubic", crop=crop))
    assert np.array_equal(found, expected)


def test_a_crop_keeps_the_shape_of_the_model() -> None:
    spec = InputSpec(1, 48, 192, resize="bilinear", crop=0.75)
    for shape in ((10, 500), (500, 10), (48, 191), (64, 256)):
        assert decode_image(encoded(np.zeros(shape, np.uint8)), spec).shape == (1, 48, 192)
    picture = np.arange(256, dtype=np.uint8)[None].repeat(64, axis=0)  # of the size before the crop: nothing is resized
    assert np.array_equal(decode_image(encoded(picture), spec)[0], picture[8:56, 32:224])
    exact = picture[8:56, 32:224]  # of the model's size: it is taken as it is
    assert np.array_equal(decode_image(encoded(exact), spec)[0], exact)
