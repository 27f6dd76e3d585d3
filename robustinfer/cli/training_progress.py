"""The progress of a training on a terminal: a bar with an estimate of the time left, one line an epoch elsewhere."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from robust.train.recipe import Recipe
from robust.train.runs.journal import Watcher
from robust.train.stage.schedule import stage_cost

from .console import note, stderr

__all__ = ["TerminalWatcher", "watching"]


class TerminalWatcher:
    """Shows stage, epoch, loss, held-out robust accuracy and the time left."""

    def __init__(self, recipe: Recipe, bar: Progress) -> None:
        self.recipe, self.bar, self.robust = recipe, bar, ""
        self.costs = [stage_cost(recipe, number) for number in range(1, recipe.stages + 1)]
        self.task = bar.add_task("starting", total=sum(self.costs))

    def stage(self, number: int, epochs: int, steps: int) -> None:
        """Move to the start of a stage."""
        self._show(number, 0.0, f"stage {number}/{self.recipe.stages}")

    def step(self, number: int, epoch: float, loss: float) -> None:
        """Move within a stage."""
        epochs = self.recipe.stage_epochs(number)
        words = f"stage {number}/{self.recipe.stages}  epoch {int(epoch) + 1}/{epochs}  loss {loss:.3f}{self.robust}"
        self._show(number, epoch, words)

    def epoch(self, record: Mapping[str, Any]) -> None:
        """Take over the held-out accuracy; where nobody sees a bar, write a line."""
        self.robust = f"  robust {record['robust_accuracy']:.1%}"
        self.step(record["stage"], record["epoch"] + 1 - 1e-9, record["loss"])
        if not stderr.is_terminal:
            note(
                f"stage {record['stage']}/{self.recipe.stages}  "
                f"epoch {record['epoch'] + 1}/{self.recipe.stage_epochs(record['stage'])}  "
                f"loss {record['loss']:.4f}  held-out clean {record['clean_accuracy']:.1%}  "
                f"robust {record['robust_accuracy']:.1%}  {record['seconds']:.0f} s"
            )

    def warn(self, warning: Mapping[str, str]) -> None:
        """Print a warning and where it is explained."""
        note(f"warning: {warning['message']} See {warning['link']}.")

    def _show(self, number: int, epoch: float, words: str) -> None:
        done = sum(self.costs[: number - 1]) + self.costs[number - 1] * epoch / self.recipe.stage_epochs(number)
        self.bar.update(self.task, completed=done, description=words)


@contextmanager
def watching(recipe: Recipe) -> Iterator[Watcher | None]:
    """A watcher on stderr; None in all but the first process of torchrun."""
    if os.environ.get("RANK", "0") != "0":
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=stderr, transient=True, disable=not stderr.is_terminal) as bar:
        yield TerminalWatcher(recipe, bar)
