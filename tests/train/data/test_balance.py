"""Imbalanced classes: weights and orders against their closed forms, and trainings that follow them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from robust.train import Recipe, Run, train
from robust.train.attacks.accuracy import Accuracy, PgdAttack
from robust.train.boosting.betas import refit_betas
from robust.train.boosting.minimax import WeightedObjective
from robust.train.data.balance import balanced_order, class_weights, image_weights
from robust.train.data.batches import Batch, Batches
from robust.train.data.datasets import ImageData
from robust.train.data.pixels import TensorPixels
from robust.train.machine.arithmetic import arithmetic
from robust.train.machine.processes import Processes
from robust.train.machine.randomness import Draws
from robust.train.members.ensemble import Ensemble
from robust.train.stage.diagnostics import edge
from robust.train.stage.objective import Objective, StageModel
from torch import Tensor, nn

from robustinfer.card import InputSpec
from robustinfer.errors import RecipeError

CPU = torch.device("cpu")
COUNTS = (70, 20, 10)


def imbalanced(counts: tuple[int, ...] = COUNTS) -> ImageData:
    """Images of one pixel, whose number is its value."""
    labels = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    pixels = torch.arange(sum(counts)).to(torch.uint8).view(-1, 1, 1, 1)
    return ImageData("skewed", TensorPixels(pixels), labels, tuple("abcdefgh"[: len(counts)]))


class Bias(nn.Module):
    """Scores that know nothing of the image: the best ones are the logarithms of the classes' frequencies."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(classes))

    def forward(self, image: Tensor) -> Tensor:
        return self.bias.expand(len(image), -1)


def test_the_weights_are_the_closed_form() -> None:
    labels = imbalanced().labels
    assert class_weights(labels, 3).tolist() == pytest.approx([100 / (3 * count) for count in COUNTS])
    weights = image_weights(labels, 3, "loss")
    assert weights is not None
    assert float(weights.mean()) == pytest.approx(1)
    assert [float(weights[labels == label].sum()) for label in range(3)] == pytest.approx([100 / 3] * 3)
    assert image_weights(labels, 3, "none") is None
    # A class without an image, as in the few images that a step is timed on, has no weight and takes none.
    assert class_weights(labels, 4).tolist() == pytest.approx([*(100 / (3 * count) for count in COUNTS), 0])


@given(st.lists(st.integers(1, 40), min_size=1, max_size=8), st.integers(0, 2**31))
def test_an_epoch_draws_every_class_equally_often(counts: list[int], seed: int) -> None:
    labels = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    order = balanced_order(labels, torch.Generator().manual_seed(seed))
    assert len(order) == len(labels)
    drawn = torch.bincount(labels[order], minlength=len(counts))
    assert int(drawn.max() - drawn.min()) <= 1
    times = torch.bincount(order, minlength=len(labels))
    for label in range(len(counts)):  # each image of a class once before one of them comes again
        own = times[labels == label]
        assert int(own.max() - own.min()) <= 1


def test_the_classes_that_come_once_more_are_drawn() -> None:
    labels = imbalanced((50, 3, 4)).labels
    drawn = sum(
        torch.bincount(labels[balanced_order(labels, torch.Generator().manual_seed(seed))]) for seed in range(300)
    )
    # 57 places are 19 a class; 58 would leave one over. With 56 images two classes of three get one more.
    assert drawn.tolist() == [19 * 300] * 3  # type: ignore[union-attr]
    labels = imbalanced((50, 2, 4)).labels
    orders = [balanced_order(labels, torch.Generator().manual_seed(seed)) for seed in range(300)]
    fewer = {int(torch.bincount(labels[order], minlength=3).argmin()) for order in orders}
    assert fewer == {0, 1, 2}  # missing one has probability below 3 (2/3)^300


