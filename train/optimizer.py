"""What turns gradients into weights: the optimiser of a stage."""

from typing import Any

import torch

from .objective import StageModel
from .recipe import Recipe

__all__ = ["make_optimizer"]


def make_optimizer(recipe: Recipe, model: StageModel) -> torch.optim.Optimizer:
    """The recipe's optimiser; the weights beta have a learning rate of their own and no weight decay."""
    betas = [beta for beta in (model.beta, model.previous_betas) if beta.requires_grad]
    groups: list[dict[str, Any]] = [
        {"params": list(model.member.parameters()), "factor": 1.0, "weight_decay": recipe.weight_decay}
    ]
    if betas:
        groups.append({"params": betas, "factor": recipe.beta_learning_rate, "weight_decay": 0.0})
    if recipe.optimizer == "sgd":
        return torch.optim.SGD(groups, lr=recipe.learning_rate, momentum=recipe.momentum, fused=True)
    kind = torch.optim.AdamW if recipe.optimizer == "adamw" else torch.optim.Adam
    return kind(groups, lr=recipe.learning_rate, fused=True)
