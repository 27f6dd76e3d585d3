"""A run as networks: members and ensembles from the parameters in a run folder, and what writes the folder.

The folder itself, file by file, is `robustinfer.run_folder`, which needs no torch.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tomli_w
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from robustinfer.card import InputSpec
from robustinfer.errors import RecipeError, RunError
from robustinfer.files import leftovers, replacing, sha256, write_text
from robustinfer.run_folder import RunFolder, Stage

from ..members import Member, build_member
from ..members.ensemble import Ensemble
from ..members.trunk import own_tensors, share_trunk
from ..members.votes import VoteEnsemble
from ..recipe import Recipe

__all__ = ["Run", "Stage", "save_tensors"]


@dataclass(frozen=True)
class Run:
    """A run folder. Parameters and the stages' documents are read from it when they are asked for."""

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
        # What a process left that was killed while it wrote the very first file is nothing.
        if folder.exists() and (not folder.is_dir() or set(folder.iterdir()) - set(leftovers(folder))):
            raise RunError(f"{folder} already exists: choose another --out, or use --resume to continue the run in it.")
        facts = {**provenance, "classes": list(classes), "input": {"shape": list(input.shape), "resize": input.resize}}
        write_text(folder / "recipe.toml", tomli_w.dumps({**recipe.to_json(), "provenance": facts}))
        return cls(folder, recipe, classes, input, facts)

    @classmethod
    def open(cls, path: str | Path) -> "Run":
        """Read a run folder; one that is missing or damaged is refused with a sentence."""
        folder = RunFolder.open(path)
        try:
            recipe = Recipe.from_json(folder.recipe)
        except RecipeError as error:
            raise RunError(f"{folder.path / 'recipe.toml'} is damaged: {error}.") from error
        return cls(folder.path, recipe, folder.classes, folder.input, folder.provenance)

    @property
    def folder(self) -> RunFolder:
        """The folder as data."""
        return RunFolder(self.path, self.recipe.to_json(), self.provenance, self.classes, self.input)

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The finished stages, first to last."""
        return self.folder.stages

    @property
    def evaluation(self) -> dict[str, Any]:
        """What `robust evaluate` measured, or nothing."""
        return self.folder.evaluation

    @property
    def finished(self) -> bool:
        """Whether all stages of the recipe are there."""
        return len(self.stages) >= self.recipe.stages

    def ensemble(self, stages: int | None = None, device: str | torch.device = "cpu") -> Ensemble:
        """The ensemble after `stages` stages (all, if None), with the betas of that time, ready for scores.

        Members that were dropped (beta 0) are left out.
        """
        finished = self.stages
        count = len(finished) if stages is None else stages
        if not 1 <= count <= len(finished):
            raise RunError(f"{self.path} has {len(finished)} finished stages; the first {count} were requested.")
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
        stage, member = self.folder.stage(number), self.fresh_member(seed=0)
        shared = self.recipe.shares_trunk
        try:
            tensors = _stage_tensors(stage)
            if shared and number > 1:  # its file holds the head alone
                tensors = _stage_tensors(self.folder.stage(1)) | tensors
            member.load_state_dict(tensors)
        except (RuntimeError, SafetensorError, OSError) as error:
            raise RunError(f"{stage.path} does not fit the architecture {stage.architecture}: {error}.") from error
        return share_trunk(member, self.recipe.split) if shared else member

    def grafted(self, member: Member) -> Member:
        """The member on the frozen trunk of the first: what is left to train is its head."""
        member = share_trunk(member, self.recipe.split)
        assert member.trunk is not None
        first = _stage_tensors(self.folder.stage(1))
        member.load_state_dict({name: first[name] for name in member.trunk.names()}, strict=False)
        member.trunk.freeze()
        return member

    @property
    def start(self) -> Path | None:
        """The parameters that members start from instead of random ones; None if there are none."""
        return self.path / "start.safetensors" if "start" in self.provenance else None

    def first_member(self, *, seed: int, mean: Tensor, std: Tensor) -> Member:
        """A member as it is before its training: from the run's start, or with random parameters."""
        member = self.fresh_member(seed=seed, mean=mean, std=std)
        if self.start is not None:
            try:
                member.load_state_dict(load_file(self.start))
            except (RuntimeError, SafetensorError, OSError) as error:
                raise RunError(f"{self.start} is missing or damaged ({error}): give --from again.") from error
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
        version: int = 0,
    ) -> Stage:
        """Write a finished stage: the parameters first, then the document that makes it count.

        A stage that was trained further takes its own place as another `version`, in a file of another name, so that
        parameters and document fit each other at every moment.
        """
        suffix = f"-{version}" if version else ""
        path = self.path / f"stage-{number:02d}{suffix}.safetensors"
        save_tensors(path, own_tensors(member))
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
        write_text(self.path / f"stage-{number:02d}.json", json.dumps(stage.to_json(), indent=2) + "\n")
        for old in (
            self.path / f"stage-{number:02d}.safetensors",
            *self.path.glob(f"stage-{number:02d}-*.safetensors"),
        ):
            if old != path:
                old.unlink(missing_ok=True)
        return stage


def _stage_tensors(stage: Stage) -> dict[str, Tensor]:
    if not stage.path.is_file() or sha256(stage.path) != stage.digest:
        raise RunError(f"{stage.path} is missing or is not the file its stage-{stage.number:02d}.json names.")
    return load_file(stage.path)


def save_tensors(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str] | None = None) -> None:
    """Write tensors as safetensors, all of them or nothing."""
    with replacing(path) as temporary:
        save_file({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, temporary, metadata)
