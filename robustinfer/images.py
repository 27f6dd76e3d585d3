"""The input contract: pixels in [0,1] as floating numbers, or uint8; anything else is refused with a sentence.

This is the only module that turns a file into pixels: training, evaluation, certification and serving call it.
"""

import hashlib
import io
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from .card import InputSpec
from .errors import DtypeError, ImageFileError, PixelRangeError, ShapeError
from .npy import NPY_MAGIC, decode_npy

if TYPE_CHECKING:
    from PIL import Image

__all__ = [
    "IMAGE_SUFFIXES",
    "MAX_PIXELS",
    "PICTURE_SUFFIXES",
    "as_batch",
    "as_image",
    "decode_image",
    "decoding_work",
    "image_digest",
    "in_batches",
    "picture_shape",
    "read_image",
    "to_unit",
]

Array = npt.NDArray[Any]

PICTURE_SUFFIXES = (".png", ".jpg", ".jpeg", ".ppm", ".pgm", ".webp")
IMAGE_SUFFIXES = (*PICTURE_SUFFIXES, ".npy")
MAX_PIXELS = 50_000_000
"""Images with more pixels are refused before they are decoded."""

_MAX_SCANS = 100  # of a JPEG file; cameras and editors write one to about a dozen
_FORMATS = ("PNG", "JPEG", "PPM", "WEBP")
_GREY = {"1", "L", "LA"}
_ORIENTATION = 0x0112  # the EXIF tag
_TURNED = range(5, 9)  # its values that exchange height and width


def as_image(array: npt.ArrayLike, spec: InputSpec) -> Array:
    """One image as a contiguous (C, H, W) array of uint8 or float32, from (C, H, W), (H, W, C) or, for grey, (H, W).

    The result is a copy: samples of an image are drawn while its caller may already be refilling the buffer.
    """
    values = _checked(np.array(array))
    if values.ndim == 4 and len(values) == 1:
        values = as_batch(values, spec)
        return np.ascontiguousarray(values.reshape(spec.shape))
    return np.ascontiguousarray(_channels_first(values, spec))


def as_batch(array: npt.ArrayLike, spec: InputSpec) -> Array:
    """Images as a contiguous (N, C, H, W) array of uint8 or float32, from one image or several of equal layout."""
    values = _checked(np.asarray(array))
    if values.ndim == 4 or (values.ndim == 3 and spec.channels == 1 and not _is_one_image(values.shape, spec)):
        if len(values) == 0:
            return np.empty((0, *spec.shape), dtype=values.dtype)
        if values.shape[1:] == spec.shape:  # the usual layout; also settles an image with as many channels as rows
            return np.ascontiguousarray(values)
        return np.stack([_channels_first(image, spec) for image in values])
    return np.ascontiguousarray(_channels_first(values, spec))[None]


def to_unit(image: Array) -> npt.NDArray[np.float32]:
    """Pixels in [0,1]: uint8 is multiplied by float32(1/255), which is what integer noise does as well."""
    if image.dtype == np.uint8:
        scaled: npt.NDArray[np.float32] = np.multiply(image, np.float32(1 / 255), dtype=np.float32)
        return scaled
    return np.asarray(image, dtype=np.float32)


def in_batches(images: Array, size: int) -> Iterator[tuple[int, Array]]:
    """Images in batches of `size`, the last one possibly smaller, each with the number of its first image."""
    for first in range(0, len(images), size):
        yield first, images[first : first + size]


def image_digest(image: Array) -> str:
    """The digest of the pixels of an image as `as_image` returns it; uint8 and float images never share one."""
    return "sha256:" + hashlib.sha256(f"{image.dtype}{image.shape}".encode() + image.tobytes()).hexdigest()


def read_image(path: str | os.PathLike[str], spec: InputSpec, *, max_pixels: int = MAX_PIXELS) -> Array:
    """Read a PNG, JPEG, PPM, WebP or npy file as the image a model of this input spec takes."""
    content = _content(path)
    try:
        return decode_image(content, spec, max_pixels=max_pixels)
    except (ImageFileError, ShapeError, DtypeError, PixelRangeError) as error:
        raise type(error)(f"{path}: {error}") from error


