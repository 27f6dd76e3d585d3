"""The inner loop of Algorithm 1: one stage trains one member and its beta on the robust loss."""

from .checks import check_stage
from .diagnostics import edge, stage_warnings, summarise, warning
from .objective import Objective, StageModel
from .perturbations import perturbation_bytes
from .registry import make_objective
from .schedule import run_cost, stage_cost
from .trainer import StageTrainer

__all__ = [
    "Objective",
    "StageModel",
    "StageTrainer",
    "check_stage",
    "edge",
    "make_objective",
    "perturbation_bytes",
    "run_cost",
    "stage_cost",
    "stage_warnings",
    "summarise",
    "warning",
]
