"""One training step for each `previous` mode, against the passes it cannot do without.

    python benchmarks/speed/training_step.py [--architecture resnet12] [--batch 64] [--repeats 15] [--quick]

Claim: a step takes at most 15 % more than the sum of the forward and backward passes it needs at the least, measured on
the bare member in the same run. For PGD with k steps and s frozen members that sum is

    clean        k (forward + input gradient) + 1 (forward + weight gradient)
    adversarial  as clean, + s forward
    exact        (1 + s) k (forward + input gradient) + 1 (forward + weight gradient) + s forward

Hardware: any CPU; the JSON names it. Contestants run in turn; the claim is judged on medians of processor seconds of
one thread, which a busy machine disturbs less than the clock. The clock is kept beside it.
"""

import argparse
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from robust.train import Ensemble, Recipe
from robust.train.data.datasets import ImageData
from robust.train.data.pixels import TensorPixels
from robust.train.machine.processes import Processes
from robust.train.members import Member, build_member
from robust.train.runs.journal import Journal
from robust.train.stage.objective import Objective, StageModel
from robust.train.stage.trainer import StageTrainer
from torch import Tensor
from torch.nn import functional

from robustinfer import InputSpec

sys.path.append(str(Path(__file__).resolve().parents[2]))  # for `benchmarks`, which is not installed
from benchmarks.lib.record import interleaved, median, record, verdict

SPEC = InputSpec(1, 28, 28)
MODES = ("clean", "adversarial", "exact")


def main() -> int:
    """Measure, print, record; the exit code says whether the claim holds."""
    options = _options()
    torch.set_num_threads(options.threads)
    data = random_images(4 * options.batch)
    with TemporaryDirectory() as folder:
        steps = {mode: stage_step(_recipe(options, mode), options.frozen, data, Path(folder)) for mode in MODES}
        timings = interleaved({**steps, **_bare(options, data)}, repeats=options.repeats)
    clock = "cpu" if options.threads == 1 else "wall"
    passes = {name: median(timings[name][clock]) for name in ("forward", "input gradient", "weight gradient")}
    verdicts = []
    for mode in MODES:
        floor = _floor(mode, passes, steps=options.steps, frozen=options.frozen)
        ratio = median(timings[mode][clock]) / floor
        claim = f"{mode}: step / least passes, {options.architecture}, {options.frozen} frozen members"
        verdicts.append(verdict(claim, ratio, 1.15, at_least=False) | {"floor_seconds": floor})
    results = {"clock": clock, "passes": passes, "verdicts": verdicts, "timings": timings}
    if not options.quick:
        record("training_step", arguments=vars(options), results=results)
    return 0 if all(found["holds"] for found in verdicts) else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--architecture", default="resnet12")
    parser.add_argument("--width", type=float, default=1.0)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--steps", type=int, default=7)
    parser.add_argument("--frozen", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="few repeats, nothing recorded")
    options = parser.parse_args()
    options.repeats = 3 if options.quick else options.repeats
    return options


def _floor(mode: str, passes: dict[str, float], *, steps: int, frozen: int) -> float:
    attacked = 1 + frozen if mode == "exact" else 1
    evaluated = 0 if mode == "clean" else frozen
    return attacked * steps * passes["input gradient"] + passes["weight gradient"] + evaluated * passes["forward"]


def _recipe(options: argparse.Namespace, mode: str) -> Recipe:
    return Recipe(
        name="training-step",
        architecture=options.architecture,
        width=options.width,
        batch=options.batch,
        steps=options.steps,
        delta=0.1,
        previous=mode,
        momentum=0.9,
    )


def random_images(count: int) -> ImageData:
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(256, (count, *SPEC.shape), dtype=torch.uint8, generator=generator)
    labels = torch.randint(10, (count,), generator=generator)
    return ImageData("random", TensorPixels(pixels), labels, tuple("0123456789"))


def _member(recipe: Recipe, seed: int) -> Member:
    mean, std = torch.full((1,), 0.5), torch.full((1,), 0.25)
    return build_member(recipe.architecture, input=SPEC, classes=10, mean=mean, std=std, width=recipe.width, seed=seed)


def stage_step(recipe: Recipe, frozen: int, data: ImageData, folder: Path) -> Callable[[], Tensor]:
    """A step of the stage after `frozen` stages, exactly as a training does it."""
    past = None
    if frozen:
        past = Ensemble([_member(recipe, seed) for seed in range(1, frozen + 1)], [1.0] * frozen).freeze()
    previous = torch.empty(0) if past is None else past.betas
    model = StageModel(_member(recipe, 0), beta=1.0, previous=previous, corrective=True, learn_beta=True)
    trainer = StageTrainer(
        Objective(recipe, model, past, precision=nullcontext),
        frozen + 1,
        data=data,
        held_out=data,
        processes=Processes(torch.device("cpu")),
        journal=Journal(folder, write=False),
        folder=folder,
        fresh=False,
    )
    trainer.batches.offsets = trainer.cached_offsets()
    model.train()
    return trainer.update


def _bare(options: argparse.Namespace, data: ImageData) -> dict[str, Callable[[], Any]]:
    """The passes of one member with nothing around them: no attack, no optimiser, no ensemble."""
    recipe = _recipe(options, "clean")
    evaluated, trained = _member(recipe, 0).eval().requires_grad_(False), _member(recipe, 0).train()
    numbers = torch.arange(options.batch)
    image, labels = data.take(numbers).float() / 255, data.labels[numbers]
    attacked = image.clone().requires_grad_()

    def forward() -> None:
        with torch.no_grad():
            evaluated(image)

    def input_gradient() -> None:
        torch.autograd.grad(functional.cross_entropy(evaluated(attacked), labels), attacked)

    def weight_gradient() -> None:
        trained.zero_grad(set_to_none=True)
        functional.cross_entropy(trained(image), labels).backward()

    return {"forward": forward, "input gradient": input_gradient, "weight gradient": weight_gradient}


if __name__ == "__main__":
    sys.exit(main())