def picture_shape(path: str | os.PathLike[str] | IO[bytes], *, max_pixels: int = MAX_PIXELS) -> tuple[int, int, int]:
    """Channels (1 for a grey picture, else 3), height and width of a picture file as `read_image` would see it."""
    if not isinstance(path, str | os.PathLike):
        return _shape(path, max_pixels)
    try:
        with Path(path).open("rb") as file:
            return _shape(file, max_pixels)
    except ImageFileError as error:
        raise ImageFileError(f"{path}: {error}") from error
    except OSError as error:
        raise ImageFileError(f"Cannot read the image {path}: {error.strerror or error}.") from error


def _shape(file: IO[bytes], max_pixels: int) -> tuple[int, int, int]:
    with _picture(file, max_pixels) as picture:
        height, width = picture.height, picture.width
        # Reading the orientation of a PNG file decodes all of it: only where it can matter.
        if height != width and picture.getexif().get(_ORIENTATION, 1) in _TURNED:
            height, width = width, height
        return 1 if picture.mode in _GREY else 3, height, width


def decode_image(content: bytes | bytearray, spec: InputSpec, *, max_pixels: int = MAX_PIXELS) -> Array:
    """Decode the bytes of a PNG, JPEG, PPM, WebP or npy file as the image a model of this input spec takes.

    An image file of another size is resized and cropped as the input spec says, or refused; an array never is.
    """
    if content[:6] == NPY_MAGIC:
        return as_image(decode_npy(bytes(content), max_values=max_pixels * max(spec.channels, 4)), spec)
    return as_image(_decode_picture(bytes(content), spec, max_pixels), spec)


def decoding_work(content: bytes, spec: InputSpec, *, max_pixels: int = MAX_PIXELS) -> int:
    """How many pixels a decoder passes over, by the header alone: all of a picture, once per scan of a JPEG file.

    0 for an npy file, which needs no decoder. What the header shows to be useless is refused, as `decode_image` does.
    """
    if content[:6] == NPY_MAGIC:
        return 0
    with _picture(io.BytesIO(content), max_pixels) as picture:
        _check_before_decoding(picture, content, spec)
        return picture.width * picture.height * (_scans(content) if picture.format == "JPEG" else 1)


def _checked(values: Array) -> Array:
    if values.dtype == np.uint8:
        return values
    if not np.issubdtype(values.dtype, np.floating):
        raise DtypeError(f"Expected uint8 pixels or floating pixels in [0,1], found {values.dtype}: convert the image.")
    with np.errstate(over="ignore"):
        values = values.astype(np.float32, copy=False)
    if values.size and not (values.min() >= 0 and values.max() <= 1):  # false for NaN as well
        if not np.isfinite(values).all():
            raise PixelRangeError("Expected pixels in [0,1], found NaN or infinite ones.")
        raise PixelRangeError(
            f"Expected pixels in [0,1], found {values.min():.4g} to {values.max():.4g}: pass uint8, or divide by the "
            "largest value; normalisation is inside the model."
        )
    return values


def _is_one_image(shape: tuple[int, ...], spec: InputSpec) -> bool:
    channels, height, width = spec.shape
    return shape in {(channels, height, width), (height, width, channels)}


def _channels_first(values: Array, spec: InputSpec) -> Array:
    channels, height, width = spec.shape
    first, last = (channels, height, width), (height, width, channels)
    if first == last and channels > 1 and values.shape == first:
        raise ShapeError(
            f"An image of shape {first} may be channels first or last: pass it in a batch of shape {(1, *first)}."
        )
    if values.shape == first:
        return values
    if values.shape == last:
        return np.moveaxis(values, 2, 0)
    if channels == 1 and values.shape == (height, width):
        return np.expand_dims(values, 0)
    grey = f" or {(height, width)}" if channels == 1 else ""
    raise ShapeError(f"Expected an image of shape {first} or {last}{grey}, found {values.shape}.")


def _content(path: str | os.PathLike[str]) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ImageFileError(f"Cannot read the image {path}: {error.strerror or error}.") from error


