"""The progress of a training on a terminal: a bar with an estimate of the time left, one line per epoch elsewhere."""

import os
import shlex
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from robust.train.budget.purse import Budget
from robust.train.pace import Pace
from robust.train.recipe import Recipe
from robust.train.stage.schedule import stage_cost

from ..errors import StoppedError
from .console import duration, interruptible, note, program, stderr

__all__ = ["BudgetWatcher", "TerminalWatcher", "spending", "stoppable", "watching"]

_LONG, _VERY_LONG = 120.0, 24 * 3600.0


class TerminalWatcher:
    """Shows stage, epoch, loss, held-out robust accuracy and the time left."""

    def __init__(self, recipe: Recipe, bar: Progress) -> None:
        self.recipe, self.bar, self.robust, self.started = recipe, bar, "", False
        self.expected: float | None = None  # seconds that the whole was estimated to take
        self.begun: tuple[float, float] | None = None  # when and where this process began
        self.done = 0.0
        self.costs = [stage_cost(recipe, number) for number in range(1, recipe.stages + 1)]
        self.task = bar.add_task("starting", total=sum(self.costs), left="")

    def announce(self, pace: Pace) -> None:
        """Say what a long training will take, and when it is better off with fewer threads."""
        self.expected = pace.total
        if pace.total >= _LONG:
            shorter = f" `{program()} recipes` lists others; --set epochs=N, stages=N or limit=N shortens this one."
            note(
                f"This training takes about {duration(pace.total)} on this machine ({duration(pace.seconds)} per step "
                "of the first stage). Ctrl-C keeps what has been done, and --resume continues."
                + (shorter if pace.total >= _VERY_LONG else "")
            )
        usual = max(pace.tried, default=pace.threads)
        if pace.threads < usual:
            note(
                f"It uses {pace.threads} thread: a step takes {pace.tried[pace.threads]:.2g} s with it and "
                f"{pace.tried[usual]:.2g} s with {usual}. Use --threads {usual} to override."
            )

    def left(self) -> str:
        """The time left, as far as it can be told: from what is done, before that from the first estimate."""
        total = sum(self.costs)
        seconds = self.expected
        if self.begun is not None and self.done > self.begun[1]:
            rate = (time.monotonic() - self.begun[0]) / (self.done - self.begun[1])
            seconds = rate * (total - self.done)
        return "" if seconds is None else f"{duration(seconds)} left"

    def stage(self, number: int, epochs: int, steps: int) -> None:
        """Move to the start of a stage."""
        self.started = True
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
                f"robust {record['robust_accuracy']:.1%}  {record['seconds']:.0f} s  {self.left()}"
            )

    def warn(self, warning: Mapping[str, str]) -> None:
        """Print a warning and where it is explained."""
        note(f"warning: {warning['message']} See {warning['link']}.")

    def _show(self, number: int, epoch: float, words: str) -> None:
        done = sum(self.costs[: number - 1]) + self.costs[number - 1] * epoch / self.recipe.stage_epochs(number)
        self.done = done
        if self.begun is None:
            self.begun = (time.monotonic(), done)
        self.bar.update(self.task, completed=done, description=words, left=self.left())


@contextmanager
def watching(recipe: Recipe) -> Iterator[TerminalWatcher | None]:
    """A watcher on stderr; None in all but the first process of torchrun."""
    if os.environ.get("RANK", "0") != "0":
        yield None
        return
    with _bar() as bar:
        yield TerminalWatcher(recipe, bar)


def _bar() -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TextColumn("{task.fields[left]}"))
    return Progress(*columns, console=stderr, transient=True, disable=not stderr.is_terminal)


class BudgetWatcher:
    """Shows what is spent of a budget; each decision is a line."""

    def __init__(self, budget: Budget, bar: Progress) -> None:
        self.budget, self.bar, self.started = budget, bar, False
        self.task = bar.add_task("starting", total=budget.amount, left="")

    def tell(self, spent: float, words: str) -> None:
        """Something was spent; with words, something was decided."""
        self.started = True
        self.bar.update(self.task, completed=spent, description="spending the budget", left=self._left(spent))
        if words:
            note(f"{words}; {self._left(spent)}")

    def _left(self, spent: float) -> str:
        left = max(0.0, self.budget.amount - spent)
        return f"{duration(left)} left" if self.budget.unit == "seconds" else f"{left:.2g} operations left"


@contextmanager
def spending(budget: Budget) -> Iterator[BudgetWatcher]:
    """A watcher of a budgeted training, on stderr."""
    with _bar() as bar:
        yield BudgetWatcher(budget, bar)


@contextmanager
def stoppable(watcher: TerminalWatcher | BudgetWatcher | None, folder: Path) -> Iterator[Callable[[], bool]]:
    """The `stop` of a training into `folder`: ctrl-C or SIGTERM once it has started. Then say how to resume."""
    worthwhile = (lambda: True) if watcher is None else (lambda: watcher.started)
    try:
        with interruptible(signal.SIGINT, signal.SIGTERM, worthwhile=worthwhile) as stop:
            yield stop.is_set
    except StoppedError:
        raise StoppedError(
            f"The training was stopped, and {folder} holds everything up to that moment. Resume it with: {_again()}"
        ) from None


def _again() -> str:
    """The command that resumes what this process was started for."""
    if "WORLD_SIZE" in os.environ:
        return "the same torchrun command and --resume"
    words = sys.argv[1:] if "--resume" in sys.argv else [*sys.argv[1:], "--resume"]
    return f"{program()} {shlex.join(words)}"
