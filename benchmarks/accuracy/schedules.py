"""Which schedule can be cut anywhere, at what cost in accuracy?

    python benchmarks/accuracy/schedules.py --data DIR [--sets mnist,gtsrb] [--epochs 10,20] [--seeds 0] [--runs DIR]
    python benchmarks/accuracy/schedules.py --data DIR --sets signs --epochs 20 --rows cosine,decay

No claim but a choice: what `robust train --budget` does, and which `schedule` the recipes have. A schedule that
falls over a training of known length is the yardstick; the others could have been cut after any step. One member each,
of as many steps:

  cosine         the paper's, from the recipe's rate to 0 over all epochs
  constant       50 steps of warm-up, then the recipe's rate to the end
  decay          the same, but for the last quarter of the steps, in which the rate falls to 0
  average        `constant`, and the mean of its parameters over the last quarter of the steps
  schedule-free  Defazio et al. 2024 around the recipe's optimiser: the gradient is taken between the iterate and the
                 mean of all iterates, nine tenths of the way to the mean, which is what is deployed

Averaged parameters get the statistics of their batch normalisation from 100 batches. The cost of `decay` in a training
that is cut late is one such branch for each time somebody asks; the averages cost one more copy of the parameters.

The data and what is measured of a row: `lib/small_sets.py`. Hardware: any CPU, one thread; the JSON names it. Repeats:
one for each seed. Rows are kept one by one: after a kill, the same command does what is missing.
"""

import argparse
import itertools
import sys
from pathlib import Path
from typing import Any

import torch
from robust.train.boosting.booster import GreedyBooster
from robust.train.stage.schedule import LAST_DECAY, constant_learning_rate
from robust.train.stage.trainer import StageTrainer
from torch import Tensor, nn

sys.path.append(str(Path(__file__).resolve().parents[2]))  # for `benchmarks`, which is not installed
from benchmarks.lib.experiments import Row, Table, arguments, chosen_rows
from benchmarks.lib.small_sets import COPIES, measured_row, small_recipe

TOWARDS_MEAN, BATCHES = 0.9, 100
ROWS = (
    Row("cosine", "single", "falls over all epochs (the paper's)"),
    Row("constant", "single", "warm-up, then constant"),
    Row("decay", "single", "constant, decay to 0 over the last quarter"),
    Row("average", "single", "constant, parameters averaged over the last quarter"),
    Row("schedule-free", "single", "schedule-free, mean of all iterates"),
)


class ConstantTrainer(StageTrainer):
    """Warm-up, then a constant rate. `share` is the part of all steps that is over."""

    @property
    def share(self) -> float:
        return (self.epoch + self.step / self.batches.steps) / self.epochs

    def learning_rate(self) -> float:
        return constant_learning_rate(self.recipe.learning_rate, self.epoch * self.batches.steps + self.step)


