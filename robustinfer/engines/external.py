"""Weights beside an ONNX file: which files a model reads, and a digest that covers them all.

An ONNX file may keep tensors in other files ("external data"). It names them in its protobuf message, so this module
walks the few message types in which a tensor can lie; the runtime needs no onnx package for it.

The digest of a model without such files is the SHA-256 of its file. With them it is the SHA-256 of the JSON text
`{"external": {LOCATION: SHA-256, ...}, "model": SHA-256}`, keys sorted, no spaces: no byte that decides a score is left
out, and two models never share a digest, because no ONNX file is JSON text.
"""

import hashlib
import json
import mmap
import os
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath, PureWindowsPath

from ..errors import ModelFileError
from ..files import sha256

__all__ = ["combined_digest", "external_files", "locations", "model_digest", "model_files"]

Buffer = bytes | mmap.mmap

# Field numbers of onnx.proto under which a message of the type named lies; a tensor names its file in an entry.
_FIELDS: Mapping[str, Mapping[int, str]] = {
    "model": {7: "graph", 20: "training", 25: "function"},
    "training": {1: "graph", 2: "graph"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "function": {7: "node", 11: "attribute"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: "tensor", 2: "tensor"},
    "tensor": {13: "entry"},
}
_DEPTH = 100  # of nested messages, as protobuf's own readers have it


def model_digest(path: str | os.PathLike[str]) -> str:
    """The digest of a model file and of all files its weights lie in, as `sha256:` and 64 hexadecimal digits."""
    files = external_files(path)
    return combined_digest(sha256(path), {location: sha256(file) for location, file in files.items()})


def combined_digest(model: str, external: Mapping[str, str]) -> str:
    """The digest of a model of these digests; that of the model file itself if nothing lies beside it."""
    if not external:
        return model
    document = {
        "external": {location: digest.removeprefix("sha256:") for location, digest in external.items()},
        "model": model.removeprefix("sha256:"),
    }
    text = json.dumps(document, sort_keys=True, separators=(",", ":"))
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def model_files(path: str | os.PathLike[str]) -> list[Path]:
    """The model file and the files its weights lie in."""
    return [Path(path), *external_files(path).values()]


def external_files(path: str | os.PathLike[str], content: bytes | None = None) -> dict[str, Path]:
    """Where the weights of an ONNX file lie beside it, by the location that the model names; {} for other formats.

    Every file must exist in the model's folder or below it; a link may lead to where the model file itself lies.
    """
    file = Path(path)
    if file.suffix.lower() != ".onnx":
        return {}
    return {location: _beside(file, location) for location in locations(file, content)}


def locations(path: Path, content: bytes | None = None) -> list[str]:
    """The locations of external data that an ONNX file names, sorted."""
    try:
        if content is not None:
            return sorted(set(_locations(content)))
        with path.open("rb") as file:
            if not path.stat().st_size:
                return []
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
                return sorted(set(_locations(mapped)))
    except OSError as error:
        raise ModelFileError(f"Cannot read the model file {path}: {error.strerror or error}.") from error
    except (ValueError, IndexError) as error:
        raise ModelFileError(f"{path} is damaged, or not an ONNX model: {error}.") from error


def _beside(model: Path, location: str) -> Path:
    posix, windows = PurePosixPath(location), PureWindowsPath(location)
    wanted = f"{model} keeps weights in {location!r}"
    if not location or windows.is_absolute() or windows.drive or windows.root or ".." in (*posix.parts, *windows.parts):
        raise ModelFileError(f"{wanted}, which is not a path inside the folder of the model.")
    file = model.parent / location
    if not file.is_file():
        raise ModelFileError(f"{wanted}, which is not beside it: keep both files in one folder.")
    roots = {model.parent.resolve(), model.resolve().parent}
    if not any(file.resolve().is_relative_to(root) for root in roots):
        raise ModelFileError(f"{wanted}, which is a link that leads out of the folder of the model.")
    return file


def _locations(content: Buffer) -> Iterator[str]:
    """Every location named anywhere: also of tensors that do not say that they use it, for a reader may differ."""
    if content.find(b"location") < 0:  # nearly every file: strings lie in a message as they are
        return
    open_messages: list[tuple[str, int, int, int]] = [("model", 0, len(content), 0)]
    while open_messages:
        kind, start, end, depth = open_messages.pop()
        if depth > _DEPTH:
            raise ValueError("messages are nested too deeply")
        for field, first, last in _messages(content, start, end):
            inner = _FIELDS[kind].get(field)
            if inner == "entry":
                entry = {key: bytes(content[a:b]).decode() for key, a, b in _messages(content, first, last)}
                if entry.get(1) == "location":
                    yield entry.get(2, "")
            elif inner is not None:
                open_messages.append((inner, first, last, depth + 1))


def _messages(content: Buffer, position: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Number, start and end of each field of a message that has a length: strings and messages."""
    while position < end:
        key, position = _varint(content, position, end)
        field, wire = key >> 3, key & 7
        if wire == 2:
            length, position = _varint(content, position, end)
            yield field, position, position + length
            position += length
        elif wire == 0:
            _, position = _varint(content, position, end)
        elif wire in (1, 5):
            position += 8 if wire == 1 else 4
        else:
            raise ValueError(f"a field of wire type {wire}")
        if position > end:
            raise ValueError("a field longer than its message")


def _varint(content: Buffer, position: int, end: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if position >= end:
            break
        byte = content[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise ValueError("a number without an end")
