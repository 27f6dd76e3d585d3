"""Evaluation on test images: every prefix of a run, its last member alone, or one model file.

Attacks see the gradients of what they attack. A smoothed model is attacked and judged by its mean scores over noise
that the attack knows; its certified accuracy comes from the runtime's own procedures.
"""

import json
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from robustinfer import Predictor
from robustinfer.data import find_data, parse_data
from robustinfer.errors import ArgumentError, DataError, ModelFileError
from robustinfer.files import write_text

from ..attacks.accuracy import Accuracy, PgdAttack, measure
from ..attacks.autoattack import measure_strong
from ..attacks.proportions import Proportion
from ..data.batches import numbers_in_order
from ..data.datasets import ImageData, Model, load_data
from ..machine.processes import Processes
from ..runs.run import Run
from .certified import certified_accuracy, memory_predictor

__all__ = ["Evaluation", "EvaluationOptions", "Row", "evaluate_model", "evaluate_run", "load_test_images"]

_NOISE_COPIES = 4
_SUBSET_SEED = 7  # the same images for every model that is evaluated on that many images


@dataclass(frozen=True, kw_only=True)
class EvaluationOptions:
    """What is measured. `delta` None takes the threat of the model; `attack` "none" measures clean accuracy only."""

    attack: str = "pgd"
    delta: float | None = None
    steps: int = 20
    restarts: int = 10
    certify: bool = True
    n: int = 1000
    alpha: float = 0.001
    seed: int = 0
    prefixes: bool = True

    @property
    def name(self) -> str:
        """The key of this attack in evaluation.json."""
        return f"pgd-{self.steps}x{self.restarts}" if self.attack == "pgd" else self.attack


@dataclass(frozen=True)
class Row:
    """One line of the table: what was measured, its clean and attacked accuracy, its certified accuracy."""

    what: str
    stages: int | None
    clean: Proportion
    robust: Proportion | None
    certified: dict[str, Any] | None
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """The line as a JSON object."""
        return {
            "what": self.what,
            "stages": self.stages,
            "clean": self.clean.to_json(),
            "robust": None if self.robust is None else self.robust.to_json(),
            "certified": self.certified,
            "seconds": self.seconds,
        }


@dataclass(frozen=True)
class Evaluation:
    """All lines, and how they were measured."""

    data: str
    images: int
    norm: str | None
    delta: float | None
    attack: str
    options: dict[str, Any]
    rows: tuple[Row, ...] = field(default_factory=tuple)

    def to_json(self) -> dict[str, Any]:
        """The evaluation as a JSON object."""
        return {**self.__dict__, "rows": [row.to_json() for row in self.rows]}


Progress = Callable[[str, int], None]


def evaluate_run(
    run: Run,
    data: ImageData,
    options: EvaluationOptions,
    *,
    device: torch.device,
    progress: Progress = lambda what, images: None,
) -> Evaluation:
    """Measure a run and write the result into its evaluation.json, beside those of other attacks."""
    _check_classes(data, run.classes)
    recipe = run.recipe
    delta = recipe.delta if options.delta is None else options.delta
    attack = PgdAttack.of(recipe, steps=options.steps, restarts=options.restarts)
    rows = []
    for what, stages, model in _parts(run, device, prefixes=options.prefixes):
        begun = time.monotonic()
        found = _attacked(model, data, options, attack, delta, device, partial(progress, what))
        certified = None
        if options.certify and recipe.smoothed:
            predictor = memory_predictor(model, classes=run.classes, input=run.input, sigma=recipe.sigma, device=device)
            certified = _certified(predictor, data, options, partial(progress, what))
        rows.append(_row(what, stages, found, options, certified, begun))
    result = Evaluation(data.name, len(data), recipe.norm, delta, options.name, dict(options.__dict__), tuple(rows))
    _store(run, result)
    return result


def evaluate_model(
    path: Path,
    data: ImageData,
    options: EvaluationOptions,
    *,
    device: torch.device,
    progress: Progress = lambda what, images: None,
) -> Evaluation:
    """Measure a model file: attacks where torch can differentiate it (.pt), certified accuracy where it has a sigma."""
    predictor = Predictor.load(path, device=str(device))
    card = predictor.card
    _check_classes(data, card.classes)
    begun = time.monotonic()
    delta = options.delta if options.delta is not None else (card.threat.delta if card.threat else 0.0)
    norm = card.threat.norm if card.threat else "linf"
    if path.suffix == ".pt" and options.attack != "none" and card.kind == "scores":
        sigma = card.sigma or 0.0
        attack = PgdAttack(
            norm=norm,
            delta=delta,
            steps=options.steps,
            restarts=options.restarts,
            sigma=sigma,
            copies=_NOISE_COPIES if sigma else 1,
        )
        model = _load_torchscript(path, device)
        found = _attacked(model, data, options, attack, delta, device, partial(progress, path.name))
        kind = options.name
    else:
        found, kind = _clean(predictor, data), "none"
        progress(path.name, len(data))
    certified = None
    if options.certify and card.sigma:
        certified = _certified(predictor, data, options, partial(progress, path.name))
    row = _row(path.name, None, found, options, certified, begun, attacked=kind != "none")
    return Evaluation(data.name, len(data), norm, delta, kind, dict(options.__dict__), (row,))


