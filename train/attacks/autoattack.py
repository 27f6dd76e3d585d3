"""AutoAttack (Croce and Hein 2020) and its parts, through the package `pyautoattack`."""

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from robustinfer.errors import ArgumentError
from robustinfer.extras import require

from ..data.batches import in_order
from ..data.datasets import ImageData
from ..machine.processes import Processes
from .accuracy import Accuracy

__all__ = ["STRONG_ATTACKS", "measure_strong"]

STRONG_ATTACKS = ("apgd-ce", "apgd-t", "autoattack")
_BATCH = 250


def measure_strong(
    model: nn.Module,
    data: ImageData,
    attack: str,
    *,
    norm: str,
    delta: float,
    seed: int,
    device: torch.device,
    advance: Callable[[int], None] = lambda images: None,
) -> Accuracy:
    """Accuracy under `apgd-ce`, under `apgd-ce` and then `apgd-t`, or under the whole of AutoAttack (`autoattack`)."""
    classes = len(data.classes)
    if attack not in STRONG_ATTACKS:
        raise ArgumentError(f"An attack is pgd, none, {', '.join(STRONG_ATTACKS)}; found {attack!r}.")
    if attack != "apgd-ce" and classes < 4:
        raise ArgumentError(f"{attack} compares the four largest scores, but this model has {classes}; use apgd-ce.")
    clean = robust = 0
    histogram = torch.zeros(classes, dtype=torch.int64)
    for _, batch in in_order(data, _BATCH, Processes(device)):
        image, labels = batch.image, batch.labels
        with torch.no_grad():
            predicted = model(image).argmax(dim=1)
        perturbed = _perturb(model, image, labels, attack, norm=norm, delta=delta, seed=seed, classes=classes)
        with torch.no_grad():
            robust += int((model(perturbed).argmax(dim=1) == labels).sum())
        clean += int((predicted == labels).sum())
        histogram += torch.bincount(predicted.cpu(), minlength=classes)
        advance(len(labels))
    return Accuracy(len(data), clean, robust, tuple(histogram.tolist()))


def _perturb(
    model: nn.Module, image: Tensor, labels: Tensor, attack: str, *, norm: str, delta: float, seed: int, classes: int
) -> Tensor:
    pyautoattack = require("pyautoattack", extra="train", why=f"The attack {attack}")
    logging.getLogger("auto-attack").setLevel(logging.ERROR)
    attacker = pyautoattack.AutoAttack(
        model, norm="Linf" if norm == "linf" else "L2", eps=delta, seed=seed, device=image.device, version="standard"
    )
    attacker.apgd_targeted.n_target_classes = attacker.fab.n_target_classes = min(9, classes - 1)
    if attack != "autoattack":
        attacker.attacks_to_run = ["apgd-ce"] if attack == "apgd-ce" else ["apgd-ce", "apgd-t"]
    with torch.random.fork_rng(devices=[]), _trace_kept():  # its attacks seed torch's global stream
        perturbed, _ = attacker.run_standard_evaluation(image, labels, batch_size=_BATCH)
    result: Tensor = perturbed
    return result


@contextmanager
def _trace_kept() -> Iterator[None]:
    """Give a debugger, or a measure of coverage, its hook back: pyautoattack traces the model and then sets None."""
    trace = sys.gettrace()
    try:
        yield
    finally:
        sys.settrace(trace)
