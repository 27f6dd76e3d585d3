"""Pictures: pixels as PNG files at their own size, for pages that show what a model sees."""

import base64
import io
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["data_uri", "png"]


def png(image: npt.NDArray[Any]) -> bytes:
    """An image (C, H, W) as a PNG file: uint8 as it is, other pixels cut off at 0 and 1; at most three channels."""
    from PIL import Image

    pixels = image if image.dtype == np.uint8 else np.round(np.clip(image, 0, 1) * 255).astype(np.uint8)
    plain = pixels[0] if len(pixels) == 1 else np.moveaxis(pixels[:3], 0, 2)
    stream = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(plain)).save(stream, format="PNG", optimize=True)
    return stream.getvalue()


def data_uri(image: npt.NDArray[Any]) -> str:
    """The PNG file inside an address, for a page that asks nobody for its pictures."""
    return "data:image/png;base64," + base64.b64encode(png(image)).decode()