def load_test_images(
    spec: str | None,
    trained_on: str,
    *,
    images: int | None = None,
    model: Model | None = None,
    split: str = "test",
    skip_unreadable: int = 0,
    foreign: bool = False,
) -> ImageData:
    """The test images of a data set: named, or in this folder, or the one that the model was trained on.

    `images` takes that many of them, always the same ones. Files are read as the `model` takes them; `split`,
    `skip_unreadable` and `foreign` are those of `load_data`.
    """
    found = parse_data(trained_on) if spec is None else find_data(spec, trained_on)
    data = load_data(str(found), split=split, model=model, skip_unreadable=skip_unreadable, foreign=foreign)
    if images is None or images >= len(data):
        return data
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(_SUBSET_SEED))
    return data.subset(order[:images].sort().values)


def _parts(run: Run, device: torch.device, *, prefixes: bool) -> Iterator[tuple[str, int | None, nn.Module]]:
    """What is measured of a run: each prefix with the betas of its time, and the last member alone."""
    last = len(run.stages)
    if not last:
        raise ArgumentError(f"{run.path} has no finished stage yet; train it with `robust train ... --resume`.")
    for stages in range(1, last + 1) if prefixes else (last,):
        yield f"{stages} of {last} stages", stages, run.ensemble(stages, device)
    if last > 1:
        yield "last member alone", None, run.member(last).eval().requires_grad_(False).to(device)


def _attacked(
    model: nn.Module,
    data: ImageData,
    options: EvaluationOptions,
    attack: PgdAttack,
    delta: float,
    device: torch.device,
    advance: Callable[[int], None],
) -> Accuracy:
    if options.attack in ("pgd", "none"):
        copies = max(_NOISE_COPIES, attack.copies) if attack.sigma else 1
        chosen = PgdAttack(
            norm=attack.norm,
            delta=delta if options.attack == "pgd" else 0.0,
            steps=options.steps,
            step_scale=1.3,
            restarts=options.restarts,
            sigma=attack.sigma,
            copies=copies,
            smoothing=attack.smoothing,
        )
        processes, seed = Processes(device), (options.seed, 5)
        return measure(model, data, chosen, classes=len(data.classes), processes=processes, seed=seed, advance=advance)
    if attack.sigma:
        raise ArgumentError(
            f"{options.attack} needs a deterministic model; measure a smoothed one with --attack pgd and its "
            "certified accuracy."
        )
    return measure_strong(
        model,
        data,
        options.attack,
        norm=attack.norm,
        delta=delta,
        seed=options.seed,
        device=device,
        advance=advance,
    )


def _certified(
    predictor: Predictor, data: ImageData, options: EvaluationOptions, advance: Callable[[int], None]
) -> dict[str, Any]:
    return certified_accuracy(predictor, data, n=options.n, alpha=options.alpha, seed=options.seed, advance=advance)


def _row(
    what: str,
    stages: int | None,
    found: Accuracy,
    options: EvaluationOptions,
    certified: dict[str, Any] | None,
    begun: float,
    *,
    attacked: bool = True,
) -> Row:
    robust = Proportion(found.robust, found.images) if attacked and options.attack != "none" else None
    return Row(what, stages, Proportion(found.clean, found.images), robust, certified, time.monotonic() - begun)


def _clean(predictor: Predictor, data: ImageData) -> Accuracy:
    right = 0
    histogram = torch.zeros(len(data.classes), dtype=torch.int64)
    for numbers in numbers_in_order(len(data), 1000):
        predicted = torch.from_numpy(predictor.scores(data.take(numbers).numpy()).argmax(axis=1))
        right += int((predicted == data.labels[numbers]).sum())
        histogram += torch.bincount(predicted, minlength=len(data.classes))
    return Accuracy(len(data), right, right, tuple(histogram.tolist()))


def _load_torchscript(path: Path, device: torch.device) -> nn.Module:
    with warnings.catch_warnings():
        # TorchScript is deprecated in favour of torch.export, but files of it are in use and still run.
        warnings.filterwarnings("ignore", message=".*torch.jit.load.*", category=DeprecationWarning)
        try:
            model: nn.Module = torch.jit.load(str(path), map_location=device).eval()
        except RuntimeError as error:
            raise ModelFileError(f"{path} is not a TorchScript file: {str(error).splitlines()[0]}") from error
    for parameter in model.parameters():  # a script module has no requires_grad_ of its own
        parameter.requires_grad_(False)
    return model


def _check_classes(data: ImageData, classes: tuple[str, ...]) -> None:
    if data.classes != classes:
        raise DataError(
            f"The model knows the classes {', '.join(classes[:5])} ... ({len(classes)}); {data.name} has "
            f"{', '.join(data.classes[:5])} ... ({len(data.classes)})."
        )


def _store(run: Run, result: Evaluation) -> None:
    document = run.evaluation
    document.setdefault("attacks", {})[result.attack] = result.to_json()
    certified = {row.what: row.certified for row in result.rows if row.certified is not None}
    if certified:
        document["certified"] = certified
    write_text(run.path / "evaluation.json", json.dumps(document, indent=2) + "\n")
