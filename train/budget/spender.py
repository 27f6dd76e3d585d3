"""The outer loop of a budgeted training: one slice after the other, each judged on held-out images (`rules.py`)."""

import dataclasses
import json
import math
import time
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor

from robustinfer.card import InputSpec
from robustinfer.errors import RecipeError, RunError
from robustinfer.files import write_text

from ..attacks.accuracy import PgdAttack, attacked_points, measure
from ..attacks.losses import example_loss
from ..attacks.pgd import frozen
from ..boosting.booster import GreedyBooster
from ..data.batches import in_order
from ..machine.randomness import Draws, derive_seed
from ..members import Member, build_member
from ..members.trunk import Trunk
from ..recipe import Recipe
from ..runs.checkpoint import Checkpoint
from ..runs.run import Run
from ..stage.diagnostics import edge, summarise
from ..stage.objective import StageModel
from .purse import Budget, Purse
from .rules import JOINS, PAYS, Evidence, Move, compare, next_move
from .slices import SliceTrainer, last_share

__all__ = ["BudgetBooster", "budgeted"]

_COPIES = 16  # noisy copies of a held-out image
_JUDGES, _BATCH = 1000, 100  # held-out images that decide
_FILE = "budget.json"

Kind = Literal["member", "head"]


def budgeted(recipe: Recipe) -> Recipe:
    """The recipe of a budgeted training: how many members there are, and how long each is trained, is not in it."""
    if recipe.booster != "greedy" or recipe.select != "last":
        raise RecipeError(
            'A budget is spent by booster = "greedy" with select = "last": what is kept is decided by it.'
        )
    share = "trunk" if _can_be_cut(recipe) else "none"
    return recipe.replace(stages=1, growth=1.0, share=share, warm_start=False, refit=False, drop_below=0.0)


def _can_be_cut(recipe: Recipe) -> bool:
    """Whether a network of this architecture can be cut into a trunk and a head, whatever images it is for."""
    spec, mean, std = InputSpec(3, 64, 64), torch.zeros(3), torch.ones(3)
    try:
        member = build_member(recipe.architecture, input=spec, classes=10, mean=mean, std=std, width=recipe.width)
        Trunk(member, recipe.split)
    except RecipeError:
        return False
    return True


