"""Minimax boosting: the promises of its analysis on problems that are solved exactly, and its run folders."""

import itertools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from robust.train import Recipe, train
from robust.train.members.votes import VoteEnsemble
from robust.train.runs.run import Run
from robust.train.theory import (
    Boosted,
    LinearChecker,
    Reweighting,
    boost,
    effective_rows,
    fixed_rate,
    incorrect_pairs,
    ova_loss,
    robust_loss,
    rounds_for_margin,
    rounds_for_perfection,
    vote_scores,
)
from scipy.optimize import linprog
from torch import Tensor, nn

from robustinfer.errors import RunError, TrainingError
from robustinfer.smoothing.bounds import format_radius

THEORY = Path(__file__).parents[3] / "docs" / "theory.md"
DELTA = 0.06
CLASSES = 3


class Problem:
    """Points of three classes in the plane, and every linear predictor of a finite class, with exact robust losses.

    A member looks at one direction only and cuts it at two places, so none is right on all points.
    """

    def __init__(self, form: str) -> None:
        stream = torch.Generator().manual_seed(4)
        angles = torch.rand(24, generator=stream) * 2 * math.pi
        self.image = (0.5 + 0.35 * torch.stack([angles.cos(), angles.sin()], dim=1)).view(-1, 1, 1, 2).double()
        turned = (angles + 2 * math.pi / 6) % (2 * math.pi)
        keep = ((turned % (2 * math.pi / CLASSES)) - math.pi / CLASSES).abs() < 0.6  # leave gaps between the classes
        self.image, self.labels = self.image[keep], (turned[keep] // (2 * math.pi / CLASSES)).long()
        self.members = [
            self._member(*choice) for choice in itertools.product(range(12), range(CLASSES), range(CLASSES))
        ]
        checker = LinearChecker("l2", DELTA)
        self.reached = [checker.reached(member, self.image, self.labels) for member in self.members]
        self.pairs = form == "pairs"
        self.support = (
            incorrect_pairs(self.labels, CLASSES) if self.pairs else torch.ones(len(self.labels), dtype=torch.bool)
        )
        loss = robust_loss if self.pairs else ova_loss
        self.losses = [loss(reached, self.labels) for reached in self.reached]

    def _member(self, angle: int, above: int, below: int) -> Callable[[Tensor], Tensor]:
        """Label `above` where the direction is high, `below` where it is low: scores that are linear in the point."""
        direction = torch.tensor([math.cos(math.pi * angle / 12), math.sin(math.pi * angle / 12)]).double()
        weights = torch.zeros(CLASSES, 2).double()
        weights[above] += direction
        weights[below] -= direction
        bias = torch.full((CLASSES,), -10.0).double()
        bias[above], bias[below] = -weights[above].sum() / 2 + 0.1, -weights[below].sum() / 2
        return lambda image: image.flatten(1) @ weights.T + bias

    def value(self) -> float:
        """gamma = -min_Q max_i l(Q; i), the value of the game, by linear programming: the best weak learner's edge."""
        matrix = np.stack([loss[self.support].numpy() for loss in self.losses])
        members, rows = matrix.shape
        solved = linprog(
            [0.0] * members + [1.0],
            A_ub=np.hstack([matrix.T, -np.ones((rows, 1))]),
            b_ub=np.zeros(rows),
            A_eq=[[1.0] * members + [0.0]],
            b_eq=[1.0],
            bounds=[(0, None)] * members + [(None, None)],
        )
        return float(-solved.fun)  # type: ignore[operator]

    def exact_weak_learner(self, distribution: Tensor) -> int:
        """The member with the smallest error under D: by the minimax theorem, its edge is at least the value."""
        return min(range(len(self.members)), key=lambda h: float((self.losses[h] * distribution).sum()))

    def play(self, rounds: int, *, rate: float | None) -> Boosted[int]:
        return boost(self.exact_weak_learner, lambda h: self.losses[h], self.support, rounds=rounds, rate=rate)

    def robust_by_search(self, boosted: Boosted[int]) -> bool:
        """Whether the vote is right at 3,000 points of every ball, those of its rim included."""
        angles = torch.linspace(0, 2 * math.pi, 300, dtype=torch.float64)
        rim = torch.stack([angles.cos(), angles.sin()], dim=1)
        points = torch.cat([DELTA * part * rim for part in torch.linspace(0.1, 1, 10)])
        for row, label in zip(self.image, self.labels.tolist(), strict=True):
            around = (row.flatten() + points).view(-1, 1, 1, 2)
            predicted = torch.stack([self.members[h](around).argmax(dim=1) for h in boosted.members])
            if not bool((vote_scores(predicted, boosted.betas, CLASSES).argmax(dim=1) == label).all()):
                return False
        return True


@pytest.fixture(scope="module", params=["examples", "pairs"])
def problem(request: pytest.FixtureRequest) -> Problem:
    return Problem(request.param)


def test_no_member_is_enough_by_itself(problem: Problem) -> None:
    assert all(float(loss[problem.support].max()) >= 0 for loss in problem.losses)
    assert 0.05 < problem.value() < 1


@pytest.mark.parametrize("rule", ["adaptive", "fixed"])
def test_perfect_robust_accuracy_within_the_rounds_of_the_analysis(problem: Problem, rule: str) -> None:
    gamma, rows = problem.value(), int(problem.support.sum())
    rounds = rounds_for_perfection(rows, gamma - 1e-9)
    boosted = problem.play(rounds, rate=fixed_rate(rows, rounds) if rule == "fixed" else None)
    assert min(boosted.edges) >= gamma - 1e-9
    assert boosted.bound < 0
    assert boosted.worst_margin(problem.support) >= -boosted.bound - 1e-12
    assert problem.robust_by_search(boosted)


@pytest.mark.parametrize("epsilon", [0.5, 0.2])
def test_margins_come_within_epsilon_of_gamma(problem: Problem, epsilon: float) -> None:
    """Every margin is at least gamma - epsilon after 2 ln(N) / epsilon^2 rounds with the fixed rate, and never more
    than gamma for the worst row, because gamma is the best that any Q can do."""
    gamma, rows = problem.value(), int(problem.support.sum())
    rounds = rounds_for_margin(rows, epsilon)
    boosted = problem.play(rounds, rate=fixed_rate(rows, rounds))
    worst = boosted.worst_margin(problem.support)
    assert gamma - epsilon <= worst <= gamma + 1e-9
    assert worst >= sum(boosted.edges) / rounds - math.sqrt(2 * math.log(rows) / rounds) - 1e-12
    assert torch.allclose(boosted.betas, torch.full((rounds,), 1 / rounds).double())


def test_the_table_of_the_documentation(problem: Problem) -> None:
    """docs/theory.md: the first round after which every vote is right, and the smallest margin at the end."""
    gamma, rows = problem.value(), int(problem.support.sum())
    rounds = rounds_for_perfection(rows, gamma - 1e-9)
    perfect, margins = [], []
    for rule, rate in (("adaptive", None), ("fixed", fixed_rate(rows, rounds))):
        played = (problem.play(number, rate=rate) for number in range(1, rounds + 1))
        first = next(number for number, boosted in enumerate(played, 1) if problem.robust_by_search(boosted))
        perfect.append(f"{first} ({rule})")
        margin = problem.play(rounds, rate=rate).worst_margin(problem.support)
        margins.append(f"{format_radius(margin)} ({rule})")
    cells = [
        "pairs" if problem.pairs else "examples",
        str(rows),
        f"{gamma:.3f}",
        ", ".join(perfect),
        str(rounds),
        ", ".join(margins),
    ]
    assert f"\n| {' | '.join(cells)} |\n" in THEORY.read_text()


def test_fewer_rounds_may_not_be_enough(problem: Problem) -> None:
    """The number of rounds means something: one round leaves votes wrong."""
    assert problem.play(1, rate=None).worst_margin(problem.support) <= 0


def test_the_bound_holds_for_any_members_and_any_rate() -> None:
    stream = torch.Generator().manual_seed(0)
    for rate in (None, 0.1, 2.0):
        game, support = Reweighting(torch.ones(30, dtype=torch.bool), rate=rate), torch.ones(30, dtype=torch.bool)
        losses = []
        for _ in range(12):
            found = torch.randint(-1, 2, (30,), generator=stream).double() - 0.2
            found = found.clamp(-1, 1)
            losses.append(found)
            game.update(found)
            assert float(game.distribution.sum()) == pytest.approx(1.0)
        worst = (torch.stack(losses) * game.betas[:, None]).sum(dim=0)[support].max()
        assert float(worst) <= game.bound + 1e-9


def test_a_game_that_starts_elsewhere_and_its_bound() -> None:
    start = torch.tensor([0.5, 0.3, 0.15, 0.05, 0.0], dtype=torch.float64)
    support = start > 0
    game = Reweighting(support, start=start)
    torch.testing.assert_close(game.distribution, start)
    assert game.rows == pytest.approx(20) == pytest.approx(effective_rows(support, start))
    assert effective_rows(support) == 4
    losses = [torch.tensor(row, dtype=torch.float64) for row in ([-1, -1, -1, 1, 0], [-1, 1, -1, -1, 0])]
    eta = game.update(losses[0])
    assert game.edges == pytest.approx([0.9])
    assert eta == pytest.approx(0.5 * math.log(1.9 / 0.1))
    # AdaBoost's step makes what the member got wrong half of the distribution.
    expected = [0.5 / 0.95 / 2, 0.3 / 0.95 / 2, 0.15 / 0.95 / 2, 0.5, 0]
    assert game.distribution.tolist() == pytest.approx(expected)
    game.update(losses[1])
    worst = (torch.stack(losses) * game.betas[:, None]).sum(dim=0)[support].max()
    assert float(worst) <= game.bound + 1e-9
    # (bound) with N = 1 / min D_1 by hand: both steps have Z = sqrt(1 - gamma^2).
    potential = sum(0.5 * math.log(1 - gamma**2) for gamma in game.edges)
    assert game.bound == pytest.approx((math.log(20) + potential) / sum(game.etas))


def test_pairs_of_the_true_label_have_no_weight(problem: Problem) -> None:
    game = Reweighting(problem.support)
    game.update(problem.losses[0])
    assert float(game.distribution[~problem.support].sum()) == 0.0


def test_members_without_an_edge_do_not_vote() -> None:
    game = Reweighting(torch.ones(4, dtype=torch.bool))
    before = game.distribution
    assert game.update(torch.tensor([1.0, 1.0, -1.0, 1.0])) == 0.0
    assert torch.equal(game.distribution, before)
    with pytest.raises(TrainingError, match="nothing to vote with"):
        _ = game.betas
    game.update(torch.tensor([-1.0, -1.0, -1.0, -1.0]))  # an edge of 1, whose weight must stay finite
    assert game.betas.tolist() == [0.0, 1.0]


def test_the_vote_ensemble_is_the_weighted_plurality() -> None:
    torch.manual_seed(0)
    members = [nn.Sequential(nn.Flatten(), nn.Linear(4, 3)) for _ in range(3)]
    votes = VoteEnsemble(members, [0.5, 0.3, 0.2])
    image = torch.rand(20, 1, 2, 2, generator=torch.Generator().manual_seed(0))
    predicted = torch.stack([member(image).argmax(dim=1) for member in members])
    expected = vote_scores(predicted, torch.tensor([0.5, 0.3, 0.2]), 3)
    assert torch.allclose(votes(image), expected)
    with torch.no_grad():
        assert torch.allclose(votes(image), expected)
        *_, last = votes.staged(image)
        assert torch.allclose(last, expected)
    image.requires_grad_()
    (gradient,) = torch.autograd.grad(
        nn.functional.cross_entropy(votes(image), torch.zeros(20, dtype=torch.int64)), image
    )
    assert float(gradient.abs().min()) > 0


SMALL = {
    "booster": "minimax",
    "stages": 3,
    "epochs": 2,
    "growth": 1.0,
    "width": 0.5,
    "delta": 0.05,
    "batch": 32,
    "learning_rate": 0.01,
    "ramp": 0.0,
    "steps": 2,
    "limit": 512,
}


def small(**changes: Any) -> Recipe:
    return Recipe.load("digits-linf").replace(**{**SMALL, **changes})


def edges_again(run: Run) -> list[float]:
    """The edges that the losses in the run folder give."""
    from safetensors.torch import load_file

    losses = [load_file(run.path / f"losses-{stage.number:02d}.safetensors")["losses"] for stage in run.stages]
    support = torch.ones_like(losses[0], dtype=torch.bool)
    if run.recipe.reweigh == "pairs":
        from robust.train.data.datasets import load_data

        data = load_data("digits").split(run.recipe.validation)[0].head(run.recipe.limit)
        support = incorrect_pairs(data.labels, 10)
    rate = fixed_rate(int(support.sum()), run.recipe.stages) if run.recipe.rate == "fixed" else None
    game = Reweighting(support, rate=rate)
    for found in losses:
        game.update(found)
    assert list(run.stages[-1].betas) == pytest.approx(game.betas.tolist())
    return game.edges


@pytest.mark.parametrize(("reweigh", "rate"), [("examples", "adaptive"), ("pairs", "fixed")])
def test_a_run_of_minimax_boosting(tmp_path: Path, reweigh: str, rate: str) -> None:
    run = train(small(reweigh=reweigh, rate=rate), tmp_path / "run", device="cpu")
    assert sum(run.stages[-1].betas) == pytest.approx(1.0)
    assert [stage.metrics["edge"] for stage in run.stages] == pytest.approx(edges_again(run))
    assert isinstance(run.ensemble(), VoteEnsemble)
    last = run.stages[-1].metrics
    assert last["smallest_margin"] >= -last["largest_loss_bound"] - 1e-9
    assert last["robust_accuracy"] > 0.5
    assert 0.3 < last["training_robust_by_margin"] <= 1
    if rate == "fixed":
        assert run.stages[-1].betas == pytest.approx([1 / 3] * 3)


def test_a_resumed_run_goes_on_with_the_same_weights(tmp_path: Path) -> None:
    recipe = small(stages=2)
    whole = train(recipe, tmp_path / "whole", device="cpu")
    train(recipe, tmp_path / "part", device="cpu")
    for file in (tmp_path / "part").glob("stage-02.*"):
        file.unlink()
    again = train(recipe, tmp_path / "part", resume=True, device="cpu")
    assert again.stages[1].digest == whole.stages[1].digest
    assert again.stages[1].betas == whole.stages[1].betas


def test_lost_losses_are_refused(tmp_path: Path) -> None:
    recipe = small(stages=2, epochs=1)
    train(recipe, tmp_path / "run", device="cpu")
    for file in ("stage-02.json", "losses-01.safetensors"):
        (tmp_path / "run" / file).unlink()
    with pytest.raises(RunError, match="losses-01"):
        train(recipe, tmp_path / "run", resume=True, device="cpu")


def test_a_first_member_without_an_edge_ends_the_training(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match=r"not a weak learner.*pairs"):
        train(small(delta=0.5, epochs=1), tmp_path / "run", device="cpu")


def test_with_the_fixed_rate_a_member_without_an_edge_votes_and_training_continues(tmp_path: Path) -> None:
    recipe = small(delta=0.5, epochs=1, stages=2, limit=128, rate="fixed")
    run = train(recipe, tmp_path / "run", device="cpu")
    assert run.stages[0].metrics["edge"] <= 0
    assert run.stages[0].warnings[0]["code"] == "no-weak-learner"
    assert run.stages[1].betas == pytest.approx([0.5, 0.5])
