"""Members on one trunk: the parts are the network, the trunk stays as the first stage left it, one pass serves all."""

import contextlib
import dataclasses
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from robust.export import export_run
from robust.train import Recipe, Run, train
from robust.train.boosting.booster import GreedyBooster
from robust.train.data.batches import Batch
from robust.train.machine.randomness import Draws
from robust.train.members import Member, architectures, build_member
from robust.train.members.ensemble import Ensemble
from robust.train.members.trunk import Trunk, check_trunk, share_trunk
from robust.train.stage.objective import Objective, StageModel
from robust.train.stage.trainer import StageTrainer
from safetensors.torch import load_file
from torch import Tensor, nn

from robustinfer.card import InputSpec
from robustinfer.engines.inspection import inspect_model
from robustinfer.errors import RecipeError, RunError

from ..conftest import TINY

SPEC = InputSpec(3, 32, 32)


def member_of(architecture: str, seed: int = 0) -> Member:
    mean, std = torch.full((3,), 0.4), torch.full((3,), 0.2)
    return build_member(architecture, input=SPEC, classes=5, mean=mean, std=std, width=0.125, seed=seed).eval()


@pytest.mark.parametrize("architecture", [name for name in architectures() if name != "resnet110"])
def test_every_architecture_can_be_cut_between_its_parts(architecture: str) -> None:
    member = member_of(architecture)
    images = torch.rand(3, *SPEC.shape, generator=torch.Generator().manual_seed(1))
    parts: Any = member.network
    last = len(parts.parts()) - 2
    with torch.no_grad():
        for split in range(last + 1):
            trunk = Trunk(member, split)
            assert torch.allclose(trunk.scores(trunk.features(images)), member(images), rtol=1e-5, atol=1e-6)
    with pytest.raises(RecipeError, match=f"can be cut at 0 to {last}, found {last + 1}"):
        Trunk(member, last + 1)


class _Whole(nn.Module):
    """A network that nobody can cut."""

    def __init__(self) -> None:
        super().__init__()
        self.body: nn.Sequential = nn.Sequential(nn.Flatten(), nn.Linear(SPEC.size, 6), nn.ReLU())
        self.head = nn.Linear(6, 5)

    def forward(self, image: Tensor) -> Tensor:
        scores: Tensor = self.head(self.body(image))
        return scores


class _Misnamed(_Whole):
    """Says that it is something else than it is."""

    def parts(self) -> list[nn.Module]:
        return [self.body[0], self.body[1], self.head]


class _Cut(_Whole):
    def parts(self) -> list[nn.Module]:
        return [self.body[0], self.body[1], self.body[2], self.head]


def test_a_network_of_the_users_own_names_its_parts() -> None:
    networks = [Member(kind(), mean=torch.zeros(3), std=torch.ones(3)) for kind in (_Whole, _Misnamed, _Cut)]
    with pytest.raises(RecipeError, match=r"_Whole cannot: give it a method `parts\(\)`"):
        check_trunk(networks[0], 0, SPEC)
    with pytest.raises(RecipeError, match="these give other scores"):
        check_trunk(networks[1], 0, SPEC)
    check_trunk(networks[2], 1, SPEC)
    assert networks[2].training


@pytest.fixture(scope="module")
def recipe() -> Recipe:
    return TINY.replace(
        name="heads",
        architecture="cnn7-norm",
        share="trunk",
        split=0,
        warm_start=False,
        stages=3,
        growth=1.0,
        steps=1,
        refit=False,
        optimizer="muon",
        select="last",
    )