@pytest.mark.parametrize("balance", ["loss", "sample"])
def test_processes_share_what_one_process_alone_would_see(balance: str) -> None:
    recipe, data = Recipe(batch=10, balance=balance), imbalanced()
    alone = Batches(recipe, 1, data, Processes(CPU)).batch(2, 3)
    parts = [Batches(recipe, 1, data, Processes(CPU, rank, 2)).batch(2, 3) for rank in range(2)]
    assert alone.numbers is not None
    assert torch.equal(torch.cat([part.numbers for part in parts if part.numbers is not None]), alone.numbers)
    if balance == "sample":
        assert alone.weights is None
        return
    assert alone.weights is not None
    assert torch.equal(torch.cat([part.weights for part in parts if part.weights is not None]), alone.weights)
    assert torch.equal(alone.weights.double(), class_weights(data.labels, 3)[alone.labels].float().double())


def whole_batch(data: ImageData, recipe: Recipe) -> Batch:
    return Batches(recipe.replace(batch=len(data)), 1, data, Processes(CPU)).batch(0, 0)


def plain(balance: str, **settings: Any) -> Recipe:
    return Recipe(delta=0, attack="none", balance=balance, **settings)


@pytest.mark.parametrize(
    ("balance", "shares"), [("none", [0.7, 0.2, 0.1]), ("loss", [1 / 3] * 3), ("sample", [1 / 3] * 3)]
)
def test_the_gradient_of_a_stage_is_that_of_the_shares_that_classes_have(balance: str, shares: list[float]) -> None:
    """At equal scores the cross-entropy's gradient by the scores is 1/K minus the share of each class."""
    data, recipe = imbalanced(), plain(balance)
    model = StageModel(Bias(3), beta=1.0, previous=torch.zeros(0), corrective=False, learn_beta=False)
    objective = Objective(recipe, model, None, precision=arithmetic(recipe, CPU))
    objective.loss(whole_batch(data, recipe), draws=Draws(0), delta=0, steps=1).backward()
    assert isinstance(model.member, Bias)
    assert model.member.bias.grad is not None
    # 100 places for three classes: one of them is drawn 34 times.
    tolerance = 0.007 if balance == "sample" else 1e-6
    expected = [1 / 3 - share for share in shares]
    assert model.member.bias.grad.tolist() == pytest.approx(expected, abs=tolerance)


