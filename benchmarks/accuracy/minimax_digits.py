"""Greedy against minimax boosting, fused certificates against votes, ensembles against distilled students.

    python benchmarks/accuracy/minimax_digits.py                     # scikit-learn's digits
    python benchmarks/accuracy/minimax_digits.py --data DIR          # MNIST, from DIR/MNIST/raw

Every run has the same member, number of members and epochs; what differs is the booster. All measurements are on test
images. Attacks are PGD with restarts, on the vote by its straight-through gradient. Certificates have alpha = 0.001;
within a table they have the same images and noise. Runs are kept in --work and not trained again.
"""

import argparse
import dataclasses
import sys
from pathlib import Path
from typing import Any

import torch
from robust.export import export_run
from robust.train import Recipe, Run, train
from robust.train.data.datasets import ImageData
from robust.train.distillation import compare, distill
from robust.train.evaluation.evaluation import EvaluationOptions, evaluate_run, load_test_images

from robustinfer import Predictor
from robustinfer.smoothing.bounds import format_radius

sys.path.append(str(Path(__file__).resolve().parents[2]))  # for `benchmarks`, which is not installed
from benchmarks.lib.record import record

MEMBERS: dict[str, Any] = {"architecture": "cnn", "stages": 3, "growth": 1.0, "optimizer": "adam", "ramp": 0.0}
DATA: dict[str, dict[str, Any]] = {
    "digits": {"data": "digits", "width": 0.5, "epochs": 4, "batch": 64, "learning_rate": 0.004},
    "mnist": {"data": "mnist", "width": 0.25, "epochs": 3, "batch": 64, "learning_rate": 0.003, "limit": 3000,
              "validation": 0.02},
}  # fmt: skip
THREATS: dict[str, dict[str, dict[str, Any]]] = {
    "linf": {
        "digits": {"norm": "linf", "delta": 0.15, "steps": 4, "step_scale": 2.0},
        "mnist": {"norm": "linf", "delta": 0.1, "steps": 4, "step_scale": 2.0},
    },
    "l2": {
        "digits": {"norm": "l2", "delta": 0.5, "smoothing": "gaussian", "sigma": 0.25, "noise_samples": 2},
        "mnist": {"norm": "l2", "delta": 0.5, "smoothing": "gaussian", "sigma": 0.5, "noise_samples": 2},
    },
}
BOOSTERS: dict[str, dict[str, Any]] = {
    "greedy": {"booster": "greedy", "previous": "exact", "betas": "trained"},
    "independent": {"booster": "independent"},
    "minimax, examples": {"booster": "minimax", "reweigh": "examples"},
    "minimax, pairs": {"booster": "minimax", "reweigh": "pairs"},
}


