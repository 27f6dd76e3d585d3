"""The curves of a run as a picture: loss and held-out accuracy over the images seen."""

import json
from typing import Any

from robustinfer.files import replacing

from .run import Run

__all__ = ["draw_curves"]


def draw_curves(run: Run) -> None:
    """Write curves.png into the run folder."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    epochs = _epochs(run)
    if not epochs:
        return
    seen = _positions(epochs)
    figure = Figure(figsize=(8, 6))
    FigureCanvasAgg(figure)
    # Fixed margins: a layout that measures its texts draws everything twice.
    margins = {"left": 0.1, "right": 0.97, "top": 0.94, "bottom": 0.09, "hspace": 0.08}
    losses, accuracies = figure.subplots(2, 1, sharex=True, gridspec_kw=margins)
    losses.plot(seen, [record["loss"] for record in epochs], marker=".", color="#444444")
    losses.set_ylabel("robust training loss")
    for key, label, color in (
        ("clean_accuracy", "clean", "#1f77b4"),
        ("robust_accuracy", f"under PGD, {run.recipe.norm} {run.recipe.delta:g}", "#d62728"),
    ):
        accuracies.plot(seen, [100 * record[key] for record in epochs], marker=".", label=label, color=color)
    accuracies.set(ylabel="held-out accuracy, %", xlabel="epochs", ylim=(0, 101))
    accuracies.legend(loc="lower right")
    for first in [x for x, record in zip(seen, epochs, strict=True) if record["epoch"] == 0 and record["stage"] > 1]:
        for axes in (losses, accuracies):
            axes.axvline(first - 0.5, color="#bbbbbb", linewidth=0.8)
    count = len(run.stages)
    losses.set_title(f"{run.recipe.name}: {count} stage{'s' * (count != 1)}")
    with replacing(run.path / "curves.png") as temporary:
        figure.savefig(temporary, dpi=120)


def _epochs(run: Run) -> list[dict[str, Any]]:
    file = run.path / "metrics.jsonl"
    lines = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
    return [record for record in map(json.loads, lines) if record["kind"] == "epoch"]


def _positions(epochs: list[dict[str, Any]]) -> list[int]:
    return list(range(1, len(epochs) + 1))
