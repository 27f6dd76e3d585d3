"""What a training starts from instead of random parameters: a run, a network of the user's, or a file of parameters."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from robustinfer.errors import RecipeError, RunError

from .data.datasets import ImageData
from .members import Member
from .members.pretrained import fill, read_parameters
from .recipe import Recipe
from .runs.run import Run

__all__ = ["Start"]


@dataclass(frozen=True)
class Start:
    """Where the members that would start from random parameters start instead.

    `source` is a run folder (its last member), `module:factory` (what it returns, with `parameters` from a file if
    there are any), or a .safetensors or .pth file for the architecture of the recipe. `mean` and `std` are the
    normalisation that the network was trained with, per channel, in pixels of [0,1]; by default that of the source, if
    it has one, else that of the training images.
    """

    source: str
    parameters: Path | None = None
    mean: Sequence[float] | None = None
    std: Sequence[float] | None = None

    def __post_init__(self) -> None:
        if self.parameters is not None and not self._named:
            raise RecipeError(f"Only a module:factory takes a file of parameters; found {self.source!r}.")
        if (self.mean is None) != (self.std is None):
            raise RecipeError("A normalisation has a mean and a std per channel: give both, or neither.")

    @property
    def _named(self) -> bool:
        return ":" in self.source and not Path(self.source).exists()

    def adapted(self, recipe: Recipe) -> Recipe:
        """The recipe with the architecture of the source."""
        if self._named:
            return recipe.replace(architecture=self.source)
        if not Path(self.source).is_dir():
            return recipe
        before = Run.open(self.source).recipe
        return recipe.replace(architecture=before.architecture, width=before.width)

    def member(self, run: Run, data: ImageData) -> tuple[Member, tuple[str, ...]]:
        """The first member of `run`, and the names of its parameters that stayed random."""
        mean, std = data.moments()
        member = run.fresh_member(seed=run.recipe.seed, mean=mean, std=std)
        random: tuple[str, ...] = ()
        if Path(self.source).is_dir():
            random = fill(member, self._last_member(), source=self.source)
        elif not self._named:
            random = fill(member, read_parameters(Path(self.source)), source=self.source)
        elif self.parameters is not None:
            random = fill(member, read_parameters(self.parameters), source=str(self.parameters))
        if self.mean is not None and self.std is not None:
            _normalise(member, self.mean, self.std)
        return member, random

    def _last_member(self) -> dict[str, Tensor]:
        before = Run.open(self.source)
        if not before.stages:
            raise RunError(f"{self.source} has no finished stage to start from yet: train it first.")
        return before.member(len(before.stages)).state_dict()

    def to_json(self) -> dict[str, Any]:
        """The facts that are kept with the run."""
        facts = {"source": self.source, "parameters": None if self.parameters is None else str(self.parameters)}
        return {key: value for key, value in facts.items() if value is not None}


def _normalise(member: Member, mean: Sequence[float], std: Sequence[float]) -> None:
    channels = member.mean.shape[1]
    if len(mean) != channels or len(std) != channels or not all(value > 0 for value in std):
        raise RecipeError(
            f"A normalisation has {channels} means and as many positive deviations here; found mean {tuple(mean)} and "
            f"std {tuple(std)}."
        )
    member.mean.copy_(torch.tensor(mean).reshape(1, -1, 1, 1))
    member.std.copy_(torch.tensor(std).reshape(1, -1, 1, 1))
