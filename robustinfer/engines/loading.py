"""A model file is opened: the engine that its suffix names, its card and its digest."""

import os
import zipfile
from dataclasses import dataclass
from pathlib import Path

from ..card import CARD_KEY, Card
from ..errors import MissingModelError, ModelFileError
from ..files import sha256
from .engine import Engine

__all__ = ["FORMATS", "Loaded", "card_in_archive", "existing_model", "load_engine", "model_file"]

FORMATS = {".onnx": "ONNX", ".pt": "TorchScript", ".pt2": "torch.export"}


@dataclass(frozen=True)
class Loaded:
    """A model file, opened."""

    engine: Engine
    card: Card | None
    digest: str


def load_engine(path: str | os.PathLike[str], *, device: str, threads: int | None) -> Loaded:
    """Open a model file with the engine that its suffix names."""
    file = model_file(path)
    if file.suffix.lower() == ".onnx":
        from .onnx import OnnxEngine

        engine = OnnxEngine(file, device=device, threads=threads)
        text = engine.metadata.get(CARD_KEY)
        return Loaded(engine, Card.loads(text) if text else None, engine.digest)
    from .torch import TorchEngine

    card = card_in_archive(file)
    return Loaded(TorchEngine(file, device=device, threads=threads), card, sha256(file))


def model_file(path: str | os.PathLike[str]) -> Path:
    """The path of a file that exists, and whose suffix is that of a model file."""
    file = existing_model(path)
    if file.suffix.lower() not in FORMATS:
        raise ModelFileError(f"Expected a model file that ends in .onnx, .pt or .pt2, found {file.name}.")
    return file


def existing_model(path: str | os.PathLike[str]) -> Path:
    """The path of a file that exists; somebody else's model may end in anything."""
    file = Path(path)
    if not file.is_file():
        raise MissingModelError(f"There is no model file {file}.")
    return file


def card_in_archive(path: Path) -> Card | None:
    """The card of a .pt or .pt2 file. Both are zip archives; torch is not needed to read it."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = [name for name in archive.namelist() if name.endswith(f"/{CARD_KEY}.json")]
            return Card.loads(archive.read(names[0])) if names else None
    except (zipfile.BadZipFile, OSError, EOFError, NotImplementedError) as error:
        raise ModelFileError(f"{path} is damaged, or not a TorchScript or pt2 file: {error}.") from error
