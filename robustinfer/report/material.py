"""What a report is made of: facts of a run, sets of certificates, attacked images, and where pictures come from."""

import contextlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..attacked import Attacked, read_attacked
from ..certificate_file import Entry, Header, read_certificates
from ..data import load_images
from ..engines import model_digest
from ..errors import ArgumentError, DataError, ModelFileError, RobustinferError
from ..predictor import Predictor
from ..run_folder import RunFolder
from ..summary import Summary, merge, summarize

__all__ = ["CertificateSet", "Material", "RunFacts", "read_sources"]

_MODEL_SUFFIXES = (".onnx", ".pt", ".pt2")


@dataclass(frozen=True)
class RunFacts:
    """What a report says about a run folder. `stages` are the documents of its stages, first to last.

    `budget` is what a budgeted training decided, and why.
    """

    path: str
    recipe: dict[str, Any]
    provenance: dict[str, Any]
    stages: tuple[dict[str, Any], ...]
    evaluation: dict[str, Any]
    budget: dict[str, Any] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """Seconds of training; 0 if its budget was counted in operations, which another machine repeats."""
        return float(sum(stage["seconds"] for stage in self.stages))

    @property
    def attack(self) -> dict[str, Any] | None:
        """The evaluation under the strongest attack there is: the last one in the file."""
        attacks: dict[str, Any] = self.evaluation.get("attacks", {})
        attacked = [result for name, result in attacks.items() if name != "none"]
        return attacked[-1] if attacked else None


@dataclass(frozen=True)
class CertificateSet:
    """The certificates of one model on one data set, from one file or several shards."""

    paths: tuple[Path, ...]
    header: Header
    entries: list[Entry]
    summary: Summary

    @property
    def name(self) -> str:
        """The name of the model."""
        return self.header.model["name"]


@dataclass(frozen=True)
class Material:
    """Everything a report is made of. `sets[0]` is the model the report is about; others are compared with it.

    `read` returns an image of the certified data by its number, and `classes` are the names of its classes; without
    them the report has no gallery.
    """

    runs: tuple[RunFacts, ...] = ()
    sets: tuple[CertificateSet, ...] = ()
    attacked: Attacked | None = None
    read: Callable[[int], npt.NDArray[Any]] | None = None
    classes: tuple[str, ...] = ()
    notes: list[str] = field(default_factory=list)


def read_sources(paths: Sequence[Path], *, model: Path | None = None, data: str | None = None) -> Material:
    """Collect run folders, files of certificates and files of attacked images; a folder of quickstart holds all three.

    The pictures of the gallery come from the data set that was certified, read as the model's card says. The model is
    `model`, or a file beside the certificates that has their model's digest.
    """
    files = list(_expanded(paths))
    if not files:
        raise ArgumentError("Give a run folder or a file of certificates to report on.")
    runs = tuple(_run(path) for path in files if path.is_dir())
    sets = _certificate_sets([path for path in files if path.suffix == ".jsonl"])
    attacked = next((read_attacked(path) for path in files if path.suffix == ".npz"), None)
    material = Material(runs, sets, attacked)
    return _with_pictures(material, model, data) if sets else material


def _expanded(paths: Iterable[Path]) -> Iterable[Path]:
    for path in paths:
        if path.is_dir() and not (path / "recipe.toml").is_file():
            inside = [path / "run", *_main_first(path.glob("certificates*.jsonl")), *sorted(path.glob("*.npz"))]
            found = [file for file in inside if file.exists()]
            if not found:
                raise DataError(f"{path} holds neither a run nor certificates.")
            yield from found
        elif path.is_dir() or path.suffix in (".jsonl", ".npz"):
            yield path
        else:
            raise ArgumentError(f"Expected a run folder or a .jsonl file of certificates, found {path}.")


def _main_first(paths: Iterable[Path]) -> list[Path]:
    """certificates.jsonl before certificates-first-member.jsonl: the model the report is about comes first."""
    return sorted(paths, key=lambda path: (len(path.stem), path.stem))


def _run(path: Path) -> RunFacts:
    run = RunFolder.open(path)
    return RunFacts(
        path=str(path),
        recipe=run.recipe,
        provenance=run.provenance,
        stages=tuple(stage.to_json() for stage in run.stages),
        evaluation=run.evaluation,
        budget=run.budget,
    )


def _certificate_sets(paths: Sequence[Path]) -> tuple[CertificateSet, ...]:
    """One set a model, data set and choice of settings; the files of its shards are put together."""
    groups: dict[str, list[Path]] = {}
    for path in paths:
        header, _ = read_certificates(path)
        data = (header.data_name, header.split, header.data_digest, header.total)
        key = repr((sorted(header.model.items()), sorted(header.settings.items()), data))
        groups.setdefault(key, []).append(path)
    sets = []
    for files in groups.values():
        header, entries = merge(files)
        sets.append(CertificateSet(tuple(files), header, entries, summarize(header, entries)))
    return tuple(sets)


def _with_pictures(material: Material, model: Path | None, data: str | None) -> Material:
    first = material.sets[0]
    file = model or _model_beside(first)
    if file is None:
        material.notes.append("There is no gallery: give the model file with --model to see the certified images.")
        return material
    card = Predictor.load(file, device="cpu", digest=first.header.model["digest"]).card
    try:
        images = load_images(data or first.header.data, card, split=first.header.split or "test")
        images.read(int(np.max([entry.index for entry in first.entries])))
    except (RobustinferError, IndexError) as error:
        if data is not None:
            raise
        material.notes.append(f"There is no gallery, because the certified images cannot be read: {error}")
        return material
    return Material(material.runs, material.sets, material.attacked, images.read, card.classes, material.notes)


def _model_beside(found: CertificateSet) -> Path | None:
    for file in sorted(found.paths[0].parent.iterdir()):
        if file.suffix in _MODEL_SUFFIXES:
            with contextlib.suppress(ModelFileError):  # a damaged file is not the one that is looked for
                if model_digest(file) == found.header.model["digest"]:
                    return file
    return None
