"""What a training will take here, and with how many threads: a few steps are timed before the first one that counts."""

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch

from robustinfer.threads import choose_threads

from .budget.slices import Operations
from .data.datasets import ImageData
from .machine.arithmetic import arithmetic
from .machine.processes import Processes
from .recipe import Recipe
from .runs.journal import Journal
from .runs.run import Run
from .stage.objective import StageModel
from .stage.registry import make_objective
from .stage.schedule import run_cost
from .stage.trainer import StageTrainer

__all__ = ["Pace", "measure_pace", "step_operations"]

_STEPS, _SECONDS = 3, 2.0  # steps that are timed, and the time after which fewer of them do
_LONG_STEP = 5.0  # threads share work of this length well: trying one alone would take long and tell nothing


@dataclass(frozen=True)
class Pace:
    """The time of a step of the first stage with `threads`, and how many such steps the rest of the run is worth.

    `tried` has the seconds for each number of threads that was tried; it is empty if there was no choice.
    """

    seconds: float
    steps: float
    threads: int
    tried: Mapping[int, float] = field(default_factory=dict)

    @property
    def total(self) -> float:
        """Seconds until the end of the training, roughly."""
        return self.seconds * self.steps


def measure_pace(
    recipe: Recipe, data: ImageData, processes: Processes, *, finished: int = 0, choose: bool = False
) -> Pace | None:
    """Time steps of the first stage, and with `choose` the same with one thread; None where that is not possible.

    `finished` stages are not counted. Many processes would have to be timed together, and a compiled member would be
    compiled twice: nothing is measured then.
    """
    if processes.world > 1 or recipe.compile or len(data) < recipe.batch:
        return None
    trainer, threads = _trainer(recipe, data.head(recipe.batch), processes), torch.get_num_threads()

    def step() -> None:
        trainer.update()
        if processes.device.type == "cuda":
            torch.cuda.synchronize(processes.device)

    seconds = {threads: _time(step)}
    if choose and threads > 1 and processes.device.type == "cpu" and seconds[threads] < _LONG_STEP:
        torch.set_num_threads(1)
        seconds[1] = _time(step)
        torch.set_num_threads(threads)
    chosen = choose_threads(seconds)
    steps = run_cost(recipe, images=len(data), finished=finished)
    return Pace(seconds[chosen], steps, chosen, seconds if len(seconds) > 1 else {})


def step_operations(recipe: Recipe, data: ImageData, processes: Processes) -> float:
    """Floating-point operations of one step of the first stage, at the full radius, as a budget counts them."""
    trainer = _trainer(recipe.replace(ramp=0.0), data.head(recipe.batch), processes)
    with Operations() as counter:
        trainer.update()
    return float(counter.total)


def _time(step: Callable[[], None]) -> float:
    """The median of a few steps after one that allocates; a single one if that takes long."""
    times: list[float] = []
    begun = time.perf_counter()
    while len(times) <= _STEPS and not (times and time.perf_counter() - begun > _SECONDS):
        started = time.perf_counter()
        step()
        times.append(time.perf_counter() - started)
    return statistics.median(times[1:] or times)


def _trainer(recipe: Recipe, data: ImageData, processes: Processes) -> StageTrainer:
    """A trainer of the first stage that writes nothing and shares nothing with the one that counts."""
    run = Run(Path(), recipe, data.classes, data.input)
    mean, std = data.moments()
    member = run.fresh_member(seed=0, mean=mean, std=std)
    model = StageModel(member, beta=1.0, previous=torch.zeros(0), corrective=False, learn_beta=True)
    return StageTrainer(
        make_objective(
            recipe, model.to(processes.device).train(), None, precision=arithmetic(recipe, processes.device)
        ),
        1,
        data=data,
        held_out=data,
        processes=Processes(processes.device),
        journal=Journal(Path(), write=False),
        folder=Path(),
        fresh=False,  # with delta at its full value: one that starts at 0 needs no attack, and no time for it
    )
