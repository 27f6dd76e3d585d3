"""The TorchServe archive (.mar): handler, model file, configuration and digests in one reproducible zip file.

TorchServe's own archiver writes the time of day into the archive, so equal models give different bytes; this one
writes the same bytes for the same model, name, version and configuration.
"""

import json
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from robustinfer.card import Card
from robustinfer.engines import external_files, model_digest
from robustinfer.errors import ArgumentError
from robustinfer.files import replacing

from ..service.options import valid_name

__all__ = ["CARD", "DIGESTS", "HANDLER", "pack"]

HANDLER = "robust_handler.py"
# What an archive holds of us: one import of a name that stays, so that an archive outlives moves of our modules. It is
# a class of its own because TorchServe takes only a class that the archive's file defines.
ENTRY = """from robust.serve import TorchServeHandler


class Handler(TorchServeHandler):
    pass
"""
CONFIG = "model-config.yaml"
DIGESTS = "digests.json"
CARD = "card.json"
_EPOCH = (1980, 1, 1, 0, 0, 0)


def pack(
    model_path: str | os.PathLike[str],
    out_path: str | os.PathLike[str],
    *,
    name: str,
    version: str = "1",
    config: Mapping[str, Any] | None = None,
    card: Card | None = None,
) -> Path:
    """Write the archive of a model file to `out_path`. `config` becomes the model's TorchServe configuration.

    The archive needs robustinfer installed where it runs: it holds the adapter, not the library. Weights that an ONNX
    file keeps beside it go along, and so does `card`, that of a model file which carries none.
    """
    model, out = Path(model_path), Path(out_path)
    serialized = f"model{model.suffix}"
    manifest = {
        "createdOn": "01/01/1980 00:00:00",
        "runtime": "python",
        "model": {
            "modelName": valid_name(name),
            "modelVersion": version,
            "handler": HANDLER,
            "serializedFile": serialized,
            "configFile": CONFIG,
        },
        "archiverVersion": "0.12.0",
    }
    digests = {serialized: model_digest(model)}
    external = external_files(model)
    taken = {HANDLER, CONFIG, DIGESTS, CARD, serialized}
    clash = next((name for name in external if name in taken or Path(name).parts[0] == "MAR-INF"), None)
    if clash is not None:
        raise ArgumentError(
            f"{model} keeps weights in {clash!r}, a name that the archive itself uses: rename that file."
        )
    with replacing(out) as temporary, zipfile.ZipFile(temporary, "w") as archive:
        _add(archive, "MAR-INF/MANIFEST.json", json.dumps(manifest, indent=2).encode())
        _add(archive, HANDLER, ENTRY.encode())
        _add(archive, CONFIG, yaml.safe_dump(dict(config or {}), sort_keys=True).encode())
        _add(archive, DIGESTS, json.dumps(digests, indent=2, sort_keys=True).encode())
        if card is not None:
            _add(archive, CARD, card.dumps().encode())
        for location, file in {serialized: model, **external}.items():
            _add_file(archive, location, file)
    return out


def _entry(name: str) -> zipfile.ZipInfo:
    # Stored, not deflated: weights do not shrink, and TorchServe unpacks the archive at every start.
    entry = zipfile.ZipInfo(name, date_time=_EPOCH)
    entry.compress_type = zipfile.ZIP_STORED
    entry.external_attr = 0o644 << 16
    return entry


def _add(archive: zipfile.ZipFile, name: str, content: bytes) -> None:
    archive.writestr(_entry(name), content)


def _add_file(archive: zipfile.ZipFile, name: str, path: Path) -> None:
    with path.open("rb") as source, archive.open(_entry(name), "w", force_zip64=True) as target:
        while block := source.read(1 << 20):
            target.write(block)
