"""What a training says about its cost before it starts, and the number of threads it chooses."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from robust.train import Recipe, Run, train
from robust.train import pace as pace_module
from robust.train import training as training_module
from robust.train.data.datasets import load_data
from robust.train.machine.processes import Processes
from robust.train.pace import Pace, measure_pace
from robust.train.runs.journal import Silent
from robust.train.stage.schedule import run_cost

from robustinfer.errors import StoppedError

CPU = Processes(torch.device("cpu"))


def test_the_cost_of_a_run_counts_steps_and_measurements() -> None:
    """By hand: 2 stages of 3 epochs, 10 steps each; 100 held-out images are one batch with 22 passes of a step's 3."""
    recipe = Recipe(
        booster="independent", stages=2, epochs=3, growth=1, batch=100, attack="none", validation_images=100, delta=0.1
    )
    each = 3 * 10 + (3 + 3) * 22 / 3
    assert run_cost(recipe, images=1000) == pytest.approx(2 * each)
    assert run_cost(recipe, images=1000, finished=1) == pytest.approx(each)
    assert run_cost(recipe, images=1000, finished=2) == 0


@pytest.mark.parametrize(
    ("lengths", "steps", "expected"), [([9, 1, 3, 2], 4, 2.0), ([9], 1, 9.0), ([1.5, 0.7], 2, 0.7)]
)
def test_steps_are_timed_after_one_that_allocates(
    monkeypatch: pytest.MonkeyPatch, lengths: list[float], steps: int, expected: float
) -> None:
    """A few short steps, one long one; the clock is the test's own."""
    now, done = 0.0, 0
    monkeypatch.setattr(pace_module, "_SECONDS", 2.0 if len(lengths) < 4 else 100.0)
    monkeypatch.setattr("time.perf_counter", lambda: now)

    def step() -> None:
        nonlocal now, done
        now, done = now + lengths[done], done + 1

    assert pace_module._time(step) == pytest.approx(expected)
    assert done == steps


def test_the_choice_leaves_torch_as_it_was(tiny: Recipe) -> None:
    data = load_data("digits").head(192)
    pace = measure_pace(tiny, data, CPU, choose=True)
    assert pace is not None
    assert pace.seconds > 0
    assert pace.steps == run_cost(tiny, images=192)
    assert pace.threads == torch.get_num_threads() == 1
    assert measure_pace(tiny.replace(compile=True), data, CPU) is None
    assert measure_pace(tiny, data, Processes(torch.device("cpu"), 0, 2)) is None


class Counting(Silent):
    """Remembers the threads of every stage."""

    def __init__(self) -> None:
        self.threads: list[int] = []

    def stage(self, number: int, epochs: int, steps: int) -> None:
        self.threads.append(torch.get_num_threads())


def _measured(threads: int) -> Callable[..., Pace]:
    return lambda *arguments, **options: Pace(1.0, 2.0, threads, {1: 1.0, 2: 3.0})


def test_a_run_keeps_its_number_of_threads(tiny: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Resumed without a word, it takes the number it was begun with, whatever would be measured now."""
    monkeypatch.setattr(training_module, "measure_pace", _measured(2))
    watcher = Counting()
    said: list[Pace] = []
    with pytest.raises(StoppedError):
        train(tiny, tmp_path, device="cpu", threads=0, watcher=watcher, announce=said.append, stop=lambda: True)
    assert [pace.total for pace in said] == [2.0]
    assert Run.open(tmp_path).provenance["machine"]["threads"] == 2
    assert torch.get_num_threads() == 1, "the caller's number is as it was"
    monkeypatch.setattr(training_module, "measure_pace", _measured(1))
    with pytest.raises(StoppedError):
        train(tiny, tmp_path, device="cpu", threads=0, resume=True, watcher=watcher, stop=lambda: True)
    train(tiny, tmp_path, device="cpu", threads=1, resume=True, watcher=watcher)
    assert watcher.threads == [2, 2, 1, 1]