def main() -> None:
    """Train what is missing, measure, print three tables and write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder of MNIST; without it, digits")
    parser.add_argument("--work", type=Path, default=Path("runs/minimax"), help="where the runs are kept")
    parser.add_argument("--images", type=int, default=200, help="test images")
    parser.add_argument("--n", type=int, default=2000, help="samples of a certificate")
    parser.add_argument("--restarts", type=int, default=3, help="random restarts of the attack")
    parser.add_argument("--threats", nargs="+", choices=THREATS, default=list(THREATS))
    parser.add_argument("--boosters", nargs="+", choices=BOOSTERS, default=list(BOOSTERS))
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    name = "mnist" if options.data else "digits"
    images = load_test_images(str(options.data) if options.data else None, name, images=options.images)
    evaluation = EvaluationOptions(restarts=options.restarts, n=options.n, prefixes=False, seed=options.seed)
    runs = {
        (threat, booster): trained(name, threat, booster, options)
        for threat in options.threats
        for booster in options.boosters
    }  # fmt: skip
    boosters = [boosting_row(*key, run, images, evaluation) for key, run in runs.items()]
    show("Greedy against minimax", boosters)
    smoothed = {booster: run for (threat, booster), run in runs.items() if threat == "l2"}
    certificates = [row for booster, run in smoothed.items() for row in certified(booster, run, images, options)]
    if certificates:
        show("Fused certificates against votes", certificates)
    teachers = [key for key in runs if key[1] in ("greedy", "minimax, examples")]
    students = [row for key in teachers for row in distilled(key, runs[key], images, evaluation, options)]
    show("Ensembles against students", students)
    arguments = {key: value for key, value in vars(options).items() if key not in ("data", "work")}
    recipes = {" ".join(key): run.recipe.to_json() for key, run in runs.items()}
    results = {"boosters": boosters, "certificates": certificates, "students": students, "recipes": recipes}
    record(f"minimax_{name}", arguments={"data": name, **arguments}, results=results)


def trained(name: str, threat: str, booster: str, options: argparse.Namespace) -> Run:
    """The run of one row, from the work folder if it is there."""
    fields = {**MEMBERS, **DATA[name], **THREATS[threat][name], **BOOSTERS[booster]}
    label = f"{name}-{threat}-{booster}".replace(", ", "-").replace(" ", "-")
    recipe = Recipe(name=label, seed=options.seed, validation_images=200, **{"validation": 0.1, **fields})
    folder = options.work / label
    root = options.data or Path("data")
    return train(recipe, folder, root=root, resume=folder.exists(), device="cpu")


def boosting_row(
    threat: str, booster: str, run: Run, images: ImageData, evaluation: EvaluationOptions
) -> dict[str, Any]:
    """Accuracy of the whole, and what the theory says about the members."""
    evaluation = dataclasses.replace(evaluation, certify=False)
    row = evaluate_run(run, images, evaluation, device=torch.device("cpu")).rows[0]
    last = run.stages[-1]
    return {
        "threat": threat,
        "booster": booster,
        "clean": row.clean.value,
        "robust": None if row.robust is None else row.robust.value,
        "edges": " ".join(f"{stage.metrics['edge']:.2f}" for stage in run.stages),
        "betas": " ".join(f"{beta:.2f}" for beta in last.betas),
        "robust on training images, by margin": last.metrics.get("training_robust_by_margin"),
        "seconds": sum(stage.seconds for stage in run.stages),
    }


def certified(booster: str, run: Run, images: ImageData, options: argparse.Namespace) -> list[dict[str, Any]]:
    """The same run as a file of ensemble scores and as one of votes, on the same images and samples.

    The seconds add up how long each image waited for its answer; images share batches, so they overlap.
    """
    scores, votes = (run.path / f"{kind}.onnx" for kind in ("scores", "votes"))
    export_run(run, scores, members=False, samples=200)
    ways: list[tuple[str, Path, bool | None]] = [("sum of scores, fused", scores, None)]
    if min(run.stages[-1].betas) >= 0:
        export_run(run, votes, members=True, samples=200)
        ways += [("plurality vote, fused", votes, False), ("members, by votes", votes, True)]
    rows: list[dict[str, Any]] = []
    radii: dict[str, list[float]] = {}
    for way, file, members in ways:
        predictor = Predictor.load(file, device="cpu", threads=1)
        pixels = (images.take(torch.tensor([number]))[0].numpy() for number in range(len(images)))
        found = list(predictor.certify_many(pixels, n=options.n, seed=options.seed, members=members))
        right = [one.label == label for one, label in zip(found, images.labels.tolist(), strict=True)]
        radii[way] = [one.radius if good else 0.0 for one, good in zip(found, right, strict=True)]
        fused = radii["sum of scores, fused"]
        rows.append(
            {
                "booster": booster,
                "certificate": way,
                "mean radius": mean(radii[way]),
                **{f"certified at {radius:g}": mean([one >= radius for one in radii[way]]) for radius in (0.25, 0.5)},
                "abstained": mean([one.abstained for one in found]),
                "above the first": mean([one > other for one, other in zip(radii[way], fused, strict=True)]),
                "seconds": sum(one.seconds for one in found),
            }
        )
    return rows


def distilled(
    key: tuple[str, str], run: Run, images: ImageData, evaluation: EvaluationOptions, options: argparse.Namespace
) -> list[dict[str, Any]]:
    """The ensemble and its student, which had as many epochs as all members together."""
    folder = run.path.with_name(f"{run.path.name}-student")
    student = distill(run, folder, root=options.data or Path("data"), resume=folder.exists(), device="cpu")
    found = compare(run, student, images, evaluation, device=torch.device("cpu"))
    return [
        {
            "threat": key[0],
            "booster": key[1],
            "who": who,
            "members": one.members,
            "parameters": one.parameters,
            "ms per image": one.seconds_per_thousand,
            "clean": one.row.clean.value,
            "robust": None if one.row.robust is None else one.row.robust.value,
            "mean certified radius": one.row.certified["average_radius"] if one.row.certified else None,
        }
        for who, one in (("ensemble", found.ensemble), ("student", found.student))
    ]


def mean(values: list[Any]) -> float:
    """The mean of numbers or truths."""
    return sum(map(float, values)) / len(values)


def show(title: str, rows: list[dict[str, Any]]) -> None:
    """Print rows as a Markdown table."""
    print(f"\n### {title}\n\n| {' | '.join(rows[0])} |\n|{'---|' * len(rows[0])}")
    for row in rows:
        print(f"| {' | '.join(cell(name, one) for name, one in row.items())} |", flush=True)


def cell(name: str, one: Any) -> str:
    """One entry of a table; radii are not rounded up."""
    if not isinstance(one, float):
        return "-" if one is None else str(one)
    return format_radius(one) if "radius" in name else f"{one:.3f}"


if __name__ == "__main__":
    main()
