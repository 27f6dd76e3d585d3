"""The boosters by the name that a recipe gives them."""

from ..data.datasets import ImageData
from ..machine.processes import Processes
from ..runs.journal import Journal
from ..runs.run import Run
from .booster import Booster, GreedyBooster, IndependentBooster
from .minimax import MinimaxBooster

__all__ = ["BOOSTERS", "make_booster"]

BOOSTERS: dict[str, type[Booster]] = {
    "greedy": GreedyBooster,
    "independent": IndependentBooster,
    "minimax": MinimaxBooster,
}


def make_booster(run: Run, *, data: ImageData, held_out: ImageData, processes: Processes, journal: Journal) -> Booster:
    """The booster that the recipe of a run names."""
    kind = BOOSTERS[run.recipe.booster]
    return kind(run, data=data, held_out=held_out, processes=processes, journal=journal)
