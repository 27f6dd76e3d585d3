"""Theorem certified: labels and radii of members become the label and the radius of their weighted plurality vote."""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

__all__ = ["Ballot", "Combined", "combine"]


@dataclass(frozen=True)
class Ballot:
    """What one member guarantees: its label does not change for any change of norm below `radius`.

    `label` None is an abstention: nothing is known about the member, anywhere.
    """

    beta: float
    label: int | None
    radius: float


@dataclass(frozen=True)
class Combined:
    """(h_Q^am(x), rho_Q(x)); `label` None if the ballots settle none. `limit` is the member whose radius rho_Q is."""

    label: int | None
    radius: float
    limit: int | None


def combine(ballots: Sequence[Ballot]) -> Combined:
    """The label of the weighted plurality vote at x, and a radius below which no change of x alters it.

    If each ballot is true, then for every z with |z| < radius, argmax_c sum_t Q_t 1[h_t(x + z) = c] is `label`.

    Proof. Order the members that do not abstain by radius, r_1 <= ... <= r_N, and take |z| < r_i. The members i, ..., N
    vote at x + z as they do at x. The others, 1, ..., i - 1 and those that abstain, may vote for anything; the worst
    they can do to label y is to vote for one y' all together. So y wins at x + z, whatever they do, if for all y' != y

        Q(members j < i and those that abstain)  +  Q(members j >= i with label y')  <  Q(members j >= i with label y).

    With each step of i one beta moves to the left or leaves the right, so the condition holds up to some largest i*
    and for none above: a scan finds it, and rho_Q = r_i*. At i = 1 and z = 0 it says that y is the label at x. The
    paper has <= here, which leaves a tie at x + z to the rule for ties; with < no rule matters. Abstentions are the
    paper's members of radius 0, except that their labels are not known either: they count against every label.

    The sums are exact (fractions), so no rounding makes a tie look like a win. Only ratios of the betas matter.
    """
    betas = [Fraction(ballot.beta) for ballot in ballots]
    known = [(ballot.radius, index, ballot.label) for index, ballot in enumerate(ballots) if ballot.label is not None]
    unknown = sum(betas, Fraction(0)) - sum((betas[index] for _, index, _ in known), Fraction(0))
    masses: dict[int, Fraction] = {}
    for _, index, label in known:
        masses[label] = masses.get(label, Fraction(0)) + betas[index]
    if not masses:
        return Combined(None, 0.0, None)
    winner = max(masses, key=lambda label: masses[label])
    found = Combined(None, 0.0, None)
    for radius, index, label in sorted(known):
        rival = max((mass for other, mass in masses.items() if other != winner), default=Fraction(0))
        if not unknown + rival < masses[winner]:
            break
        found = Combined(winner, radius, index)
        masses[label] -= betas[index]
        unknown += betas[index]
    return found