class AverageTrainer(ConstantTrainer):
    """A constant rate, and the mean of the parameters over the last quarter in the end."""

    def _prepare(self) -> None:
        super()._prepare()
        self.trained = [one for one in self.model.parameters() if one.requires_grad]
        self.mean, self.counted = [one.detach().clone() for one in self.trained], 0.0

    def update(self) -> Tensor:
        loss = super().update()
        if self.share >= 1 - LAST_DECAY:
            self.count(self.trained, 1.0)
        return loss

    def count(self, iterate: list[nn.Parameter] | list[Tensor], weight: float) -> None:
        """The mean, with one iterate more."""
        self.counted += weight
        with torch.no_grad():
            for mean, one in zip(self.mean, iterate, strict=True):
                mean.lerp_(one, weight / self.counted)

    def _fit(self) -> None:
        super()._fit()
        with torch.no_grad():
            for one, mean in zip(self.trained, self.mean, strict=True):
                one.copy_(mean)
        self._refresh_statistics()

    def _refresh_statistics(self) -> None:
        """Batch normalisation: the plain mean over batches, by the parameters as they are now."""
        layers = [layer for layer in self.model.modules() if isinstance(layer, nn.BatchNorm2d)]
        kept = [layer.momentum for layer in layers]
        for layer in layers:
            layer.reset_running_stats()
            layer.momentum = None
        self.model.train()
        with torch.no_grad():
            for number in range(BATCHES):
                place = (self.epochs + number // self.batches.steps, number % self.batches.steps)
                batch, draws = self.batches.batch(*place), self.batches.draws(*place)
                self.objective.loss(batch, draws=draws, delta=0.0, steps=0, model=self.wrapped)
        self.model.eval()
        for layer, momentum in zip(layers, kept, strict=True):
            layer.momentum = momentum


class ScheduleFreeTrainer(AverageTrainer):
    """z steps by the gradient at y = (1 - b) z + b x; x, the mean of the z by their squared rates, is deployed."""

    def _prepare(self) -> None:
        super()._prepare()
        self.iterate = [one.detach().clone() for one in self.trained]
        descend = self.optimizer.step

        @torch.no_grad()
        def step() -> None:
            """The optimiser's own step, of z: the parameters are y before and after it."""
            for one, z in zip(self.trained, self.iterate, strict=True):
                one.copy_(z)
            descend()
            for one, z in zip(self.trained, self.iterate, strict=True):
                z.copy_(one)
            self.count(self.iterate, self.learning_rate() ** 2)
            for one, z, mean in zip(self.trained, self.iterate, self.mean, strict=True):
                one.copy_(torch.lerp(z, mean, TOWARDS_MEAN))

        self.optimizer.step = step  # type: ignore[method-assign, assignment]

    def update(self) -> Tensor:
        return StageTrainer.update(self)


TRAINERS: dict[str, type[StageTrainer]] = {
    "cosine": StageTrainer,
    "constant": ConstantTrainer,
    "decay": StageTrainer,
    "average": AverageTrainer,
    "schedule-free": ScheduleFreeTrainer,
}


def booster_with(trainer: type[StageTrainer]) -> type[GreedyBooster]:
    """The booster of the recipes, whose stages are trained by this trainer."""
    return type("ScheduledBooster", (GreedyBooster,), {"stage_trainer": trainer})


def measured(row: Row, name: str, *, epochs: int, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """Train one row, export it and measure it."""
    # A run is not resumed here: the averages are in no checkpoint.
    fields = {"schedule": "decay" if row.name == "decay" else "cosine", "checkpoint_seconds": 1e9}
    recipe = small_recipe(name, seed=seed, epochs=epochs, name=row.name, **fields)
    folder = options.runs / f"schedules-{name}-{epochs}-{seed}-{row.name}"
    booster = booster_with(TRAINERS[row.name])
    _, about = measured_row(row, name, recipe, folder, options=options, booster=booster)
    return about | {"epochs": epochs}


def parse() -> argparse.Namespace:
    """The options."""
    parser = arguments(__doc__, "schedules.json")
    parser.add_argument("--sets", default="mnist,gtsrb", help="data sets, separated by commas")
    parser.add_argument("--epochs", default="10,20", help="lengths of the training, separated by commas")
    parser.set_defaults(batch=None)
    return parser.parse_args()


def main() -> int:
    """Train and measure what is missing."""
    options = parse()
    torch.set_num_threads(options.threads)
    table = Table(options, "schedules.py", copies=COPIES)
    lengths, seeds = ([int(word) for word in words.split(",")] for words in (options.epochs, options.seeds))
    rows = chosen_rows(ROWS, options.rows)
    for epochs, seed, name, row in itertools.product(lengths, seeds, options.sets.split(","), rows):
        key = f"{name}/{epochs}/{seed}/{row.name}"
        if key not in table.rows:
            table.put(key, measured(row, name, epochs=epochs, seed=seed, options=options))
    return 0


if __name__ == "__main__":
    sys.exit(main())
