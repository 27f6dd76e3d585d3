"""The loop of robust accuracy: train each row, then measure it under one attack after the other."""

import argparse
import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from robust.train import Ensemble, Recipe, Run
from robust.train.attacks.accuracy import PgdAttack, measure
from robust.train.attacks.autoattack import measure_strong
from robust.train.attacks.proportions import Proportion
from robust.train.data.datasets import ImageData, load_data
from robust.train.machine.processes import Processes

from benchmarks.lib.experiments import Row, Table, arguments, chosen_rows, history, trained
from benchmarks.lib.record import RESULTS

__all__ = ["AttackedSet", "measure_rows", "parse"]

_CPU = torch.device("cpu")


class RecipeOf(Protocol):
    """How a set makes the recipe of a row."""

    def __call__(self, row: Row, *, delta: float, seed: int, quick: bool) -> Recipe: ...


@dataclass(frozen=True)
class AttackedSet:
    """Rows that are compared with each other by their accuracy under attack; `record` names their JSON."""

    record: str
    data: str
    rows: tuple[Row, ...]
    recipe_of: RecipeOf
    deltas: str


def parse(description: str | None, sets: Mapping[str, AttackedSet]) -> argparse.Namespace:
    """The options of the script on robust accuracy, with the defaults of the set that was chosen."""
    parser = arguments(description)
    parser.add_argument("--set", choices=sets, required=True, help="which rows")
    parser.add_argument("--deltas", help="radii of the threat, separated by commas; by default the set's own")
    parser.add_argument("--attacks", default="pgd-20x10,apgd-t", help="attacks, each over all rows before the next")
    parser.add_argument("--images", type=int, default=1000, help="test images, evenly spread over the test set")
    options = parser.parse_args()
    chosen = sets[options.set]
    options.out = options.out or RESULTS / f"{chosen.record}.json"
    options.deltas = options.deltas or chosen.deltas
    return options


def measure_rows(options: argparse.Namespace, rows: AttackedSet) -> None:
    """Train and measure what the JSON does not hold yet: every row under the first attack before any under the next."""
    torch.set_num_threads(options.threads)
    test = load_data(rows.data, split="test", root=options.data)
    test = test.subset(torch.arange(0, len(test), len(test) // (50 if options.quick else options.images)))
    table = Table(options, f"attacked.py --set {options.set}", test_images=len(test))
    chosen = chosen_rows(rows.rows, options.rows)
    attacks, deltas, seeds = (words.split(",") for words in (options.attacks, options.deltas, options.seeds))
    for attack, delta, seed, row in itertools.product(attacks, deltas, seeds, chosen):
        key = f"{float(delta):g}/{seed}/{row.name}"
        kept = table.rows.get(key, {})
        if attack in kept.get("ensemble", {}):
            continue
        recipe = rows.recipe_of(row, delta=float(delta), seed=int(seed), quick=options.quick)
        run, cost = trained(recipe, options.runs / f"{options.out.stem}-{key.replace('/', '-')}", data=options.data)
        about = {**row.about, "delta": float(delta), "seed": int(seed), **history(run, cost)}
        if kept.get("training") != cost:  # measurements of another training are of no use: take them again
            kept = {}
        missing = [one for one in attacks[: attacks.index(attack) + 1] if one not in kept.get("ensemble", {})]
        for part, model in _parts(run).items():
            about[part] = dict(kept.get(part, {}))
            for one in missing:
                about[part] |= _attacked(model, test, one, recipe)
        table.put(key, about)


def _parts(run: Run) -> dict[str, Ensemble]:
    """What is measured of a run: the ensemble, and its last member alone."""
    found = {"ensemble": run.ensemble()}
    if len(run.stages) > 1:
        found["last_member"] = Ensemble([run.member(len(run.stages))], [1.0]).freeze()
    return found


def _attacked(model: Ensemble, data: ImageData, attack: str, recipe: Recipe) -> dict[str, Any]:
    """Clean accuracy and accuracy under one attack, each with its interval."""
    if attack == "pgd-20x10":
        pgd, classes = PgdAttack.of(recipe, steps=20, restarts=10), len(data.classes)
        found = measure(model, data, pgd, classes=classes, processes=Processes(_CPU), seed=(recipe.seed, 5))
    else:
        found = measure_strong(model, data, attack, norm=recipe.norm, delta=recipe.delta, seed=recipe.seed, device=_CPU)
    clean, robust = (Proportion(count, len(data)).to_json() for count in (found.clean, found.robust))
    return {"clean": clean, attack: robust}
