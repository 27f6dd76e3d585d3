"""The run folder: what a training writes, and all that an export or an evaluation reads.

    recipe.toml              resolved settings; [provenance]: versions, commit, data digest, classes, input
    stage-NN.safetensors     the member of stage NN
    stage-NN.json            its weight, all weights after the stage, seconds, measurements, warnings
    resume.safetensors/json  where an interrupted stage goes on (the JSON is a copy for people)
    losses-NN.safetensors    minimax runs only: the robust losses of member NN, which the next stage's weights come from
    metrics.jsonl            one line a logged step or epoch
    evaluation.json          what `robust evaluate` measured

A stage exists when its JSON does, which is written last and names the digest of the weights.
"""

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from robustinfer.card import InputSpec
from robustinfer.errors import RecipeError, RunError
from robustinfer.files import replacing, sha256, write_text

from ..members import Member, build_member
from ..members.ensemble import Ensemble
from ..members.votes import VoteEnsemble
from ..recipe import Recipe
from ..toml import read_toml

__all__ = ["Run", "Stage"]


@dataclass(frozen=True)
class Stage:
    """One finished stage. `betas` are the weights of members 1 to `number` after it; 0 for a dropped member."""

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
        """The document that is stored beside the weights."""
        return {
            "number": self.number,
            "architecture": self.architecture,
            "beta": self.beta,
            "betas": list(self.betas),
            "seconds": self.seconds,
            "metrics": self.metrics,
            "digest": self.digest,
            "warnings": list(self.warnings),
        }


