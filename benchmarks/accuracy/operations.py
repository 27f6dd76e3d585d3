"""What an operation buys: certified accuracy against the operations of a prediction, for ways to train and to export.

    python benchmarks/accuracy/operations.py --data DIR [--runs RUNS] [--rows NAMES] [--every 20] [--finished]

The ways to train are rows of the set of traffic signs (`benchmarks/lib/rows/gtsrb_l2.py`, which says how long each was
trained): one network, a wider one, independent members, boosted members, heads on one trunk, a distilled student. Each
is exported plain, in 8-bit integers and, with two members or more, as a cascade by the default rule in either. All
files certify the same test images with the same noise, so differences are paired by image. Operations are
multiply-adds of one prediction: those of a sample, of the members that are asked on average, times the samples. One of
8-bit integers counts like any other, although it is cheaper: how much depends on the processor
(`benchmarks/speed/cheap_samples.py`).

DIR holds gtsrb-32.npz. Runs that certified.py --set gtsrb has left in RUNS are used; with `--finished`, rows that have
none are left out, else they are trained (10 minutes of a core each). What five members of digits do as a cascade is in
`cascade_rules.py`. Hardware: any CPU. One training per row (seed 0); a file takes a minute or two to certify.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

import torch
from robust.export import CascadeOptions, export_run
from robust.train.runs.run import Run

from robustinfer.engines.inspection import inspect_model

sys.path.append(str(Path(__file__).resolve().parents[2]))  # for `benchmarks`, which is not installed
from benchmarks.lib.certified import certified_file, row_folder, train_row
from benchmarks.lib.experiments import Row, Table, arguments, chosen_rows
from benchmarks.lib.rows.gtsrb_l2 import SET

KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "int8": {"precision": "int8"},
    "cascade": {"cascade": CascadeOptions()},
    "cascade int8": {"cascade": CascadeOptions(), "precision": "int8"},
}
SIGMA = 0.25


def write_file(run: Run, folder: Path, kind: str, data: Path) -> Path:
    """The model file of a run in one of the kinds, beside its folder; one of an earlier call is kept."""
    model = folder.with_name(f"{folder.name}-{kind.replace(' ', '-')}.onnx")
    if not model.is_file() or model.stat().st_mtime < (folder / "cost.json").stat().st_mtime:
        export_run(run, model, data=data, held_out=None, samples=200, **KINDS[kind])
    return model


def cost_of(model: Path, plain: Path) -> dict[str, Any]:
    """Multiply-adds per sample, and who is asked. Whole numbers take as many as the plain file."""
    found = inspect_model(model)
    cascade = found.card.cascade if found.card else None
    flops = found.expected_flops if cascade else inspect_model(plain).flops
    assert found.card is not None
    assert flops is not None
    members = len(found.card.members)
    return {
        "members": members,
        "members_asked": cascade["members_asked"] if cascade else float(members),
        "agreement": cascade["agreement"] if cascade else 1.0,
        "macs_per_sample": flops / 2,
    }


def measure_row(row: Row, table: Table, options: argparse.Namespace) -> None:
    """Every file of one row that the record does not hold yet."""
    seed = int(options.seeds)
    folder = row_folder(options, SET, f"{SIGMA:g}/{seed}/{row.name}")
    if options.finished and not (folder / "cost.json").is_file():
        print(f"{row.name}: not trained yet, left out", file=sys.stderr)
        return
    about, _ = train_row(row, SET, folder, options=options, sigma=SIGMA, seed=seed)
    run = Run.open(folder)
    plain = write_file(run, folder, "plain", options.data)
    for kind in KINDS if len(run.ensemble().members) > 1 else ("plain", "int8"):
        key = f"{row.name}/{kind}"
        if key in table.rows and table.rows[key]["training"] == about["training"]:
            continue
        model = write_file(run, folder, kind, options.data)
        path = model.with_name(f"{model.stem}-{options.n}-{options.every}.jsonl")
        where = {"data": about["recipe"]["data"], "options": options, "every": options.every}
        found = certified_file(model, path, n=options.n, step=SET.step, **where)
        table.put(key, {**about, "file": kind, **cost_of(model, plain), **found})


def main() -> None:
    parser = arguments(__doc__, "operations.json")
    parser.add_argument("--n", type=int, default=1000, help="samples per image")
    parser.add_argument("--every", type=int, default=20, help="certify every K-th test image")
    parser.add_argument("--batch", type=int, help="samples of one run of the engine; by default its own choice")
    parser.add_argument("--finished", action="store_true", help="leave out rows that are not trained yet")
    options = parser.parse_args()
    if options.quick:
        options.every, options.n = 1000, 200
    torch.set_num_threads(options.threads)
    rows = [row for row in chosen_rows(SET.rows, options.rows) if options.rows or row.name != "cat-rs"]
    table = Table(
        options, f"operations.py --every {options.every} --n {options.n}", every=options.every, n=options.n, sigma=SIGMA
    )
    for row in rows:
        measure_row(row, table, options)


if __name__ == "__main__":
    main()
