"""The loop of certified accuracy: train each row, export it, certify test images with the file.

A row whose file is kept in `certificates` is not trained again: it is certified as it lies there. Where a set asks for
`copies`, all test images are also measured under so many draws of noise: what a plain ensemble gains shows there first.
"""

import argparse
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any, Protocol

import numpy as np
import torch
from robust.export import export_run
from robust.train import Recipe, Run
from robust.train.distillation import DistillationBooster

from benchmarks.lib.experiments import Row, Table, arguments, chosen_rows, cpu_seconds, history, trained
from benchmarks.lib.record import BENCHMARKS, RESULTS, environment
from robustinfer import Predictor
from robustinfer.certificate_file import Entry, Header, certify_data, read_certificates
from robustinfer.data import find_data, load_images, place_data
from robustinfer.smoothing.bounds import clopper_pearson_lower, radius_top_class
from robustinfer.summary import summarize

__all__ = [
    "CertifiedSet",
    "certified_file",
    "certify_rows",
    "exported",
    "noisy_answers",
    "parse",
    "row_folder",
    "train_row",
    "under_noise",
]

RADII = 17  # a table's columns, from 0 in steps of the set's own
ALPHA = 0.001
KEPT = BENCHMARKS / "certificates"


def exported(run: Run, folder: Path, *, data: Path) -> Path:
    """The model file of a run, beside its folder."""
    model = folder.with_name(f"{folder.name}.onnx")
    if not model.is_file() or model.stat().st_mtime < (folder / "cost.json").stat().st_mtime:
        export_run(run, model, data=data)
    return model


def data_set(name: str, folder: Path) -> str:
    """The spec of a data set; digits come with scikit-learn and lie in no folder."""
    return name if name == "digits" else str(find_data(str(folder), name))


def _drawn(
    model: Path, path: Path, *, data: str, options: argparse.Namespace, every: int, **settings: Any
) -> tuple[Header, list[Entry], float]:
    """Certificates of test images by a model file; those of an earlier call, at `path`, are kept.

    Processor seconds are those of this call, scaled to all images where an earlier one had certified some.
    """
    predictor = Predictor.load(model, device="cpu", threads=options.threads, batch=options.batch)
    images, begun = load_images(data_set(data, options.data), predictor.card), cpu_seconds()
    path.parent.mkdir(parents=True, exist_ok=True)
    kept = len(path.read_text(encoding="utf-8").splitlines()[1:]) if path.is_file() else 0  # the first is a header
    for _ in certify_data(predictor, images, path, every=every, seed=0, alpha=ALPHA, **settings):
        pass
    spent = cpu_seconds() - begun
    header, entries = read_certificates(path)
    return header, entries, spent * len(entries) / max(1, len(entries) - kept)


def under_noise(model: Path, path: Path, *, copies: int, every: int, **where: Any) -> dict[str, Any]:
    """How many of so many noisy copies of each test image are labelled right."""
    _, entries, spent = _drawn(model, path, every=every, n=copies, n0=1, **where)
    counts = [entry.certificate.counts[entry.truth] for entry in entries]
    return noisy_answers(counts, copies) | {"cpu_seconds": spent}


def noisy_answers(counts: Sequence[int], copies: int) -> dict[str, Any]:
    """What a record says of images of which so many noisy copies are labelled right."""
    return {
        "copies": copies,
        "images": len(counts),
        "right": fmean(counts) / copies,
        "all_right": fmean(count == copies for count in counts),
        "counts": list(counts),
    }


def certified_file(model: Path, path: Path, *, n: int, step: float, **where: Any) -> dict[str, Any]:
    """Certify test images with a model file, and sum up."""
    header, entries, spent = _drawn(model, path, n=n, **where)
    radii = [step * number for number in range(RADII)]
    summary = summarize(header, entries, radii=radii)
    top = np.array([_top_class_radius(entry, summary.sigma) for entry in entries])
    return {
        "n": n,
        "alpha": ALPHA,
        "images": summary.images,
        "acr": summary.acr,
        "acr_interval": [summary.acr_low, summary.acr_high],
        "acr_top_class": float(top.mean()),
        "abstained": summary.abstained,
        "accuracy": {f"{found.radius:g}": found.accuracy for found in summary.accuracies},
        "accuracy_top_class": {f"{radius:g}": float(((top > 0) & (top >= radius)).mean()) for radius in radii},
        "radii": [entry.correct_radius for entry in entries],
        "votes": [entry.certificate.counts[entry.truth] for entry in entries],
        "seconds": summary.seconds,
        "cpu_seconds": spent,
        "bytes": model.stat().st_size,
        "processor": environment()["processor"],
    }


def _top_class_radius(entry: Entry, sigma: float) -> float:
    """Cohen et al.'s radius from the same counts, 0 for a wrong label: what published tables have."""
    certificate = entry.certificate
    if not entry.correct or certificate.label is None:
        return 0.0
    votes = certificate.counts[certificate.label]
    return radius_top_class(clopper_pearson_lower(votes, certificate.n, certificate.alpha), sigma)


