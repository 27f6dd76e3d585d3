"""What turns gradients into parameters: the optimiser of a stage."""

from typing import Any

import torch
from torch import Tensor, nn

from ..recipe import Recipe
from .objective import StageModel

__all__ = ["Muon", "make_optimizer", "orthogonalised"]

_ADAM_SHARE = 0.15  # learning rate of Adam within Muon, as a share of that of the kernels
_NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)  # of Jordan et al. 2024: drives singular values to about 1 within 5 rounds
_ROUNDS = 5
_FAR_WIDER = 4  # columns a row from which small square factors are quicker


def make_optimizer(recipe: Recipe, model: StageModel) -> torch.optim.Optimizer:
    """The recipe's optimiser; the betas have a learning rate of their own and no weight decay."""
    betas = [beta for beta in (model.beta, model.previous_betas) if beta.requires_grad]
    if recipe.optimizer == "muon":
        share = _ADAM_SHARE
        kernels, others = _hidden_kernels(model.member)
        groups = [_group(kernels, recipe, orthogonal=True), _group(others, recipe, factor=share)]
    else:
        trained = [parameter for parameter in model.member.parameters() if parameter.requires_grad]
        share, groups = 1.0, [_group(trained, recipe)]
    if betas:
        groups.append({"params": betas, "factor": share * recipe.beta_learning_rate, "weight_decay": 0.0})
    if recipe.optimizer == "muon":
        return Muon(groups, lr=recipe.learning_rate, momentum=recipe.momentum)
    if recipe.optimizer == "sgd":
        return torch.optim.SGD(groups, lr=recipe.learning_rate, momentum=recipe.momentum, fused=True)
    kind = torch.optim.AdamW if recipe.optimizer == "adamw" else torch.optim.Adam
    return kind(groups, lr=recipe.learning_rate, fused=True)


def _group(parameters: list[nn.Parameter], recipe: Recipe, *, factor: float = 1.0, **options: Any) -> dict[str, Any]:
    return {"params": parameters, "factor": factor, "weight_decay": recipe.weight_decay, **options}


def _hidden_kernels(member: nn.Module) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """The kernels of convolutions and linear layers but the last one, which gives the scores; and all others."""
    parameters = [parameter for parameter in member.parameters() if parameter.requires_grad]
    kernels = [parameter for parameter in parameters if parameter.ndim > 1][:-1]
    chosen = {id(parameter) for parameter in kernels}
    return kernels, [parameter for parameter in parameters if id(parameter) not in chosen]


class Muon(torch.optim.AdamW):
    """Momentum, orthogonalised (Jordan et al. 2024), for groups marked `orthogonal`; AdamW for all others.

    The update of a kernel, seen as a matrix with one row an output, is replaced by the nearest matrix whose singular
    values are about 1: directions with small gradients are learned as fast as those with large ones. torch's own Muon
    takes matrices only, and computes in bf16, which not every CPU can do.
    """

    def __init__(self, groups: list[dict[str, Any]], *, lr: float, momentum: float) -> None:
        super().__init__(groups, lr=lr, fused=True)
        for group in self.param_groups:
            group.setdefault("orthogonal", False)
            group["momentum"] = momentum

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """One step of all groups, from the gradients that are there."""
        for group in self.param_groups:
            if not group["orthogonal"]:
                continue
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._step_kernel(parameter, parameter.grad, group)
                    parameter.grad = None  # done: AdamW passes over parameters without a gradient
        super().step()

    def _step_kernel(self, kernel: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        momentum, rate = group["momentum"], group["lr"]
        state = self.state[kernel]
        if not state:
            state |= {"step": torch.zeros(()), "momentum_buffer": torch.zeros_like(kernel)}
        state["step"] += 1  # AdamW expects every parameter to have one
        buffer = state["momentum_buffer"].mul_(momentum).add_(gradient)
        update = orthogonalised(gradient.add(buffer, alpha=momentum).flatten(1))  # Nesterov's look ahead
        rows, columns = update.shape
        kernel.mul_(1 - rate * group["weight_decay"])
        kernel.add_(update.view(kernel.shape), alpha=-rate * max(1.0, rows / columns) ** 0.5)


def orthogonalised(matrix: Tensor) -> Tensor:
    """The matrix with its singular values brought near 1 (0.7 to 1.2), by a polynomial iteration (Newton-Schulz).

    x <- p(x x^T) x with p(g) = a + b g + c g^2. All factors p are polynomials of the first x x^T, so they commute: for
    a matrix far wider than high they are multiplied up as small square ones, and it is met at the start and at the end.
    """
    a, b, c = _NEWTON_SCHULZ
    wide = matrix.T if matrix.shape[0] > matrix.shape[1] else matrix
    rows, columns = wide.shape
    x: Tensor = wide / (wide.norm() + 1e-7)
    if columns < _FAR_WIDER * rows:
        for _ in range(_ROUNDS):
            gram = x @ x.T
            x = a * x + (b * gram + c * gram @ gram) @ x
    else:
        first, one = x @ x.T, torch.eye(rows, dtype=x.dtype, device=x.device)
        factor = one
        for _ in range(_ROUNDS):
            gram = factor @ first @ factor
            factor = (a * one + b * gram + c * gram @ gram) @ factor
        x = factor @ x
    return x.T if matrix.shape[0] > matrix.shape[1] else x
