"""Lemma apx-weak-learner: a weak learner from an approximate checker."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from torch import Tensor

from .losses import error

__all__ = ["WeakMember", "find_weak_member"]

H = TypeVar("H")


@dataclass(frozen=True)
class WeakMember(Generic[H]):
    """A member that is good enough for the distribution it was asked for; `edge` is as the checker saw it."""

    member: H
    edge: float


def find_weak_member(
    candidates: Iterable[H], vulnerable: Callable[[H], Tensor], distribution: Tensor, *, gamma: float
) -> WeakMember[H] | None:
    """The first candidate h with E_D[2 1[A(h; x, y) = z] - 1] <= -gamma, or None if there is none.

    `vulnerable(h)` says for each example whether a (c, delta)-approximate checker A found a perturbation; D is the
    distribution over examples. By the definition of A,

        1[exists z in B_p(delta): h(x+z) != y]  >=  1[A(h; x, y) = z]  >=  1[exists z in B_p(delta/c): h(x+z) != y],

    and expectations under D keep the order. So a member that is returned has err_{delta/c}^ova(h, D) <= -gamma, and
    None certifies that every candidate has err_delta^ova(h, D) > -gamma. With the exact checker, c = 1, both speak of
    delta. With PGD, c is infinite: a member that is returned surely has this edge on unperturbed images only, while
    None is as certain as with any other checker.
    """
    for member in candidates:
        edge = -error(2.0 * vulnerable(member).double() - 1.0, distribution)
        if edge >= gamma:
            return WeakMember(member, edge)
    return None