class RecipeOf(Protocol):
    """How a set makes the recipe of a row."""

    def __call__(self, row: Row, *, sigma: float, seed: int, quick: bool) -> Recipe: ...


@dataclass(frozen=True)
class CertifiedSet:
    """Rows that are compared with each other by their certified radii on every `every`-th test image.

    `record` names their JSON. Tables have radii in steps of `step`. With `copies`, all test images are also measured
    under so many draws of noise. `kept` is the row whose model file, of seed 0, lies in `certificates`; `published` has
    figures of the literature by sigma, all for the top-class bound and n = 100,000.
    """

    record: str
    rows: tuple[Row, ...]
    recipe_of: RecipeOf
    sigmas: str
    n: int
    every: int
    step: float = 0.25
    copies: int = 0
    kept: str = ""
    published: Mapping[str, Mapping[str, float]] = field(default_factory=dict)


def parse(
    description: str | None, sets: Mapping[str, CertifiedSet], words: Sequence[str] | None = None
) -> argparse.Namespace:
    """The options of the script on certified accuracy, with the defaults of the set that was chosen."""
    parser = arguments(description)
    parser.add_argument("--set", choices=sets, required=True, help="which rows")
    parser.add_argument("--sigmas", help="standard deviations of the noise; by default the set's own")
    parser.add_argument("--n", type=int, help="samples per image; by default the set's own; 0: no certificates")
    parser.add_argument("--batch", type=int, help="samples of one run of the engine; by default its own choice")
    options = parser.parse_args() if words is None else parser.parse_args(words)
    chosen = sets[options.set]
    options.out = options.out or RESULTS / f"{chosen.record}.json"
    options.sigmas, options.n = options.sigmas or chosen.sigmas, chosen.n if options.n is None else options.n
    return options


def certify_rows(options: argparse.Namespace, rows: CertifiedSet) -> None:
    """Train and measure what the JSON does not hold yet."""
    torch.set_num_threads(options.threads)
    every, n = (1000, 200) if options.quick else (rows.every, options.n)
    facts = {"published": rows.published} if rows.published else {}
    table = Table(options, f"certified.py --set {options.set}", every=every, alpha=ALPHA, **facts)
    chosen = chosen_rows(rows.rows, options.rows)
    numbers = ([float(word) for word in options.sigmas.split(",")], [int(word) for word in options.seeds.split(",")])
    for sigma, seed, row in itertools.product(*numbers, chosen):
        key = f"{sigma:g}/{seed}/{row.name}"
        about = table.rows.get(key, {})
        wanted = {"noise"} if rows.copies else set()
        wanted |= {f"n={n}"} if n else set()
        if wanted <= about.keys() and about:
            continue
        folder = row_folder(options, rows, key)
        model = KEPT / f"{rows.record}-{sigma:g}.onnx"
        if not (about and (row.name, seed) == (rows.kept, 0) and model.is_file()):
            about, model = train_row(row, rows, folder, options=options, sigma=sigma, seed=seed)
        data = rows.recipe_of(row, sigma=sigma, seed=seed, quick=options.quick).data
        where = {"data": data, "options": options}
        if rows.copies and "noise" not in table.rows.get(key, {}):
            path, whole = folder.with_name(f"{folder.name}-noise.jsonl"), every if options.quick else 1
            found = under_noise(model, path, copies=rows.copies, every=whole, **where)
            table.put(key, about | {"noise": found})
        if n:
            path = folder.with_name(f"{folder.name}-{n}.jsonl")
            found = certified_file(model, path, n=n, step=rows.step, every=every, **where)
            table.put(key, about | {f"n={n}": found})


def row_folder(options: argparse.Namespace, rows: CertifiedSet, key: str) -> Path:
    """The run folder of a row."""
    folder: Path = options.runs / f"{rows.record.removesuffix('_mnist')}-{key.replace('/', '-')}"
    return folder


def train_row(
    row: Row, rows: CertifiedSet, folder: Path, *, options: argparse.Namespace, sigma: float, seed: int
) -> tuple[dict[str, Any], Path]:
    """What there is to say of a row's training, and its model file; a student's teacher is trained before it."""
    recipe = placed = rows.recipe_of(row, sigma=sigma, seed=seed, quick=options.quick)
    if ":" in recipe.data:  # a file, which lies among the data sets
        placed = recipe.replace(data=place_data(str(options.data), recipe.data)[0])
    how: dict[str, Any] = {}
    if row.teacher:
        teacher = next(other for other in rows.rows if other.name == row.teacher)
        home = row_folder(options, rows, f"{sigma:g}/{seed}/{teacher.name}")
        train_row(teacher, rows, home, options=options, sigma=sigma, seed=seed)
        how["booster"] = partial(DistillationBooster, teacher=Run.open(home), temperature=1.0)
    run, cost = trained(placed, folder, data=options.data, **how)
    about = {**row.about, "sigma": sigma, "seed": seed, **history(run, cost)}
    about["recipe"]["data"] = recipe.data  # wherever it lay
    return about, exported(run, folder, data=options.data)
