"""A budgeted training on a few digits, with a clock that counts: decisions, deployment, interruption."""

import itertools
import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from robust.train import Recipe, Run, train_within
from robust.train.budget import Budget, spender
from robust.train.budget.rules import JOINS, PAYS, Evidence
from robust.train.budget.slices import SliceTrainer
from robust.train.data.datasets import load_data
from robust.train.machine.processes import Processes
from robust.train.pace import step_operations

from robustinfer.errors import RecipeError, RunError, StoppedError
from robustinfer.report import read_sources, render

Tensors = dict[str, torch.Tensor]


@pytest.fixture
def small(tiny: Recipe) -> Recipe:
    return tiny.replace(select="last", steps=1, validation_images=20, learning_rate=0.005)


def ticking() -> Callable[[], float]:
    """A clock on which every look takes a second."""
    ticks = itertools.count()
    return lambda: float(next(ticks))


def spend(recipe: Recipe, out: Path, amount: float, **options: Any) -> Run:
    return train_within(recipe, out, Budget(amount), clock=ticking(), root=out, device="cpu", **options)


def decisions(run: Run) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((run.path / "budget.json").read_text())["decisions"]
    return found


def test_every_slice_is_decided_by_the_rules_and_leaves_a_usable_ensemble(small: Recipe, tmp_path: Path) -> None:
    usable: list[int] = []

    def tell(spent: float, words: str) -> None:
        if words:  # after a slice: what a kill would leave here can be used
            run = Run.open(tmp_path / "run")
            scores = run.ensemble()(torch.rand(2, 1, 8, 8, generator=torch.Generator().manual_seed(0)))
            usable.append(int(torch.isfinite(scores).all()))

    run = spend(small, tmp_path / "run", 120, tell=tell)
    found = decisions(run)
    assert usable == [1] * len(found)
    assert len(found) >= 3
    assert found[0]["deployed"]
    for before, after in itertools.pairwise(found):
        again = after["part"] == before["part"] and before["next"] == "continue"
        assert again == (after["slice"] is not None)
        assert after["spent"] > before["spent"]
    joined, failed = {1}, False
    for decision in found[1:]:
        evidence = decision["ensemble"]
        margin = 0.0 if decision["part"] in joined else JOINS
        better = evidence["difference"] > 0 and evidence["difference"] >= margin * evidence["standard_error"]
        assert decision["deployed"] == better
        joined |= {decision["part"]} if better else set()
        if decision["slice"] is None:
            failed = False
            continue
        paid = decision["slice"]["difference"] >= PAYS * decision["slice"]["standard_error"]
        paid = paid and decision["slice"]["difference"] > 0
        assert (decision["next"] == "continue") == (paid or not failed), "two in a row decide"
        failed = not paid
    assert len(run.stages) == len(joined)


def test_means_are_deployed_until_the_last_slice_which_decays(
    small: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[str, int, Tensors]] = []
    averaged, decayed = SliceTrainer.averaged, SliceTrainer.decayed

    def parameters(part: SliceTrainer) -> Tensors:
        return {name: one.detach().clone() for name, one in part.member.network.named_parameters()}

    @contextmanager
    def mean(part: SliceTrainer) -> Iterator[None]:
        raw = parameters(part)
        with averaged(part):
            assert any(not torch.equal(raw[name], one) for name, one in parameters(part).items())
            seen.append(("mean", part._steps, parameters(part)))
            yield

    @contextmanager
    def decay(part: SliceTrainer, steps: int) -> Iterator[None]:
        raw = parameters(part)
        with decayed(part, steps):
            assert any(not torch.equal(raw[name], one) for name, one in parameters(part).items())
            seen.append(("decay", steps, parameters(part)))
            yield

    monkeypatch.setattr(SliceTrainer, "averaged", mean)
    monkeypatch.setattr(SliceTrainer, "decayed", decay)
    run = spend(small, tmp_path / "run", 240)
    found = decisions(run)
    kinds = [kind for kind, _, _ in seen]
    assert len(kinds) == len(found)
    # On this clock a decay, which does not look at it, is quicker than planned: what it leaves is spent like the rest.
    assert kinds == ["mean"] * kinds.count("mean") + ["decay"] * kinds.count("decay")
    assert kinds.count("mean") >= 3
    assert kinds.count("decay") >= 1
    for (_, _, deployed), decision in zip(seen, found, strict=True):
        if decision["deployed"]:
            last = deployed
    own = {name: one.detach() for name, one in run.member(1).network.named_parameters()}
    assert all(torch.equal(own[name], one) for name, one in last.items())


def test_operations_cannot_be_counted_in_compiled_members(small: Recipe, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="give --budget a time, or set compile=false"):
        train_within(small.replace(compile=True), tmp_path / "run", Budget(1e9, "operations"), device="cpu")
    assert not (tmp_path / "run").exists()


