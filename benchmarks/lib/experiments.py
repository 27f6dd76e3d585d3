"""What the scripts on real data share: rows that are trained once, measured once, and kept as soon as they are known.

A row is a recipe and a name. Its run folder and its cost are kept under `--runs`; its measurements go into the JSON of
the script. A script that was killed while it trained a row resumes it from the run's last checkpoint.
"""

import argparse
import json
import os
import resource
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from robust.train import Recipe, train
from robust.train.runs.journal import Silent
from robust.train.runs.run import Run
from robust.train.starting import Start

from benchmarks.lib.record import RESULTS, environment, write_record
from robustinfer.files import write_text

__all__ = ["Kind", "Row", "Table", "arguments", "chosen_rows", "cpu_seconds", "history", "trained"]


def arguments(description: str | None, result: str | None = None, *, data: bool = True) -> argparse.ArgumentParser:
    """The options that every script on real data has."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    if data:
        parser.add_argument("--data", type=Path, required=True, help="folder of MNIST/raw or cifar-10-batches-py")
    parser.add_argument("--runs", type=Path, default=Path("runs") / "benchmarks", help="where run folders are kept")
    parser.add_argument(
        "--out", type=Path, default=RESULTS / result if result else None, help="the JSON that is written"
    )
    parser.add_argument("--rows", default="", help="only these rows, separated by commas")
    parser.add_argument("--seeds", default="0", help="seeds, separated by commas")
    parser.add_argument(
        "--threads", type=int, default=1, help="threads of torch; processor seconds are comparable at 1"
    )
    parser.add_argument("--quick", action="store_true", help="a smoke test of a minute; its numbers mean nothing")
    return parser


# An ensemble by boosting; one member; one network of the inference cost of an ensemble; members trained apart; one
# member that was distilled from an ensemble.
Kind = Literal["boosted", "single", "wider", "independent", "student"]


@dataclass(frozen=True)
class Row:
    """One line of a table: a name for the machine, what it is, a label for people, and the fields that make it.

    `teacher` is the row that a student learns from.
    """

    name: str
    kind: Kind
    label: str
    fields: dict[str, Any] = field(default_factory=dict)
    teacher: str = ""

    @property
    def about(self) -> dict[str, str]:
        """What the record says of it."""
        return {"name": self.name, "kind": self.kind, "label": self.label}


def chosen_rows(rows: Sequence[Row], names: str) -> list[Row]:
    """The rows of `--rows`, in the script's order; all of them if it is empty."""
    wanted = [name.strip() for name in names.split(",")] if names else [row.name for row in rows]
    known = {row.name for row in rows}
    if unknown := [name for name in wanted if name not in known]:
        raise SystemExit(f"--rows: there is no {', '.join(unknown)} here, but {', '.join(sorted(known))}.")
    return [row for row in rows if row.name in wanted]


def cpu_seconds() -> float:
    """Processor seconds this process has used: on a shared machine they say more than the clock."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def trained(
    recipe: Recipe, folder: Path, *, data: Path, device: str = "cpu", start: Start | None = None, **how: Any
) -> tuple[Run, dict[str, Any]]:
    """The run of this recipe, and what its training cost: as the folder holds it, resumed, or trained anew.

    `how` are further options of `train`.
    """
    cost = folder / "cost.json"
    if not _holds(folder, recipe):
        shutil.rmtree(folder, ignore_errors=True)
    elif cost.is_file():
        return Run.open(folder), json.loads(cost.read_text(encoding="utf-8"))
    clock = _Clock(folder / "clock.json")
    run = train(recipe, folder, start=start, root=data, device=device, watcher=clock, resume=True, **how)
    spent = clock.spent() | {"load_average": os.getloadavg()[1], "epochs": clock.epochs}
    write_text(cost, json.dumps(spent))
    return run, spent


def _holds(folder: Path, recipe: Recipe) -> bool:
    """Whether the folder is a run of this recipe, by another name or the same."""
    if not (folder / "recipe.toml").is_file():
        return False
    unnamed = {"name": "", "description": ""}
    return Run.open(folder).recipe.replace(**unnamed) == recipe.replace(**unnamed)


class _Clock(Silent):
    """Notes what each epoch of a training had cost when it ended, and how good the model was on held-out images.

    It keeps its file up to date, so that a training that was killed counts what it had spent before. What is done again
    after a kill, from the last checkpoint on, was spent twice and is counted twice.
    """

    def __init__(self, file: Path) -> None:
        kept = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
        self._file, self._before = file, (kept.get("seconds", 0.0), kept.get("cpu_seconds", 0.0))
        self.epochs: list[dict[str, float]] = kept.get("epochs", [])
        self._wall, self._cpu = time.perf_counter(), cpu_seconds()

    def spent(self) -> dict[str, Any]:
        """Seconds by the clock and of the processor since the training began."""
        wall, cpu = self._before
        return {"seconds": wall + time.perf_counter() - self._wall, "cpu_seconds": cpu + cpu_seconds() - self._cpu}

    def step(self, number: int, epoch: float, loss: float) -> None:
        self._keep()

    def epoch(self, record: Mapping[str, Any]) -> None:
        known = {key: record[key] for key in ("stage", "epoch", "loss", "clean_accuracy", "robust_accuracy")}
        at = (record["stage"], record["epoch"])
        self.epochs = [one for one in self.epochs if (one["stage"], one["epoch"]) != at]  # done again after a kill
        self.epochs.append(self.spent() | known)
        self._keep()

    def _keep(self) -> None:
        write_text(self._file, json.dumps(self.spent() | {"epochs": self.epochs}))


def history(run: Run, cost: Mapping[str, Any]) -> dict[str, Any]:
    """How a row was trained: fields, cost, and what each stage measured on held-out images."""
    stages = [{"betas": list(stage.betas), "seconds": stage.seconds, **stage.metrics} for stage in run.stages]
    return {
        "recipe": run.recipe.to_json(),
        "commit": run.provenance["commit"],
        "training": dict(cost),
        "stages": stages,
    }


class Table:
    """The JSON of a script: rows by key, written whole after every change and merged with what others wrote."""

    def __init__(self, options: argparse.Namespace, script: str, **facts: Any) -> None:
        self.path: Path = options.out
        command = f"python benchmarks/accuracy/{script}" + (" --data DIR" if "data" in options else "")
        self._facts = {"benchmark": self.path.stem, "command": command, "quick": options.quick}
        self._facts |= {"threads": options.threads, **facts}

    @property
    def rows(self) -> dict[str, dict[str, Any]]:
        """All rows written so far, by this process or another."""
        if not self.path.is_file():
            return {}
        found: dict[str, dict[str, Any]] = json.loads(self.path.read_text(encoding="utf-8"))["rows"]
        return found

    def put(self, key: str, row: dict[str, Any]) -> None:
        """Add to a row, or take its place if it was trained anew: a row never mixes two trainings. Keep the file."""
        rows, here = self.rows, environment()
        kept = rows.get(key, {})
        row = {"processor": here["processor"], **row}  # seconds compare only between rows of one machine
        rows[key] = {**kept, **row} if kept.get("training") == row["training"] else row
        document = {**self._facts, "environment": here, "rows": rows}
        write_record(self.path, document)
        print(f"{self.path.name}: {key}", file=sys.stderr, flush=True)
