"""From what a server hands over to requests: raw bodies, JSON, forms. Nothing here trusts a byte.

A body is recognised by its first bytes, not by its Content-Type: `curl -T image.png` sends none.
"""

import base64
import binascii
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from robustinfer.card import InputSpec
from robustinfer.errors import RobustinferError
from robustinfer.images import as_image, decode_image
from robustinfer.npy import NPY_MAGIC
from robustinfer.settings import MODE, check, short

from . import fields
from .limits import Limits
from .numbers import array_of
from .refusals import Refusal

__all__ = ["Decode", "Reading", "merged", "parse_json", "pixels", "read", "read_image", "speaks_v2"]

Array = npt.NDArray[Any]
Decode = Callable[[bytes], Array]

_FILE_FIELDS = ("image", "data", "file")
_IMAGE_FIELDS = ("image", "dtype")  # of a JSON request
_SIGNS = (b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", NPY_MAGIC)  # of the files that are read
_MAX_NUMBER = 400  # characters of one number in JSON; longer ones only serve to make integer parsing slow


@dataclass(frozen=True)
class Reading:
    """What a request asks for: images and settings; `v2` is the request, if it speaks the open inference protocol."""

    images: tuple[Array, ...]
    settings: dict[str, Any]
    v2: Mapping[str, Any] | None = None


def speaks_v2(data: Mapping[str, Any]) -> bool:
    """Whether a body is meant for the open inference protocol, even if it cannot be read: then errors have its form."""
    body = data.get("body", b"")
    return isinstance(body, (bytes, bytearray)) and body[:100].lstrip()[:1] == b"{" and b'"inputs"' in body


def read(
    data: Mapping[str, Any],
    *,
    content_type: str,
    spec: InputSpec,
    limits: Limits,
    decode: Decode | None = None,
    header_length: str | None = None,
) -> Reading:
    """Read one request as a server delivers it: `body`, or the fields of a form, and those of the query string.

    `decode` turns the bytes of a picture into pixels; by default here and now, however long it takes. `header_length`
    are the bytes of JSON at the start of a body that goes on with tensors, in the open protocol.
    """
    decode = decode or partial(decode_image, spec=spec, max_pixels=limits.max_pixels)
    if content_type.lower().startswith("application/x-www-form-urlencoded"):
        raise Refusal.unsupported(
            "A body of type application/x-www-form-urlencoded is not read (it is what curl sends with --data): send "
            "JSON with the header 'Content-Type: application/json', or a file with curl -T."
        )
    parts = {name: bytes(value) for name, value in data.items() if isinstance(value, (bytes, bytearray))}
    body = parts.pop("body", b"")
    parts.pop("model_name", None)  # TorchServe's own, at its address /invocations
    if len(body) > limits.max_body:
        raise Refusal.malformed("limit_body", f"A body has at most {limits.max_body} bytes; found {len(body)}.")
    files = [name for name in _FILE_FIELDS if name in parts]
    if files and not body:
        if len(files) > 1:
            raise Refusal.malformed("two_images", f"A form has one image; found the fields {' and '.join(files)}.")
        body = parts.pop(files[0])
    settings = fields.from_text({name: _text(name, value) for name, value in parts.items()})
    if not body:
        raise Refusal.malformed("no_image", "The request has no body: send an image as PNG, JPEG, npy, JSON or a form.")
    tensors = b""
    if header_length is not None:
        body, tensors = _split(body, header_length)
    if body.lstrip()[:1] in (b"{", b"["):
        return _read_json(body, settings, spec, limits, decode, tensors)
    _check_settings(settings, limits)
    return Reading((_decoded(body, decode),), settings)


def _check_settings(settings: dict[str, Any], limits: Limits) -> None:
    """Refuse settings before any work is done on an image: those this server does not allow, and impossible ones."""
    limits.check_settings(settings, images=1)
    check(settings.get("mode", MODE.defaults["certify"]), settings)


def _text(name: str, value: bytes) -> str:
    try:
        return value[:1000].decode().strip()
    except UnicodeDecodeError:
        raise Refusal.malformed("wrong_type", f"The field {name[:60]!r} is not text.") from None


def _split(body: bytes, header_length: str) -> tuple[bytes, bytes]:
    """The JSON and the tensors of a body in the binary form of the open protocol."""
    if not header_length.isascii() or not header_length.isdigit() or len(header_length) > 9:
        raise Refusal.malformed("wrong_type", "Inference-Header-Content-Length is a number of bytes.")
    length = int(header_length)
    if not 0 < length <= len(body):
        raise Refusal.malformed(
            "wrong_type", f"Inference-Header-Content-Length says {length} bytes; the body has {len(body)}."
        )
    return body[:length], body[length:]


def _read_json(
    body: bytes, settings: dict[str, Any], spec: InputSpec, limits: Limits, decode: Decode, tensors: bytes
) -> Reading:
    document = parse_json(body)
    if not isinstance(document, dict):
        raise Refusal.malformed("not_an_object", f"A JSON request is an object; found a {_name(document)}.")
    if "inputs" in document:
        from .protocol_v2 import read_inputs, read_parameters

        settings = merged(settings, read_parameters(document))
        _check_settings(settings, limits)
        images = read_inputs(document, spec, limits, tensors)
        limits.check_settings(settings, images=len(images))  # its samples are those of all images together
        return Reading(images, settings, v2=document)
    own = fields.from_json({name: value for name, value in document.items() if name not in _IMAGE_FIELDS})
    settings = merged(settings, own)
    _check_settings(settings, limits)
    return Reading((read_image(document, spec, decode),), settings)


def merged(query: Mapping[str, Any], body: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of the query and of the body, none of which is in both: nobody knows which one was meant."""
    if both := sorted(query.keys() & body.keys()):
        raise Refusal.malformed("repeated_field", f"The field {short(both[0])} is in both the query and the body.")
    return {**query, **body}


def read_image(document: Mapping[str, Any], spec: InputSpec, decode: Decode) -> Array:
    """The image of a JSON request."""
    if "image" not in document:
        raise Refusal.malformed("no_image", "A JSON request has the field image (or inputs, in the open protocol).")
    return _image_of(document["image"], document.get("dtype"), spec, decode)


def parse_json(body: bytes) -> Any:
    """A JSON document, without the numbers that JSON does not have, without endless ones, and saying nothing twice."""

    def refuse(word: str) -> Any:
        raise Refusal.malformed("not_json", f"JSON has no number {word}.")

    def whole(digits: str) -> int:
        if len(digits) > _MAX_NUMBER:
            raise Refusal.malformed("not_json", f"A number has at most {_MAX_NUMBER} digits here.")
        return int(digits)

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        document = dict(pairs)
        if len(document) < len(pairs):
            raise Refusal.malformed("repeated_field", "A field appears twice in the JSON document.")
        return document

    try:
        return json.loads(body, parse_constant=refuse, parse_int=whole, object_pairs_hook=once)
    except (ValueError, RecursionError) as error:
        reason = "too deeply nested" if isinstance(error, RecursionError) else _json_error(error)
        raise Refusal.malformed("not_json", f"The body is not a JSON document: {reason}.") from None


def _json_error(error: ValueError) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg} at character {error.pos}"
    return "not UTF-8 text"


def _image_of(image: Any, dtype: Any, spec: InputSpec, decode: Decode) -> Array:
    if dtype not in (None, "uint8", "float32"):
        raise Refusal.malformed("wrong_type", "dtype is uint8 or float32.")
    if isinstance(image, str):
        if dtype is not None:
            raise Refusal.malformed("wrong_type", "dtype is for an image given as numbers; a file knows its own.")
        try:
            content = base64.b64decode(image, validate=True)
        except (binascii.Error, ValueError):
            raise Refusal.malformed("wrong_type", "An image given as a string is a file in base64.") from None
        return _decoded(content, decode)
    return as_image(pixels(image, dtype), spec)


def pixels(image: Any, dtype: str | None) -> Array:
    """Nested lists of numbers as an array: whole numbers are uint8, others lie in [0,1].

    A picture of nothing but 0 and 1 could be either; a JavaScript client writes 1.0 as 1. It has to say which.
    """
    if not isinstance(image, list):
        raise Refusal.malformed(
            "wrong_type", f"image is a list of numbers, or a file in base64; found a {_name(image)}."
        )
    array = array_of(image, "image")
    if dtype == "float32":
        return array.astype(np.float64)
    if array.dtype.kind == "f":
        if dtype == "uint8":
            raise Refusal.unacceptable("bad_image", "dtype is uint8, but image holds numbers with a fraction.")
        return array
    lowest, highest = (int(array.min()), int(array.max())) if array.size else (0, 0)
    if lowest < 0 or highest > 255:
        raise Refusal.unacceptable("bad_image", f"uint8 pixels are between 0 and 255; found {lowest} to {highest}.")
    if dtype is None and highest <= 1:
        raise Refusal.unacceptable(
            "ambiguous_image", 'All pixels are 0 or 1: say "dtype": "uint8" or "dtype": "float32".'
        )
    return array.astype(np.uint8)


def _decoded(content: bytes, decode: Decode) -> Array:
    if not content.startswith(_SIGNS):
        raise Refusal.unsupported("The body is not a PNG, JPEG, npy or JSON document, by its first bytes.")
    try:
        return decode(content)
    except (RobustinferError, Refusal):
        raise
    except Exception:
        # Decoders of broken files raise whatever their last step happened to raise.
        raise Refusal.unacceptable("bad_image", "The image file is damaged.") from None


def _name(value: Any) -> str:
    names = {bool: "boolean", int: "number", float: "number", str: "string", list: "list", dict: "object"}
    return names.get(type(value), "null")
