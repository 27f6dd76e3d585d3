"""Random small ensembles whose batch normalisation has something to fold, and run folders made of them."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from robust.train.members import Member as TrainMember
from robust.train.members import build_member
from robust.train.members.ensemble import Ensemble
from robust.train.members.trunk import share_trunk
from robust.train.recipe import Recipe
from robust.train.runs.run import Run

from robustinfer.card import Card, CardMember, InputSpec

MakeEnsemble = Callable[..., tuple[Ensemble, Card]]


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> Iterator[None]:
    """The networks here are tiny, and the tests run side by side: more threads would only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def make_ensemble(
    architecture: str = "cnn",
    *,
    shape: tuple[int, int, int] = (1, 8, 8),
    betas: Sequence[float] = (1.0, -0.4),
    classes: int = 4,
    width: float = 0.25,
    sigma: float | None = 0.25,
    seed: int = 0,
) -> tuple[Ensemble, Card]:
    """An ensemble in evaluation mode with random weights and statistics, and its card."""
    spec = InputSpec(*shape)
    generator = torch.Generator().manual_seed(seed)
    members = []
    for number in range(len(betas)):
        mean, std = torch.full((spec.channels,), 0.4), torch.full((spec.channels,), 0.3)
        member = build_member(
            architecture, input=spec, classes=classes, mean=mean, std=std, width=width, seed=seed + number
        )
        for module in member.modules():
            if isinstance(module, torch.nn.BatchNorm2d):
                assert module.running_mean is not None
                assert module.running_var is not None
                module.running_mean.copy_(torch.randn(module.num_features, generator=generator) * 0.2)
                module.running_var.copy_(torch.rand(module.num_features, generator=generator) + 0.5)
                module.weight.data.copy_(torch.rand(module.num_features, generator=generator) + 0.5)
                module.bias.data.copy_(torch.randn(module.num_features, generator=generator) * 0.2)
        members.append(member)
    card = Card(
        classes=tuple(f"class {label}" for label in range(classes)),
        input=spec,
        name="tiny",
        sigma=sigma,
        members=tuple(CardMember(architecture, float(beta), stage) for stage, beta in enumerate(betas, start=1)),
    )
    return Ensemble(members, betas).freeze(), card


def make_heads(count: int = 3) -> tuple[Ensemble, Card]:
    """Heads on the trunk of the first, with random weights, and their card."""
    spec, mean, std = InputSpec(1, 8, 8), torch.full((1,), 0.5), torch.full((1,), 0.25)
    members: list[TrainMember] = []
    for seed in range(count):
        member = build_member("resnet12", input=spec, classes=4, mean=mean, std=std, width=0.25, seed=seed).eval()
        member = share_trunk(member, 1)
        if members:
            assert member.trunk is not None
            trunk = member.trunk.names()
            own = {name: tensor for name, tensor in members[0].state_dict().items() if name in trunk}
            member.load_state_dict(own, strict=False)
        members.append(member)
    ensemble = Ensemble(members, (1.0,) * count).freeze()
    assert ensemble.trunks is not None
    return ensemble, Card(classes=tuple("abcd"), input=spec, sigma=0.25)


def make_run(path: Path, **changes: Any) -> Run:
    """A run folder as a training leaves it, with two stages of untrained members for the digits data set."""
    fields: dict[str, Any] = {"architecture": "cnn", "width": 0.25, "stages": 2}
    fields |= {"norm": "l2", "delta": 0.5, "smoothing": "gaussian", "sigma": 0.25}
    recipe = Recipe(**{"name": "tiny-digits", "data": "digits", **fields, **changes})
    ensemble, card = make_ensemble(classes=10)
    run = Run.create(
        path,
        recipe,
        classes=tuple(str(digit) for digit in range(10)),
        input=card.input,
        provenance={"seed": recipe.seed, "data_digest": "sha256:0", "versions": {"torch": torch.__version__}},
    )
    betas: list[float] = []
    for number, (member, beta) in enumerate(zip(ensemble.members, (1.0, 0.5), strict=True), start=1):
        assert isinstance(member, TrainMember)
        betas.append(beta)
        run.add_stage(number, member, betas=list(betas), seconds=0.1, metrics={}, warnings=[])
    return Run.open(path)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """A finished run folder."""
    return make_run(tmp_path / "run")
