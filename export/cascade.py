"""Cascades: members are asked one after the other, and a sample leaves as soon as it is settled.

A sample leaves after k members if the margin of their sum (largest score minus second) exceeds the threshold of step k,
or, by consensus, if the first K members name the same class. Its scores are the sum so far. So a cascade is a function
of one image like any other, but not that of the plain ensemble: it is a base classifier of its own, and certified as
such. Nothing that was proven of the ensemble is taken over.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from robustinfer.errors import ExportError

from .fusion import EnsembleLike

__all__ = ["Cascade", "CascadeReference", "Rule", "Terms", "margins", "walk"]

Terms = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Rule:
    """Who is asked when, and when a sample leaves.

    `order` lists the members by position, first asked first. `thresholds[k]` is the margin above which a sample leaves
    after k + 1 members; nobody does at infinity. With a `consensus` of K there are none: a sample leaves after K
    members that name one class, and goes to all others if they do not.
    """

    order: tuple[int, ...]
    thresholds: tuple[float, ...] = ()
    consensus: int = 0

    def __post_init__(self) -> None:
        count = len(self.order)
        if count < 2 or sorted(self.order) != list(range(count)):
            raise ExportError(f"A cascade orders two or more members by position; found {list(self.order)}.")
        if self.consensus and (self.thresholds or not 2 <= self.consensus < count):
            raise ExportError(
                f"A consensus is that of 2 to {count - 1} of {count} members, without thresholds; found "
                f"{self.consensus} and {len(self.thresholds)} thresholds."
            )
        if not self.consensus and len(self.thresholds) != count - 1:
            raise ExportError(f"{count} members have {count - 1} thresholds; found {len(self.thresholds)}.")
        if any(math.isnan(threshold) for threshold in self.thresholds):
            raise ExportError("A threshold of a cascade is not a number.")

    def leaves(self, step: int) -> bool:
        """Whether samples may leave after this number of members."""
        if self.consensus:
            return step == self.consensus
        return step <= len(self.thresholds) and math.isfinite(self.thresholds[step - 1])

    def to_json(self, stages: Sequence[int]) -> dict[str, Any]:
        """The rule as it stands in a card, with the stages of the members; null for a step at which nobody leaves."""
        named: dict[str, Any] = {"order": [stages[position] for position in self.order]}
        if self.consensus:
            return {"rule": "consensus", **named, "consensus": self.consensus}
        finite = [threshold if math.isfinite(threshold) else None for threshold in self.thresholds]
        return {"rule": "margin", **named, "thresholds": finite}


def margins(scores: Terms) -> Terms:
    """The largest score of each sample minus its second."""
    top: Terms = -np.partition(-scores, 1, axis=-1)[..., :2]
    return cast(Terms, top[..., 0] - top[..., 1])


def walk(rule: Rule, terms: Terms) -> tuple[npt.NDArray[np.int64], Terms]:
    """How many members each sample is asked of, and its scores; `terms` are beta_t f_t, (members, samples, classes)."""
    ordered = terms[list(rule.order)]
    totals = np.cumsum(ordered, axis=0, dtype=np.float32)
    asked = np.full(terms.shape[1], len(terms), dtype=np.int64)
    for step in range(len(terms) - 1, 0, -1):
        if rule.leaves(step):
            asked[_settled(rule, step, ordered, totals)] = step
    return asked, totals[asked - 1, np.arange(len(asked))]


def _settled(rule: Rule, step: int, ordered: Terms, totals: Terms) -> npt.NDArray[np.bool_]:
    if rule.consensus:
        labels = ordered[:step].argmax(axis=-1)
        return cast("npt.NDArray[np.bool_]", (labels == labels[0]).all(axis=0))
    # As the graph has it: what is not a number does not stay either.
    return ~(margins(totals[step - 1]) <= np.float32(rule.thresholds[step - 1]))


class CascadeReference(nn.Module):
    """The cascade as it is defined, with every member asked and nothing compressed: what a file is compared with."""

    def __init__(self, ensemble: EnsembleLike, rule: Rule) -> None:
        super().__init__()
        self.members, self.betas, self.rule = ensemble.members, ensemble.betas, rule

    def forward(self, image: Tensor) -> Tensor:
        return torch.from_numpy(walk(self.rule, self.terms(image))[1])

    def terms(self, image: Tensor) -> Terms:
        """beta_t f_t of each member, (members, samples, classes)."""
        found = [beta * member(image) for beta, member in zip(self.betas, self.members, strict=True)]
        return cast(Terms, torch.stack(found).float().cpu().numpy())

    def undecided(self, image: Tensor, tolerance: float) -> npt.NDArray[np.bool_]:
        """Samples of which rounding, up to this share of the largest score, may decide when they leave."""
        terms = self.terms(image)[list(self.rule.order)]
        allowed = 2 * tolerance * float(np.abs(terms).sum(axis=0).max(initial=0.0))
        if self.rule.consensus:
            near = margins(terms[: self.rule.consensus]) <= allowed
        else:
            thresholds = np.asarray(self.rule.thresholds, np.float32)[:, None]
            near = np.abs(margins(np.cumsum(terms, axis=0)[:-1]) - thresholds) <= allowed
        return cast("npt.NDArray[np.bool_]", near.any(axis=0))


class Cascade(nn.Module):
    """The cascade as TorchScript runs it: what is left of a batch goes to the next member."""

    thresholds: list[float]
    leaving: list[bool]

    def __init__(self, front: nn.Module, members: Sequence[nn.Module], factors: Sequence[float], rule: Rule) -> None:
        super().__init__()
        self.front, self.first = front, members[rule.order[0]]
        self.later = nn.ModuleList(members[position] for position in rule.order[1:])
        self.factors = [factors[position] for position in rule.order]
        self.consensus = rule.consensus
        self.leaving = [rule.leaves(step) for step in range(1, len(rule.order))]
        self.thresholds = [float(threshold) for threshold in rule.thresholds] or [0.0] * len(self.leaving)

    def forward(self, image: Tensor) -> Tensor:
        features = self.front(image)
        total = self.factors[0] * self.first(features)
        label = total.argmax(1)
        agreed = torch.ones_like(label, dtype=torch.bool)
        rows = torch.arange(total.shape[0], device=total.device)
        scores: Tensor = total
        for step, member in enumerate(self.later):
            if self.leaving[step]:
                if self.consensus > 0:
                    stays = torch.logical_not(agreed)
                else:
                    top = total.topk(2, dim=1)[0]
                    stays = (top[:, 0] - top[:, 1]) <= self.thresholds[step]
                kept = stays.nonzero().flatten()
                rows, features, total = rows[kept], features[kept], total[kept]
                label, agreed = label[kept], agreed[kept]
            if rows.numel() > 0:
                term = self.factors[step + 1] * member(features)
                agreed = torch.logical_and(agreed, term.argmax(1) == label)
                total = total + term
                scores = scores.index_copy(0, rows, total)
        return scores