@pytest.mark.parametrize("pairs", [False, True])
@pytest.mark.parametrize("balance", ["loss", "sample"])
def test_minimax_boosting_descends_its_own_distribution_however_images_are_drawn(balance: str, pairs: bool) -> None:
    """sum_i q_i density_i l_i = E_D[l], where q_i is how likely a draw is image i."""
    data, recipe = imbalanced(), plain(balance)
    shape = (100, 3) if pairs else (100,)
    distribution = torch.rand(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    distribution /= distribution.sum()
    weights = image_weights(data.labels, 3, balance)
    assert weights is not None
    draws = weights if balance == "sample" else None
    model = StageModel(Bias(3), beta=1.0, previous=torch.zeros(0), corrective=False, learn_beta=False)
    objective = WeightedObjective(
        recipe, model, distribution=distribution, draws=draws, precision=arithmetic(recipe, CPU)
    )
    q = (torch.ones(100) if draws is None else draws).view(-1, *[1] * (len(shape) - 1)) / 100
    torch.testing.assert_close(objective.density.double() * q, distribution, rtol=1e-6, atol=0)


class Threshold(nn.Module):
    """Answers a for dark pixels and b for light ones, with a certainty that grows with `slope`."""

    def forward(self, image: Tensor) -> Tensor:
        return torch.stack([0.5 - image.flatten(1)[:, 0], image.flatten(1)[:, 0] - 0.5], dim=1)


def one_in_ten() -> ImageData:
    """Ten images of two classes, nine to one; the threshold is right for all of class a and wrong for class b."""
    pixels = torch.zeros(10, 1, 1, 1, dtype=torch.uint8)
    return ImageData("nine to one", TensorPixels(pixels), torch.tensor([0] * 9 + [1]), ("a", "b"))


def test_edge_and_refitted_betas_count_classes_as_training_does() -> None:
    data, still = one_in_ten(), PgdAttack(norm="linf", delta=0)
    plain_edge = edge(Threshold(), None, data, still, processes=Processes(CPU), seed=(0,))
    assert plain_edge == pytest.approx(0.9 - 0.1)
    balanced = edge(Threshold(), None, data, still, processes=Processes(CPU), seed=(0,), balance="loss")
    assert balanced == pytest.approx(0.5 - 0.5)
    # All ten images have the scores beta (0.5, -0.5): the best beta is the log-odds of class a as it counts.
    ensemble = Ensemble([Threshold()], [0.1])
    (fitted,) = refit_betas(ensemble, data, still, device=CPU, seed=(0,))
    assert fitted == pytest.approx(np.log(9), abs=0.01)
    (fitted,) = refit_betas(ensemble, data, still, device=CPU, seed=(0,), balance="sample")
    assert fitted == pytest.approx(0, abs=0.01)


def test_the_best_epoch_is_chosen_by_classes_that_count_alike() -> None:
    measured = Accuracy(100, 90, 85, (100, 0), ((90, 85), (10, 0), (0, 0)))
    assert measured.robust_accuracy == pytest.approx(0.85)
    assert measured.balanced_accuracy == pytest.approx(85 / 90 / 2)
    assert Accuracy(0, 0, 0, ()).balanced_accuracy == 0


def test_a_kept_perturbation_and_an_image_that_comes_twice_are_refused() -> None:
    Recipe(attack="kept", balance="loss")
    with pytest.raises(RecipeError, match='set balance = "loss"'):
        Recipe(attack="kept", balance="sample")


@pytest.fixture(scope="module")
def skewed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Two classes that one noisy pixel tells apart, nineteen to one."""
    rng = np.random.default_rng(0)
    path = tmp_path_factory.mktemp("skewed") / "skewed.npz"
    arrays: dict[str, Any] = {}
    for split, count in (("train", 400), ("test", 400)):
        labels = (np.arange(count) % 20 == 0).astype(np.int64)
        images = np.clip(rng.normal(110 + 36 * labels[:, None, None], 30, (count, 4, 4)), 0, 255).astype(np.uint8)
        images[:, 1:] = 128
        arrays |= {f"{split}_images": images, f"{split}_labels": labels}
    np.savez(path, **arrays)
    return f"npz:{path}"


def short(data: str, **changes: Any) -> Recipe:
    return Recipe(
        data=data,
        architecture="tests.train.data.test_balance:linear",
        delta=0.02,
        steps=1,
        stages=2,
        epochs=3,
        growth=1,
        batch=36,
        previous="exact",
        optimizer="adam",
        learning_rate=0.05,
        checkpoint_seconds=0,
        **changes,
    )


def linear(input: InputSpec, classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(input.size, classes))


def recalls(run: Run) -> list[float]:
    from robust.train.data.datasets import load_data

    data = load_data(run.recipe.data, split="test")
    scores = run.ensemble()(data.take(torch.arange(len(data))).float() / 255)
    right = scores.argmax(dim=1) == data.labels
    return [float(right[data.labels == label].float().mean()) for label in range(2)]


@pytest.mark.parametrize("booster", ["greedy", pytest.param("minimax", marks=pytest.mark.slow)])
def test_a_rare_class_is_learnt_and_a_resumed_training_ends_alike(skewed: str, tmp_path: Path, booster: str) -> None:
    rare = {}
    for balance in ("none", "loss", "sample"):
        recipe = short(skewed, balance=balance, booster=booster)
        run = train(recipe, tmp_path / balance, device="cpu")
        rare[balance] = recalls(run)[1]
        for file in run.path.glob("stage-02.*"):
            file.unlink()
        again = train(recipe, run.path, resume=True, device="cpu")
        assert again.stages[1].digest == run.stages[1].digest
        assert again.stages[1].betas == run.stages[1].betas
    assert rare["loss"] > rare["none"] + 0.3
    assert rare["sample"] > rare["none"] + 0.3
