"""The loop of the scripts on certified accuracy: train each row, export it, certify test images with the file.

A row whose file is kept in `certificates` is not trained again: it is certified as it lies there.
"""

import argparse
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from common import environment
from experiments import Row, Table, chosen_rows, cpu_seconds, history, trained
from robust.export import export_run
from robust.train import Recipe, Run

from robustinfer import Predictor
from robustinfer.certificate_file import Entry, certify_data, read_certificates
from robustinfer.data import load_images
from robustinfer.smoothing.bounds import clopper_pearson_lower, radius_top_class
from robustinfer.summary import summarize

__all__ = ["add_options", "certify_rows"]

RADII = [0.25 * step for step in range(17)]
ALPHA = 0.001
KEPT = Path(__file__).parent / "certificates"


def _exported(run: Run, folder: Path, *, data: Path) -> Path:
    """The model file of a run, beside its folder."""
    model = folder.with_name(f"{folder.name}.onnx")
    if not model.is_file() or model.stat().st_mtime < (folder / "cost.json").stat().st_mtime:
        export_run(run, model, data=data)
    return model


def _certified(
    model: Path, path: Path, *, data: str, options: argparse.Namespace, every: int, n: int
) -> dict[str, Any]:
    """Certify test images with a model file, and sum up; certificates of an earlier call, at `path`, are kept.

    Processor seconds are those of this call, scaled to all images where an earlier one had certified some.
    """
    predictor = Predictor.load(model, device="cpu", threads=options.threads, batch=options.batch)
    images, begun = load_images(f"{data}:{options.data}", predictor.card), cpu_seconds()
    path.parent.mkdir(parents=True, exist_ok=True)
    kept = len(path.read_text(encoding="utf-8").splitlines()[1:]) if path.is_file() else 0  # the first is a header
    for _ in certify_data(predictor, images, path, every=every, seed=0, n=n, alpha=ALPHA):
        pass
    spent = cpu_seconds() - begun
    header, entries = read_certificates(path)
    summary = summarize(header, entries, radii=RADII)
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
        "accuracy_top_class": {f"{radius:g}": float(((top > 0) & (top >= radius)).mean()) for radius in RADII},
        "radii": [entry.correct_radius for entry in entries],
        "seconds": summary.seconds,
        "cpu_seconds": spent * len(entries) / max(1, len(entries) - kept),
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
    """How a script makes the recipe of a row."""

    def __call__(self, row: Row, *, sigma: float, seed: int, quick: bool) -> Recipe: ...


def add_options(parser: argparse.ArgumentParser, *, sigmas: str, n: int) -> None:
    """The options of a script on certified accuracy."""
    parser.add_argument("--sigmas", default=sigmas, help="standard deviations of the noise")
    parser.add_argument("--n", type=int, default=n, help="samples an image")
    parser.add_argument("--batch", type=int, help="samples of one run of the engine; by default its own choice")


def certify_rows(
    options: argparse.Namespace, rows: Sequence[Row], recipe_of: RecipeOf, *, every: int, kept: str = "", **facts: Any
) -> None:
    """Train and certify what the JSON does not hold yet, on every `every`-th test image. `facts` go into the JSON.

    `kept` is the row whose model files, of seed 0, lie in `certificates`.
    """
    torch.set_num_threads(options.threads)
    every, n = (1000, 200) if options.quick else (every, options.n)
    table = Table(options, every=every, alpha=ALPHA, **facts)
    chosen = chosen_rows(rows, options.rows)
    numbers = ([float(word) for word in options.sigmas.split(",")], [int(word) for word in options.seeds.split(",")])
    for sigma, seed, row in itertools.product(*numbers, chosen):
        key = f"{sigma:g}/{seed}/{row.name}"
        about = table.rows.get(key, {})
        if f"n={n}" in about:
            continue
        recipe = recipe_of(row, sigma=sigma, seed=seed, quick=options.quick)
        folder = options.runs / f"{options.out.stem.removesuffix('_mnist')}-{key.replace('/', '-')}"
        model = KEPT / f"{options.out.stem}-{sigma:g}.onnx"
        if not (about and (row.name, seed) == (kept, 0) and model.is_file()):
            run, cost = trained(recipe, folder, data=options.data)
            about = {"name": row.name, "label": row.label, "sigma": sigma, "seed": seed, **history(run, cost)}
            model = _exported(run, folder, data=options.data)
        path = folder.with_name(f"{folder.name}-{n}.jsonl")
        found = _certified(model, path, data=recipe.data, options=options, every=every, n=n)
        table.put(key, about | {f"n={n}": found})
