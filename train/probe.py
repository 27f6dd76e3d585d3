"""What bf16, channels_last and torch.compile gain for one recipe on this machine: measured, never assumed."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from robustinfer.errors import RecipeError

from .data.datasets import ImageData, load_data
from .machine.arithmetic import arithmetic
from .machine.memory import keep_freed_memory
from .machine.processes import Processes, choose_device
from .members.ensemble import Ensemble
from .recipe import Recipe
from .runs.journal import Journal
from .runs.run import Run
from .stage.checks import check_stage
from .stage.objective import StageModel
from .stage.registry import make_objective
from .stage.trainer import StageTrainer

__all__ = ["Probe", "ProbeReport", "probe_options"]

_VARIANTS: dict[str, dict[str, Any]] = {
    "as it is": {"precision": "fp32", "channels_last": False, "compile": False},
    "bf16": {"precision": "bf16"},
    "channels_last": {"channels_last": True},
    "compile": {"compile": True},
    "bf16 + channels_last": {"precision": "bf16", "channels_last": True},
}
_WARM_UP = 2


@dataclass(frozen=True)
class Probe:
    """The median time of a training step with some options, or why they cannot be used."""

    options: str
    seconds: float | None
    problem: str = ""


@dataclass(frozen=True)
class ProbeReport:
    """All measurements; the first one is the recipe without any option."""

    recipe: str
    device: str
    batch: int
    probes: tuple[Probe, ...]

    def to_json(self) -> dict[str, Any]:
        """The report as a JSON object."""
        probes = [
            {"options": probe.options, "seconds": probe.seconds, "gain": self.gain(probe), "problem": probe.problem}
            for probe in self.probes
        ]
        return {"recipe": self.recipe, "device": self.device, "batch": self.batch, "probes": probes}

    def gain(self, probe: Probe) -> float | None:
        """How many times faster than without options."""
        base = self.probes[0].seconds
        return base / probe.seconds if base and probe.seconds else None

    def table(self) -> str:
        """The report for people."""
        lines = [f"one step of {self.recipe} in its second stage, batch {self.batch}, on {self.device}"]
        for probe in self.probes:
            if probe.seconds is None:
                lines.append(f"{probe.options:<22}  not usable here: {probe.problem}")
            else:
                lines.append(
                    f"{probe.options:<22}  {1000 * probe.seconds:>9.1f} ms  {self.gain(probe):.2f} times as fast"
                )
        return "\n".join(lines)


def probe_options(
    recipe: Recipe,
    *,
    root: str | Path = "data",
    device: str = "auto",
    download: bool = False,
    steps: int = 7,
    progress: Callable[[str], None] = lambda words: None,
) -> ProbeReport:
    """Time a training step of the recipe's second stage with each option; `progress` is told what is being timed."""
    chosen = choose_device(device)
    keep_freed_memory(chosen)  # as in a training
    data = load_data(recipe.data, root=root, size=recipe.size, download=download)
    probes = []
    for number, (name, options) in enumerate(_VARIANTS.items(), start=1):
        progress(f"timing {_WARM_UP + steps} steps, {number} of {len(_VARIANTS)}: {name}")
        variant = recipe.replace(**{**_VARIANTS["as it is"], **options})
        try:
            probes.append(Probe(name, _time(variant, data, chosen, steps)))
        except (
            RuntimeError,
            RecipeError,
        ) as error:  # a missing compiler, an operator without bf16: torch raises many kinds
            probes.append(Probe(name, None, str(error).strip().splitlines()[0]))
    return ProbeReport(recipe.name, str(chosen), recipe.batch, tuple(probes))


def _time(recipe: Recipe, data: ImageData, device: torch.device, steps: int) -> float:
    """The median over `steps` steps, after a few that are not counted; the first ones compile and allocate."""
    run = Run(Path(), recipe, data.classes, data.input)
    mean, std = data.moments(1000)
    past = Ensemble([run.fresh_member(seed=1, mean=mean, std=std)], [1.0]).freeze().to(device)
    member = run.fresh_member(seed=0, mean=mean, std=std)
    processes, images = Processes(device), data.head((_WARM_UP + steps) * recipe.batch)
    check_stage(recipe, images, member, processes)
    model = StageModel(member, beta=1.0, previous=past.betas.cpu(), corrective=True, learn_beta=True).to(device)
    with TemporaryDirectory() as folder:
        trainer = StageTrainer(
            make_objective(
                recipe, model, past if recipe.booster == "greedy" else None, precision=arithmetic(recipe, device)
            ),
            2,
            data=images,
            held_out=data.head(1),
            processes=processes,
            journal=Journal(Path(folder), write=False),
            folder=Path(folder),
            fresh=False,
        )
        trainer.batches.offsets = trainer.cached_offsets()
        model.train()
        times = []
        for _ in range(_WARM_UP + steps):
            begun = time.perf_counter()
            trainer.update()
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            times.append(time.perf_counter() - begun)
    return statistics.median(times[_WARM_UP:])