@pytest.fixture(scope="module")
def run(recipe: Recipe, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return train(recipe, tmp_path_factory.mktemp("heads") / "run", device="cpu")


def test_later_stages_train_a_head_on_the_first_trunk(run: Run) -> None:
    first, *others = (load_file(stage.path) for stage in run.stages)
    theirs = run.member(1)
    assert theirs.trunk is not None
    names = theirs.trunk.names()
    assert {"network.features.0.weight", "network.features.1.running_mean"} <= names
    for tensors in others:
        assert tensors.keys() == first.keys() - names
        assert any("running_mean" in name for name in tensors)  # the head has batch normalisation of its own
        assert not torch.equal(tensors["network.head.weight"], first["network.head.weight"])
    members = [run.member(number).eval() for number in (1, 2, 3)]
    for name in names:
        assert torch.equal(members[2].state_dict()[name], first[name])


@pytest.mark.parametrize(
    "optimizer", ["muon", *(pytest.param(name, marks=pytest.mark.slow) for name in ("sgd", "adam"))]
)
def test_the_trunk_stays_as_the_first_stage_left_it(recipe: Recipe, optimizer: str, tmp_path: Path) -> None:
    """Gradients, weight decay, batch statistics: nothing that a step does may touch it, warm start or not."""
    changed = recipe.replace(optimizer=optimizer, weight_decay=0.1, stages=2, warm_start=True, learning_rate=0.1)
    seen: list[dict[str, Tensor]] = []

    class Watched(StageTrainer):
        def fit(self) -> None:
            super().fit()
            if self.number == 2:
                assert self.member.trunk is not None
                tensors = self.member.state_dict()
                seen.append({name: tensors[name].clone() for name in self.member.trunk.names()})
                assert not any(
                    parameter.requires_grad for layer in self.member.trunk.layers for parameter in layer.parameters()
                )

    class WatchedBooster(GreedyBooster):
        stage_trainer = Watched

    run = train(changed, tmp_path / "run", device="cpu", booster=WatchedBooster)
    first = load_file(run.stages[0].path)
    assert len(seen) == 1
    assert all(torch.equal(tensor, first[name]) for name, tensor in seen[0].items())


def test_one_pass_through_the_trunk_serves_all_members(run: Run) -> None:
    ensemble = run.ensemble()
    images = torch.rand(4, *run.input.shape, generator=torch.Generator().manual_seed(2))
    passes = 0

    def count(*_: Any) -> None:
        nonlocal passes
        passes += 1

    for member in ensemble.members:
        member.network.features[0].register_forward_hook(count)  # type: ignore[union-attr, index]
    with torch.no_grad():
        whole, stacked, staged = ensemble(images), ensemble.stacked(images), list(ensemble.staged(images))
        assert passes == 3  # one for each of these, not nine
        apart = torch.stack([member(images) for member in ensemble.members])
    assert torch.allclose(stacked, apart, atol=1e-6)
    assert torch.allclose(whole, torch.einsum("s,snk->nk", ensemble.betas, apart), atol=1e-5)
    assert torch.equal(staged[-1], whole)


def test_members_whose_trunks_differ_are_not_taken_for_one() -> None:
    members = [share_trunk(member_of("fast", seed), 1) for seed in (0, 1)]
    images = torch.rand(2, *SPEC.shape, generator=torch.Generator().manual_seed(3))
    ensemble = Ensemble(members, [1.0, 1.0])
    assert ensemble.trunks is None
    with torch.no_grad():
        assert torch.allclose(ensemble(images), members[0](images) + members[1](images), atol=1e-5)


def test_a_file_computes_the_trunk_once(run: Run, tmp_path: Path) -> None:
    exported = tmp_path / "heads.onnx"
    export_run(run, exported, samples=100)
    operators = Counter(node.op_type for node in onnx.load(exported).graph.node)
    assert operators["Conv"] == 1 + 3  # the trunk's, and one in each head
    assert operators["BatchNormalization"] == 0
    one = tmp_path / "one.onnx"
    export_run(run, one, stages=1, samples=100)
    costs = [inspect_model(path).flops for path in (exported, one)]
    assert costs[0] is not None
    assert costs[1] is not None
    assert costs[0] < 3 * costs[1]


def test_a_head_without_the_trunk_it_was_trained_on_is_refused(run: Run, tmp_path: Path) -> None:
    copy = tmp_path / "run"
    shutil.copytree(run.path, copy)
    (copy / "stage-01.safetensors").unlink()
    with pytest.raises(RunError, match=r"stage-01.safetensors is missing"):
        Run.open(copy).member(2)


class Shared:
    """The objective of a second stage on digits-like images: a head on the trunk of a first member."""

    def __init__(self, previous: str, *, kept: bool = False, frozen: bool = True) -> None:
        first, second = (member_of("fast", seed) for seed in (0, 1))
        share_trunk(first, 2)
        trunk = share_trunk(second, 2).trunk
        assert trunk is not None
        tensors = first.state_dict()
        second.load_state_dict({name: tensors[name] for name in trunk.names()}, strict=False)
        if frozen:
            trunk.freeze()
        self.passes = 0
        for member in (first, second):
            assert member.trunk is not None
            member.trunk.layers[0].register_forward_hook(self._count)
        recipe = TINY.replace(norm="l2", delta=0.5, smoothing="softmax", sigma=0.25, noise_samples=2, previous=previous)
        self.kept = kept
        past = Ensemble([first], [0.7]).freeze()
        model = StageModel(second, beta=0.9, previous=past.betas, corrective=True, learn_beta=True)
        self.objective = Objective(recipe, model, past, precision=contextlib.nullcontext)

    def _count(self, *_: Any) -> None:
        self.passes += 1

    def step(self) -> list[Tensor]:
        """The loss of one batch, and all gradients that a step takes."""
        stream = torch.Generator().manual_seed(4)
        images = torch.rand(6, *SPEC.shape, generator=stream)
        batch = Batch(images, torch.arange(6) % 5)
        if self.kept:
            self.objective.recipe = self.objective.recipe.replace(attack="kept", steps=1, epochs=2)
            batch = dataclasses.replace(batch, kept=(images * 0.9).requires_grad_())
        model = self.objective.model.train()
        loss = self.objective.loss(batch, draws=Draws(0, 2), delta=0.5, steps=2)
        loss.backward()
        found = [parameter.grad for parameter in model.parameters() if parameter.requires_grad]
        found += [] if batch.kept is None else [batch.kept.grad]
        assert all(gradient is not None for gradient in found)
        return [loss.detach(), *(gradient for gradient in found if gradient is not None)]


@pytest.mark.parametrize(("previous", "passes", "apart"), [("clean", 4, 4), ("adversarial", 4, 5), ("exact", 3, 6)])
def test_a_step_passes_the_trunk_once_for_head_and_past(previous: str, passes: int, apart: int) -> None:
    """Two steps of the attack and the loss; `clean` and `adversarial` ask the past at the image first."""
    one, two = Shared(previous), Shared(previous)
    two.objective.trunks = []
    assert len(one.objective.trunks) == 2
    for found, expected in zip(one.step(), two.step(), strict=True):
        assert torch.allclose(found, expected, rtol=1e-4, atol=1e-6)
    assert (one.passes, two.passes) == (passes, apart)


def test_a_kept_perturbation_moves_by_the_gradient_through_the_shared_pass() -> None:
    one, two = Shared("exact", kept=True), Shared("exact", kept=True)
    two.objective.trunks = []
    for found, expected in zip(one.step(), two.step(), strict=True):
        assert torch.allclose(found, expected, rtol=1e-4, atol=1e-6)
    assert (one.passes, two.passes) == (1, 2)


def test_a_trunk_that_is_trained_gets_its_gradients_though_it_begins_as_another() -> None:
    one = Shared("exact", frozen=False)
    assert one.objective.trunks == []
    assert len(one.step()) > len(Shared("exact").step())
    member = one.objective.model.member
    assert isinstance(member, Member)
    assert member.trunk is not None
    assert any(float(p.grad.abs().sum()) > 0 for p in member.trunk.layers[0].parameters() if p.grad is not None)