class BudgetBooster(GreedyBooster):
    """Greedy boosting that decides after each slice what the next one is spent on.

    After every slice the run folder holds the best ensemble so far as its stages, a checkpoint to resume from, and
    `budget.json`: what was decided, by which evidence. `tell` is told what is spent and what happens.
    """

    def __init__(
        self,
        run: Run,
        *,
        budget: Budget,
        clock: Callable[[], float] = time.monotonic,
        tell: Callable[[float, str], None] = lambda spent, words: None,
        **parts: Any,
    ) -> None:
        super().__init__(run, **parts)
        if self.processes.world > 1:
            raise RecipeError("A budget is spent by one process; leave out --budget under torchrun.")
        self.tell, self.checkpoint = tell, Checkpoint.load(run.path)
        kept: dict[str, Any] = self.checkpoint.state.get("budget", {}) if self.checkpoint is not None else {}
        if run.stages and not kept:
            raise RunError(
                f"{run.path} was not trained by a budget, or lacks its resume.safetensors; give another --out."
            )
        self.purse = Purse(budget, clock=clock, before=kept.get("spent", 0.0))
        self.decisions: list[dict[str, Any]] = kept.get("decisions", [])
        self.heads: bool = kept.get("heads", self.recipe.shares_trunk)
        # Where it was found that nothing pays any more, more of the same would be wasted; a larger budget tries again.
        self.stopped = bool(self.decisions) and self.decisions[-1]["next"] == "stop" and kept["of"] >= budget.amount
        self.known: Tensor | None = None  # held-out losses of the ensemble in the run folder

    def fit(self) -> None:
        """While something is left: train a slice, judge it, deploy what is better, decide what comes next.

        There is at least one slice, however small the budget, so that there is an ensemble.
        """
        part = self._resumed() if self.checkpoint is not None else self._kept(self._begin("member"))
        while not self.stopped and (self.purse.left > 0 or not self.run.stages):
            begun = self.purse.spent
            amount = self.purse.slice(part.spent)
            share, last = last_share(amount, before=part.spent), amount >= self.purse.left
            if last:
                steps = part.advance((1 - share) * amount, self._tell_step)
            else:
                steps = part.advance(amount, self._tell_step, mean_from=(1 - share) * amount)
            with part.decayed(math.ceil(steps * share / (1 - share))) if last else part.averaged():
                losses = self._losses(part)
                gain, against, joins = self._judge(part, losses)
                if joins:
                    self._deploy(part, losses, spent=part.spent + self.purse.spent - begun)
            part.before, part.spent = losses, part.spent + self.purse.spent - begun
            paid = gain is None or gain.by(PAYS)
            pays, part.failed = paid or not part.failed, not paid
            self.heads = self.heads and (part.kind == "member" or part.joined or pays)
            move = next_move(part.kind, pays=pays, joined=part.joined, heads=self.heads)
            self._note(part, steps, gain, against, move=move, joins=joins)
            self.stopped = move == "stop"
            if move in ("head", "member"):
                part = self._begin("head" if move == "head" else "member")
            self._kept(part)

    def _judge(self, part: SliceTrainer, losses: Tensor) -> tuple[Evidence | None, Evidence | None, bool]:
        """The slice beside the one before, the ensemble beside that in the folder, and whether it takes its place."""
        gain = None if part.before is None else compare(part.before, losses)
        if self.known is None and self.run.stages:
            ensemble = self.run.ensemble(device=self.processes.device)
            self.known = self._held_out_losses(ensemble, ensemble)
        if self.known is None:
            return gain, None, True
        against = compare(self.known, losses)
        return gain, against, against.by(0.0 if part.joined else JOINS)

    def _losses(self, part: SliceTrainer) -> Tensor:
        def scores(x: Tensor) -> Tensor:
            return part.model.combine(part.model.member(x), None if part.past is None else part.past.stacked(x))

        return self._held_out_losses(scores, part.model)

    def _held_out_losses(self, scores: Callable[[Tensor], Tensor], network: torch.nn.Module) -> Tensor:
        """One loss per held-out image: under attack, or with smoothing at noisy copies; the same noise every time."""
        attack, found = PgdAttack.of(self.recipe), []
        if self.recipe.smoothed:
            attack = dataclasses.replace(attack, delta=0.0, copies=_COPIES, smoothing="softmax")
        with frozen(network):
            for number, batch in in_order(self.held_out.head(_JUDGES), _BATCH, self.processes):
                draws = Draws(self.recipe.seed, 0, 1, number, device=self.processes.device)
                points = attacked_points(scores, batch.image, batch.labels, attack, draws)
                with torch.no_grad():
                    rows = scores(points.flatten(0, 1)).view(len(points), len(batch.labels), -1)
                found.append(example_loss(rows, batch.labels, attack.smoothing).cpu())
        return torch.cat(found)

    def _begin(self, kind: Kind, number: int = 0) -> SliceTrainer:
        """A part from new parameters: behind the stages in the run folder, or of a given number."""
        number = number or len(self.run.stages) + 1
        past, device = self.past(number), self.processes.device
        model = StageModel(
            self._new(number, kind),
            beta=1.0,
            previous=torch.zeros(0) if past is None else past.betas.cpu(),
            corrective=self.recipe.betas == "corrective",
            learn_beta=True,
        )
        return SliceTrainer(
            self.objective(model.to(device), past),
            number,
            kind=kind,
            purse=self.purse,
            data=self.data,
            held_out=self.held_out,
            processes=self.processes,
            journal=self.journal,
            folder=self.run.path,
            fresh=self.run.start is None,
        )

    def _new(self, number: int, kind: Kind) -> Member:
        mean, std = self.data.moments()
        seed = derive_seed(self.recipe.seed, number, len(self.decisions))  # not the parameters of one that was given up
        member = self.run.first_member(seed=seed, mean=mean, std=std)
        return self.run.grafted(member) if kind == "head" else member

    def _resumed(self) -> SliceTrainer:
        """The part of the checkpoint. A kill may have come between the stage it joined by and the checkpoint."""
        assert self.checkpoint is not None
        part = self._begin(self.checkpoint.state["slices"]["kind"], self.checkpoint.stage)
        part.restore(self.checkpoint)
        part.joined, part.version = part.number <= len(self.run.stages), part.version + 1
        self.journal.rewind(part.number, part.epoch, part.step)
        self.checkpoint = None  # it may be large
        return part

    def _kept(self, part: SliceTrainer) -> SliceTrainer:
        """The part, with a checkpoint of this moment."""
        spent = {"spent": self.purse.spent, "of": self.purse.budget.amount}
        part.notes = {"budget": {**spent, "decisions": self.decisions, "heads": self.heads}}
        part.save()
        return part

    def _tell_step(self) -> None:
        self.tell(self.purse.spent, "")

    def _note(
        self,
        part: SliceTrainer,
        steps: int,
        gain: Evidence | None,
        against: Evidence | None,
        *,
        move: Move,
        joins: bool,
    ) -> None:
        """Write down what was decided, and why."""
        decision = {
            "part": part.number,
            "kind": part.kind,
            "steps": steps,
            "spent": self.purse.spent,
            "slice": None if gain is None else gain.to_json(),
            "ensemble": None if against is None else against.to_json(),
            "deployed": joins,
            "next": move,
        }
        self.decisions.append(decision)
        rules = {"pays": PAYS, "joins": JOINS}
        document = {"budget": self.purse.budget.to_json(), "rules": rules, "decisions": self.decisions}
        write_text(self.run.path / _FILE, json.dumps(document, indent=2) + "\n")
        loss = f"held-out loss {float(part.before.mean()):.4f}" if part.before is not None else ""
        self.tell(self.purse.spent, f"{part.kind} {part.number}: {steps} steps, {loss}; next: {move}")

    def _deploy(self, part: SliceTrainer, losses: Tensor, *, spent: float) -> None:
        """Write the part as its stage; it was averaged or decayed, and what is written can be used as it is."""
        member, betas, recipe = part.member, part.model.betas, self.recipe
        attack, seed = PgdAttack.of(recipe), (recipe.seed, part.number)
        images = self.held_out.head(recipe.validation_images)
        common: dict[str, Any] = {"processes": self.processes, "seed": (*seed, 1)}
        with frozen(part.model):
            whole, alone = (
                measure(scores, images, attack, classes=len(self.run.classes), **common)
                for scores in (self._ensemble(member, betas), member)
            )
            gamma = edge(member, part.past, images, attack, processes=self.processes, seed=seed, balance=recipe.balance)
        facts = {**part.facts(), "epochs": part.epoch, "kind": part.kind, "held_out_loss": float(losses.mean())}
        self.run.add_stage(
            part.number,
            member,
            betas=betas,
            seconds=spent if self.purse.budget.unit == "seconds" else 0.0,
            metrics={**summarise(gamma, whole, alone), **facts},
            warnings=[],
            version=part.version,
        )
        part.joined, part.version, self.known = True, part.version + 1, losses
