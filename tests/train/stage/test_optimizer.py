"""The optimisers of a stage; Muon against the singular value decomposition and against torch's AdamW."""

import pytest
import torch
from robust.train import Recipe
from robust.train.members import build_member
from robust.train.runs.checkpoint import flatten_optimizer, restore_optimizer
from robust.train.stage.objective import StageModel
from robust.train.stage.optimizer import Muon, make_optimizer, orthogonalised
from torch.nn import functional

from robustinfer import InputSpec

SPEC = InputSpec(1, 8, 8)
MUON = Recipe(optimizer="muon", learning_rate=0.02, momentum=0.95, weight_decay=0.1, architecture="cnn", width=0.25)


def stage_model(seed: int = 0) -> StageModel:
    member = build_member("cnn", input=SPEC, classes=10, mean=torch.zeros(1), std=torch.ones(1), width=0.25, seed=seed)
    return StageModel(member, beta=1.0, previous=torch.tensor([0.5]), corrective=True, learn_beta=True)


def step(model: StageModel, optimizer: torch.optim.Optimizer, seed: int) -> float:
    """A step on sixteen fixed images, each time under other noise."""
    images, noise = (torch.rand((16, 1, 8, 8), generator=torch.Generator().manual_seed(key)) for key in (0, seed))
    image, labels = images + 0.1 * noise, torch.arange(16) % 10
    scores, _ = model(image, torch.zeros(1, 16, 10) + image.mean())
    loss = functional.cross_entropy(scores, labels)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    return float(loss.detach())


@pytest.mark.parametrize("shape", [(8, 49), (64, 16), (5, 5)])
def test_orthogonalised_keeps_the_directions_and_levels_the_lengths(shape: tuple[int, int]) -> None:
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    u, values, v = torch.linalg.svd(matrix, full_matrices=False)
    found = u.T @ orthogonalised(matrix) @ v.T  # in the matrix's own singular directions
    assert values.max() / values.min() > 1.5
    torch.testing.assert_close(found, torch.diag(found.diagonal()), atol=1e-4, rtol=0)
    assert found.diagonal().min() > 0.6
    assert found.diagonal().max() < 1.25


@pytest.mark.parametrize("shape", [(24, 60), (24, 200), (200, 24)])
def test_orthogonalised_is_the_published_iteration(shape: tuple[int, int]) -> None:
    """Factors multiplied up, or the iteration on the matrix itself: the same, also for tiny singular values."""
    stream = torch.Generator().manual_seed(2)
    u, v = (torch.linalg.qr(torch.randn((side, 24), generator=stream)).Q for side in shape)
    matrix = u * torch.logspace(0, -5, 24) @ v.T
    x = matrix.double() / matrix.double().norm()
    for _ in range(5):
        gram = x @ x.T
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    torch.testing.assert_close(orthogonalised(matrix), x.float(), atol=1e-3, rtol=0)


def test_muon_moves_hidden_kernels_by_a_fixed_length_and_all_else_as_adamw_does() -> None:
    model, twin = stage_model(), stage_model()
    optimizer = make_optimizer(MUON, model)
    assert isinstance(optimizer, Muon)
    for group in optimizer.param_groups:
        group["lr"] = MUON.learning_rate * group["factor"]  # what a stage does in every step
    kernels = [group for group in optimizer.param_groups if group["orthogonal"]]
    moved = {id(weight) for group in kernels for weight in group["params"]}
    names = [name for name, weight in model.named_parameters() if id(weight) in moved]
    assert names == ["member.network.features.0.weight", "member.network.features.2.weight",
                     "member.network.features.5.weight"]  # fmt: skip

    rest = [weight for name, weight in twin.named_parameters() if name not in names and "beta" not in name]
    betas = [twin.beta, twin.previous_betas]
    rate = MUON.learning_rate * 0.15
    adamw = torch.optim.AdamW([{"params": rest, "weight_decay": 0.1}, {"params": betas, "weight_decay": 0.0}], lr=rate)
    before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    step(model, optimizer, 1)
    step(twin, adamw, 1)
    for (name, ours), theirs in zip(model.named_parameters(), twin.parameters(), strict=True):
        if name not in names:
            torch.testing.assert_close(ours, theirs, msg=name)
            continue
        change = (ours - before[name] * (1 - 0.02 * 0.1)).detach().flatten(1) / 0.02
        rows, columns = change.shape
        lengths = torch.linalg.svdvals(change) / max(1.0, rows / columns) ** 0.5
        assert 0.6 < lengths.max() < 1.25


def test_muon_learns_and_goes_on_from_a_checkpoint_exactly() -> None:
    whole, begun, resumed = stage_model(), stage_model(), stage_model(seed=5)
    first, second = make_optimizer(MUON, whole), make_optimizer(MUON, begun)
    losses = [step(whole, first, number) for number in range(40)]
    assert losses[-1] < 0.5 * losses[0]
    for number in range(20):
        step(begun, second, number)
    resumed.load_state_dict(begun.state_dict())
    third = make_optimizer(MUON, resumed)
    restore_optimizer(third, flatten_optimizer(second))
    for number in range(20, 40):
        step(resumed, third, number)
    for name, tensor in whole.state_dict().items():
        assert torch.equal(tensor, resumed.state_dict()[name]), name
