"""What an engine is, and which one runs a file."""

import os
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ..card import CARD_KEY, Card
from ..errors import MissingModelError, ModelFileError
from ..files import sha256

__all__ = ["Engine", "Loaded", "card_in_archive", "first_line", "good_batch", "load_engine"]


class Engine(Protocol):
    """Runs a scores graph. Any object with these attributes can be given to `Predictor`; it must be thread-safe."""

    @property
    def name(self) -> str:
        """For people: "onnxruntime 1.31.1 (CPUExecutionProvider)"."""

    @property
    def device(self) -> str:
        """Where it runs: "cpu", "cuda:0"."""

    @property
    def batch(self) -> int:
        """The number of samples that makes a good run."""

    def scores(self, images: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Scores (N, K) of images (N, C, H, W)."""


@dataclass(frozen=True)
class Loaded:
    """A model file, opened."""

    engine: Engine
    card: Card | None
    digest: str


def good_batch(values: int) -> int:
    """A good number of samples of `values` values for one run: a power of two from 16 to 1024.

    About 2^20 values of input (4 MB) make a run long enough to hide its fixed cost, and small enough for its
    activations: measured, speed no longer grows beyond it, and memory does (benchmarks/speed/certify_speed.py).
    """
    return max(16, min(1024, 1 << max(0, ((1 << 20) // max(values, 1)).bit_length() - 1)))


def load_engine(path: str | os.PathLike[str], *, device: str, threads: int | None) -> Loaded:
    """Open a model file with the engine that its suffix names."""
    file = Path(path)
    if not file.is_file():
        raise MissingModelError(f"There is no model file {file}.")
    suffix = file.suffix.lower()
    if suffix == ".onnx":
        from .onnx import OnnxEngine

        engine = OnnxEngine(file, device=device, threads=threads)
        text = engine.metadata.get(CARD_KEY)
        return Loaded(engine, Card.loads(text) if text else None, engine.digest)
    if suffix in {".pt", ".pt2"}:
        from .torch import TorchEngine

        card = card_in_archive(file)
        return Loaded(TorchEngine(file, device=device, threads=threads), card, sha256(file))
    raise ModelFileError(f"Expected a model file that ends in .onnx, .pt or .pt2, found {file.name}.")


def card_in_archive(path: Path) -> Card | None:
    """The card of a .pt or .pt2 file. Both are zip archives; torch is not needed to read it."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = [name for name in archive.namelist() if name.endswith(f"/{CARD_KEY}.json")]
            return Card.loads(archive.read(names[0])) if names else None
    except (zipfile.BadZipFile, OSError, EOFError, NotImplementedError) as error:
        raise ModelFileError(f"{path} is damaged, or not a TorchScript or pt2 file: {error}.") from error


def first_line(error: Exception) -> str:
    """What another package's error says first, without its full stop."""
    text = str(error).strip()
    return text.splitlines()[0].rstrip(".") if text else type(error).__name__
