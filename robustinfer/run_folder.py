"""The run folder as data: recipe, provenance, stages and evaluation, read without torch.

    recipe.toml              resolved fields; [provenance]: versions, commit, data digest, classes, input
    start.safetensors        what members start from instead of random parameters, if the run was trained with --from
    stage-NN.safetensors     the parameters of the member of stage NN; with share = "trunk", from 02 on of its head
    stage-NN.json            its beta, all betas after the stage, seconds, measurements, warnings
    resume.safetensors/json  where an interrupted stage resumes (the JSON is a copy for people)
    stage-NN-V.safetensors   budgeted runs only: the same, after the member was trained further; its JSON names the file
    budget.json              budgeted runs only: every decision and its evidence
    losses-NN.safetensors    minimax runs only: the robust losses of member NN, which the next distribution comes from
    metrics.jsonl            one line per logged step or epoch
    evaluation.json          what `robust evaluate` measured

A stage exists when its JSON does, which is written last and names the digest of the parameters. What trains, and what
makes networks of the parameters, is `robust.train.runs.run`.
"""

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .card import InputSpec
from .errors import RunError
from .files import read_toml

__all__ = ["RunFolder", "Stage"]


@dataclass(frozen=True)
class Stage:
    """One finished stage. `betas` are those of members 1 to `number` after it; 0 for a dropped member."""

    number: int
    architecture: str
    beta: float
    betas: tuple[float, ...]
    seconds: float
    metrics: dict[str, Any]
    path: Path
    digest: str
    warnings: tuple[dict[str, str], ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The document that is stored beside the parameters."""
        return {
            "number": self.number,
            "architecture": self.architecture,
            "beta": self.beta,
            "betas": list(self.betas),
            "seconds": self.seconds,
            "metrics": self.metrics,
            "digest": self.digest,
            "file": self.path.name,
            "warnings": list(self.warnings),
        }


@dataclass(frozen=True)
class RunFolder:
    """A run folder. `recipe` holds the fields as the file names them; stages are read when they are asked for."""

    path: Path
    recipe: dict[str, Any]
    provenance: dict[str, Any]
    classes: tuple[str, ...]
    input: InputSpec

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> "RunFolder":
        """Read a run folder; one that is missing or damaged is refused with a sentence."""
        folder = Path(path)
        file = folder / "recipe.toml"
        if not file.is_file():
            raise RunError(f"{folder} is not a run folder: it has no recipe.toml; train one with `robust train`.")
        recipe = read_toml(file, what="The recipe", error=RunError)
        try:
            provenance = recipe.pop("provenance")
            channels, height, width = provenance["input"]["shape"]
            spec = InputSpec(channels, height, width, resize=provenance["input"]["resize"])
            run = cls(folder, recipe, provenance, tuple(provenance["classes"]), spec)
        except (KeyError, TypeError, ValueError) as error:
            raise RunError(f"{file} is damaged: {error}.") from error
        _ = run.stages
        return run

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The finished stages, first to last."""
        names = (re.fullmatch(r"stage-(\d+)\.json", file.name) for file in self.path.iterdir())
        numbers = sorted(int(match[1]) for match in names if match)
        if numbers != list(range(1, len(numbers) + 1)):
            raise RunError(f"{self.path} holds stages {numbers}; expected 1, 2, ... without a gap.")
        return tuple(self.stage(number) for number in numbers)

    def stage(self, number: int) -> Stage:
        """One finished stage."""
        file = self.path / f"stage-{number:02d}.json"
        document = _read_json(file)
        try:
            betas = tuple(float(beta) for beta in document["betas"])
            known = {key: document[key] for key in ("number", "architecture", "beta", "seconds", "metrics", "digest")}
        except (KeyError, TypeError, ValueError) as error:
            raise RunError(f"{file} is damaged: {error}.") from error
        path = self.path / Path(str(document.get("file", file.with_suffix(".safetensors").name))).name
        return Stage(**known, betas=betas, path=path, warnings=tuple(document.get("warnings", ())))

    @property
    def evaluation(self) -> dict[str, Any]:
        """What `robust evaluate` measured, or nothing."""
        file = self.path / "evaluation.json"
        return _read_json(file) if file.is_file() else {}

    @property
    def budget(self) -> dict[str, Any]:
        """What a budgeted training decided, or nothing."""
        file = self.path / "budget.json"
        return _read_json(file) if file.is_file() else {}


def _read_json(file: Path) -> dict[str, Any]:
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RunError(f"{file} cannot be read: {error}.") from error
    if not isinstance(document, dict):
        raise RunError(f"{file} holds a JSON object; found {type(document).__name__}.")
    return document
