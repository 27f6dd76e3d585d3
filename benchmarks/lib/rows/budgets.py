"""Rows that cost the same: one network, a wider one, and a boosted pair."""

from typing import Any

from benchmarks.lib.experiments import Row

__all__ = ["rows_of_budget"]


_BOOSTED: dict[str, Any] = {"stages": 2, "own_loss": 0.9, "warm_start": False, "beta_learning_rate": 1.0}


def rows_of_budget(budget: int, *, first: int, second: int) -> tuple[Row, ...]:
    """The rows that cost `budget` epochs of one member; the stages of the boosted one take `first` and `second`."""
    return (
        Row(f"single-{budget}", "single", f"one member, {budget} epochs", {"epochs": budget}),
        Row(
            f"wider-{budget}",
            "wider",
            f"one network of two members' inference cost, {budget // 2} epochs",
            {"epochs": budget // 2, "width": 0.72},
        ),
        Row(
            f"boosted-{budget}",
            "boosted",
            f"boosted, stages of {first} and {second} epochs from new parameters, nine tenths own loss",
            {**_BOOSTED, "epochs": first, "growth": second / first},
        ),
    )