def test_heads_and_members_are_tried_when_nothing_pays(
    small: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a margin that no slice reaches, the order is: member, head, head..., member, and then nothing."""
    monkeypatch.setattr(spender, "PAYS", 1e9)
    monkeypatch.setattr(spender, "JOINS", 1e9)
    run = spend(small, tmp_path / "run", 960)
    assert [(decision["kind"], decision["next"]) for decision in decisions(run)] == [
        ("member", "continue"),  # the first slice has nothing to be compared with
        ("member", "continue"),  # and one that does not pay may be noise
        ("member", "head"),
        ("head", "continue"),
        ("head", "continue"),
        ("head", "member"),
        ("member", "continue"),
        ("member", "continue"),
        ("member", "stop"),
    ]
    assert len(run.stages) == 1, "nothing joined, so one network remains"
    again = spend(small, tmp_path / "run", 960, resume=True)
    assert len(decisions(again)) == 9, "what was stopped stays stopped"


def test_parts_that_join_are_stages(small: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spender, "PAYS", 1e9)
    monkeypatch.setattr(spender, "JOINS", 0.0)
    monkeypatch.setattr(Evidence, "by", lambda evidence, margin: margin == 0.0)  # nothing pays, whatever is new joins
    run = spend(small.replace(smoothing="gaussian", sigma=0.25, norm="l2"), tmp_path / "run", 240)
    kinds = [stage.metrics["kind"] for stage in run.stages]
    assert kinds[:2] == ["member", "head"]
    shared, own = run.stages[0], run.stages[1]
    assert own.path.stat().st_size < shared.path.stat().st_size, "a head is stored without its trunk"
    assert len(run.ensemble().members) == len(kinds)
    assert sorted(path.name for path in run.path.glob("stage-*.safetensors")) == sorted(
        stage.path.name for stage in run.stages
    ), "older versions are gone"


def test_a_stopped_training_resumes_with_what_is_left(small: Recipe, tmp_path: Path) -> None:
    asked = itertools.count()
    with pytest.raises(StoppedError):
        spend(small, tmp_path / "run", 120, stop=lambda: next(asked) > 40)
    before = decisions(Run.open(tmp_path / "run"))
    run = spend(small, tmp_path / "run", 120, resume=True)
    found = decisions(run)
    assert found[: len(before)] == before
    assert len(found) > len(before) >= 1
    assert found[-1]["spent"] >= 120
    assert len(decisions(spend(small, tmp_path / "run", 120, resume=True))) == len(found), "nothing is left"
    assert len(decisions(spend(small, tmp_path / "run", 180, resume=True))) > len(found), "a larger budget continues"


def test_a_budget_that_is_gone_before_the_first_step_buys_one_slice(small: Recipe, tmp_path: Path) -> None:
    run = spend(small, tmp_path / "run", 0.001)
    assert [decision["steps"] for decision in decisions(run)] == [1]
    assert len(run.stages) == 1


def test_the_report_has_every_decision_and_its_evidence(small: Recipe, tmp_path: Path) -> None:
    run = spend(small, tmp_path / "run", 60)
    page = render(read_sources([run.path]))
    assert "of 60 seconds" in page
    assert "Training time, by stage" in page
    rows = re.findall(r"<tr><td>.*?</tr>", page.partition("How the budget was spent")[2].partition("</table>")[0])
    found = [re.findall(r"<td>(.*?)</td>", row) for row in rows]
    assert len(found) == len(decisions(run)) >= 2
    for cells, decision in zip(found, decisions(run), strict=True):
        assert cells[1:3] == [f"{decision['kind']} {decision['part']}", str(decision["steps"])]
        for cell, evidence in zip(cells[4:6], (decision["slice"], decision["ensemble"]), strict=True):
            words = evidence and f"{evidence['difference']:+.4f} ± {evidence['standard_error']:.4f}"
            assert cell == (words or "")
        assert cells[6:] == ["yes" if decision["deployed"] else "no", decision["next"]]
    counted = train_within(small, tmp_path / "counted", Budget(1e6, "operations"), clock=ticking(), device="cpu")
    page = render(read_sources([counted.path]))
    assert "of 1e+06 operations" in page
    assert "Training time" not in page, "no seconds were counted"


def test_a_budget_of_operations_can_be_counted_in_steps_before(small: Recipe, tmp_path: Path) -> None:
    data = load_data(small.data).split(small.validation)[0].head(small.limit)
    step = step_operations(small, data, Processes(torch.device("cpu")))
    run = train_within(small, tmp_path / "run", Budget(step, "operations"), clock=ticking(), device="cpu")
    (first,) = decisions(run)
    assert first["steps"] == 1
    assert first["spent"] == step, "a mean takes no steps, and these members have no statistics"


@pytest.mark.slow
def test_operations_are_those_of_the_steps(small: Recipe, tmp_path: Path) -> None:
    runs = [
        train_within(small, tmp_path / name, Budget(1e8, "operations"), clock=ticking(), device="cpu")
        for name in ("once", "twice")
    ]
    first, second = map(decisions, runs)
    assert first == second, "operations depend on no clock"
    assert first[-1]["spent"] >= 1e8


def test_what_does_not_fit_is_refused(small: Recipe, tiny: Recipe, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="booster"):
        spend(tiny, tmp_path / "best", 100)
    run = spend(small, tmp_path / "run", 60)
    (run.path / "resume.safetensors").unlink()
    with pytest.raises(RunError, match="not trained by a budget"):
        spend(small, tmp_path / "run", 120, resume=True)