@contextmanager
def _picture(stream: IO[bytes], max_pixels: int) -> Iterator["Image.Image"]:
    """A picture, opened but not decoded; whatever goes wrong until the end of the block becomes an ImageFileError."""
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(stream, formats=_FORMATS) as picture:
            if picture.width * picture.height > max_pixels:
                raise ImageFileError(
                    f"The image has {picture.width} x {picture.height} pixels, more than {max_pixels}."
                )
            if picture.mode.startswith(("I", "F")):
                raise ImageFileError(f"Expected 8 bits per channel, found a picture of mode {picture.mode}.")
            yield picture
    except UnidentifiedImageError as error:  # its own words name an object in memory
        raise ImageFileError(
            "This is not a PNG, JPEG, PPM, WebP or npy image: its first bytes match none of them."
        ) from error
    # Pillow's warning about very large pictures may be an error where the caller makes warnings errors.
    except (OSError, ValueError, SyntaxError, EOFError, Image.DecompressionBombError, Warning) as error:
        raise ImageFileError(f"This picture cannot be read ({error}).") from error


def _decode_picture(content: bytes, spec: InputSpec, max_pixels: int) -> Array:
    from PIL import ImageOps

    mode = {1: "L", 3: "RGB"}.get(spec.channels)
    if mode is None:
        raise ImageFileError(f"Picture files have 1 or 3 channels; this model takes {spec.channels}: use npy files.")
    with _picture(io.BytesIO(content), max_pixels) as picture:
        _check_before_decoding(picture, content, spec)
        ImageOps.exif_transpose(picture, in_place=True)
        # Pillow warns where a palette has an alpha value per colour; by way of RGBA the colours are the same.
        translucent = isinstance(picture.info.get("transparency"), bytes)
        converted = (picture.convert("RGBA") if translucent else picture).convert(mode)
    return np.asarray(_fitted(converted, spec), dtype=np.uint8)


def _check_before_decoding(picture: "Image.Image", content: bytes, spec: InputSpec) -> None:
    """Refuse by the header what would only be refused after decoding, and what takes far longer than its size tells.

    A progressive JPEG of one megabyte may hold thousands of scans, each of which passes over the whole picture.
    """
    if picture.format == "JPEG" and (scans := _scans(content)) > _MAX_SCANS:
        raise ImageFileError(f"The JPEG image has {scans} scans, more than {_MAX_SCANS}: save it again.")
    if content[:2] in (b"P1", b"P2", b"P3"):  # decoded digit by digit, which takes minutes
        raise ImageFileError("The PPM image is written in plain text: save it as binary PPM or PNG.")
    expected = (spec.width, spec.height)
    if spec.resize == "refuse" and expected not in (picture.size, picture.size[::-1]):  # EXIF may turn it
        raise _wrong_size(picture, spec)


def _scans(content: bytes) -> int:
    """The scans of a JPEG file. Inside one a byte FF is followed by 00, so FF DA begins one (or a preview's)."""
    return content.count(b"\xff\xda")


def _wrong_size(picture: "Image.Image", spec: InputSpec) -> ShapeError:
    return ShapeError(
        f"Expected an image of {spec.width} x {spec.height} pixels, found {picture.width} x {picture.height}."
    )


def _fitted(picture: "Image.Image", spec: InputSpec) -> "Image.Image":
    """The picture in the size of the input spec, which a picture of that size has already.

    It is cropped at the centre to the right aspect ratio, then resized; or, if the input spec has a crop, resized to
    the size before the crop, then cropped at the centre, with the rounding of torchvision's Resize and CenterCrop.
    """
    from PIL import Image, ImageOps

    size = (spec.width, spec.height)
    if picture.size == size:
        return picture
    if spec.resize == "refuse":
        raise _wrong_size(picture, spec)
    method = Image.Resampling[spec.resize.upper()]
    if spec.crop is None:
        return ImageOps.fit(picture, size, method=method)
    width, height = (math.floor(side / spec.crop + 1e-9) for side in size)
    if picture.width * height <= picture.height * width:  # relative to the model's shape, the width is the short side
        scaled = (width, max(height, width * picture.height // picture.width))
    else:
        scaled = (max(width, height * picture.width // picture.height), height)
    left, top = round((scaled[0] - size[0]) / 2), round((scaled[1] - size[1]) / 2)
    return picture.resize(scaled, method).crop((left, top, left + size[0], top + size[1]))
