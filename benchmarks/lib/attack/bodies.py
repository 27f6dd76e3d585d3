"""Requests: good ones, and the files that bad ones are made of. All are for the small model of `small_model`."""

import base64
import io
import json
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.lib.record import ensemble_file
from robustinfer import InputSpec

__all__ = ["NAME", "SPEC", "good_request", "json_body", "npy", "photo_model", "picture", "small_model"]

NAME = "small"
SPEC = InputSpec(1, 16, 16)
PIXELS = np.random.default_rng(5).integers(0, 256, (64, SPEC.height, SPEC.width), dtype=np.uint8)
Request = tuple[str, bytes, dict[str, str]]  # path, body, headers


def small_model(path: Path, *, resize: str = "refuse") -> Path:
    """A small network with fresh weights: what it answers does not matter here."""
    if not path.exists():
        spec = SPEC if resize == "refuse" else InputSpec(1, 16, 16, resize="bilinear")
        ensemble_file("cnn", 1, spec, path)
    return path


def photo_model(path: Path) -> Path:
    """The same for photographs of any size, which it makes smaller."""
    return small_model(path, resize="bilinear")


def npy(array: Any) -> bytes:
    """An array as a file."""
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def picture(pixels: Any, format: str = "PNG", **options: Any) -> bytes:
    """A picture as a file."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, format, **options)
    return buffer.getvalue()


def json_body(number: int = 0, **fields: Any) -> bytes:
    """A request in JSON."""
    return json.dumps({"image": PIXELS[number % len(PIXELS)].tolist(), **fields}).encode()


def good_request(number: int) -> Request:
    """The requests of a soak: predictions, certificates, and forms of every kind, in turn."""
    pixels = PIXELS[number % len(PIXELS)]
    kind = number % 8
    if kind < 4:
        return f"/models/{NAME}/invoke?mode=predict&n=200", npy(pixels), {}
    if kind == 4:
        return f"/models/{NAME}/invoke?mode=certify&n=1000", picture(pixels), {}
    if kind == 5:
        text = base64.b64encode(picture(pixels, "JPEG")).decode()
        return f"/predictions/{NAME}", json.dumps({"image": text, "n": 500}).encode(), _JSON
    if kind == 6:
        tensor = {"name": "image", "shape": [1, 16, 16], "datatype": "UINT8", "data": pixels.reshape(-1).tolist()}
        document = {"inputs": [tensor], "parameters": {"n": 500, "mode": "predict"}}
        return f"/v2/models/{NAME}/infer", json.dumps(document).encode(), _JSON
    return f"/predictions/{NAME}", json_body(number, n=500), _JSON


_JSON = {"Content-Type": "application/json"}