@dataclass(frozen=True)
class Run:
    """A run folder. Weights and the stages' documents are read from it when they are asked for."""

    path: Path
    recipe: Recipe
    classes: tuple[str, ...]
    input: InputSpec
    provenance: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def create(
        cls, path: str | Path, recipe: Recipe, *, classes: tuple[str, ...], input: InputSpec, provenance: dict[str, Any]
    ) -> "Run":
        """Start a new run folder; a folder that holds anything is refused, so nothing that existed is lost."""
        folder = Path(path)
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise RunError(f"{folder} exists already; give another --out, or --resume to go on with the run in it.")
        facts = {**provenance, "classes": list(classes), "input": {"shape": list(input.shape), "resize": input.resize}}
        write_text(folder / "recipe.toml", recipe.to_toml() + _toml_table("provenance", facts))
        return cls(folder, recipe, classes, input, facts)

    @classmethod
    def open(cls, path: str | Path) -> "Run":
        """Read a run folder; one that is missing or damaged is refused with a sentence."""
        folder = Path(path)
        file = folder / "recipe.toml"
        if not file.is_file():
            raise RunError(f"{folder} is no run folder: it has no recipe.toml; train one with `robust train`.")
        try:
            facts = read_toml(file)["provenance"]
            recipe = Recipe.load(file)
            channels, height, width = facts["input"]["shape"]
            spec = InputSpec(channels, height, width, resize=facts["input"]["resize"])
            run = cls(folder, recipe, tuple(facts["classes"]), spec, facts)
        except (KeyError, TypeError, ValueError, RecipeError) as error:
            raise RunError(f"{file} is damaged: {error}.") from error
        _ = run.stages
        return run

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The finished stages, first to last."""
        numbers = sorted(
            int(match[1]) for file in self.path.iterdir() if (match := re.fullmatch(r"stage-(\d+)\.json", file.name))
        )
        if numbers != list(range(1, len(numbers) + 1)):
            raise RunError(f"{self.path} holds stages {numbers}; expected 1, 2, ... without a gap.")
        return tuple(self._stage(number) for number in numbers)

    @property
    def evaluation(self) -> dict[str, Any]:
        """What `robust evaluate` measured, or nothing."""
        file = self.path / "evaluation.json"
        return _read_json(file) if file.is_file() else {}

    @property
    def finished(self) -> bool:
        """Whether all stages of the recipe are there."""
        return len(self.stages) >= self.recipe.stages

    def ensemble(self, stages: int | None = None, device: str | torch.device = "cpu") -> Ensemble:
        """The ensemble after `stages` stages (all, if None), with the weights of that time, ready for scores.

        Members that were dropped (weight 0) are left out.
        """
        finished = self.stages
        count = len(finished) if stages is None else stages
        if not 1 <= count <= len(finished):
            raise RunError(f"{self.path} has {len(finished)} finished stages; asked for the first {count}.")
        betas = finished[count - 1].betas
        kept = [number for number in range(1, count + 1) if betas[number - 1] != 0]
        members = [self.member(number) for number in kept]
        kind = VoteEnsemble if self.recipe.booster == "minimax" else Ensemble
        return kind(members, [betas[number - 1] for number in kept]).freeze().to(device)

    def kept(self, stages: int | None = None) -> tuple[int, ...]:
        """The numbers of the stages whose members are in `ensemble(stages)`, in order."""
        betas = self.stages[(stages or len(self.stages)) - 1].betas
        return tuple(number for number, beta in enumerate(betas, start=1) if beta != 0)

    def member(self, number: int) -> Member:
        """The member of one stage."""
        stage = self._stage(number)
        if not stage.path.is_file() or sha256(stage.path) != stage.digest:
            raise RunError(f"{stage.path} is missing or is not the file its stage-{number:02d}.json names.")
        member = self.fresh_member(seed=0)
        try:
            member.load_state_dict(load_file(stage.path))
        except (RuntimeError, SafetensorError, OSError) as error:
            raise RunError(f"{stage.path} does not fit the architecture {stage.architecture}: {error}.") from error
        return member

    def fresh_member(self, *, seed: int, mean: Tensor | None = None, std: Tensor | None = None) -> Member:
        """An untrained member of the recipe's architecture."""
        channels = self.input.channels
        return build_member(
            self.recipe.architecture,
            input=self.input,
            classes=len(self.classes),
            width=self.recipe.width,
            seed=seed,
            mean=torch.zeros(channels) if mean is None else mean,
            std=torch.ones(channels) if std is None else std,
        )

    def add_stage(
        self,
        number: int,
        member: Member,
        *,
        betas: list[float],
        seconds: float,
        metrics: dict[str, Any],
        warnings: list[dict[str, str]],
    ) -> Stage:
        """Write a finished stage: the weights first, then the document that makes it count."""
        path = self.path / f"stage-{number:02d}.safetensors"
        save_tensors(path, member.state_dict())
        stage = Stage(
            number,
            self.recipe.architecture,
            betas[-1],
            tuple(betas),
            seconds,
            metrics,
            path,
            sha256(path),
            tuple(warnings),
        )
        write_text(path.with_suffix(".json"), json.dumps(stage.to_json(), indent=2) + "\n")
        return stage

    def _stage(self, number: int) -> Stage:
        path = self.path / f"stage-{number:02d}.safetensors"
        document = _read_json(path.with_suffix(".json"))
        try:
            betas = tuple(float(beta) for beta in document["betas"])
            known = {key: document[key] for key in ("number", "architecture", "beta", "seconds", "metrics", "digest")}
        except (KeyError, TypeError, ValueError) as error:
            raise RunError(f"{path.with_suffix('.json')} is damaged: {error}.") from error
        return Stage(**known, betas=betas, path=path, warnings=tuple(document.get("warnings", ())))


def save_tensors(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str] | None = None) -> None:
    """Write tensors as safetensors, all of them or nothing."""
    with replacing(path) as temporary:
        save_file({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, temporary, metadata)


def _read_json(file: Path) -> dict[str, Any]:
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RunError(f"{file} cannot be read: {error}.") from error
    if not isinstance(document, dict):
        raise RunError(f"{file} holds a JSON object; found {type(document).__name__}.")
    return document


def _toml_table(name: str, values: dict[str, Any]) -> str:
    """A TOML table; nested dictionaries become tables of their own, as TOML wants them after the plain values."""
    plain = {key: value for key, value in values.items() if not isinstance(value, dict)}
    lines = [f"\n[{name}]\n", *(f"{key} = {json.dumps(value, ensure_ascii=False)}\n" for key, value in plain.items())]
    nested = [_toml_table(f"{name}.{key}", value) for key, value in values.items() if isinstance(value, dict)]
    return "".join(lines + nested)
