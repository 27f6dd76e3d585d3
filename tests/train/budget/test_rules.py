"""What a budget is, how it is cut into slices, and by which evidence it is spent."""

import math

import pytest
import torch
from robust.train.budget import Budget, Purse, compare, next_move
from scipy.stats import ttest_rel

from robustinfer.errors import ArgumentError


class Clock:
    """Stands still until it is told to move."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_time_is_written_as_people_do() -> None:
    found = [Budget.time(words).amount for words in ("90", "90s", "45m", "1.5h", "1h30m")]
    assert found == [90, 90, 2700, 5400, 5400]
    for words in ("", "soon", "45 minutes", "-3m", "3d", "m"):
        with pytest.raises(ArgumentError, match="written as 90s, 45m or 1h30m"):
            Budget.time(words)
    with pytest.raises(ArgumentError, match="positive number of operations"):
        Budget(0, "operations")


def test_a_purse_counts_seconds_or_operations_and_what_was_spent_before() -> None:
    clock = Clock()
    seconds, operations = (
        Purse(Budget(160), clock=clock, before=10),
        Purse(Budget(160, "operations"), clock=clock, before=10),
    )
    clock.now += 30
    seconds.charge(1e9)
    operations.charge(50)
    assert (seconds.spent, seconds.left) == (40, 120)
    assert (operations.spent, operations.left) == (60, 100)
    clock.now += 1000
    assert seconds.left == 0


def test_slices_grow_with_their_part_and_leave_no_crumbs() -> None:
    clock = Clock()
    purse = Purse(Budget(160), clock=clock)
    assert [purse.slice(spent) for spent in (0, 20, 40, 100)] == [10, 10, 20, 50]
    clock.now += 145
    assert purse.slice(0) == 15  # less than two slices of 10 are left


def test_evidence_is_the_paired_test_of_the_losses() -> None:
    stream = torch.Generator().manual_seed(0)
    before = torch.rand(200, generator=stream, dtype=torch.float64)
    after = before - 0.02 + 0.1 * torch.randn(200, generator=stream, dtype=torch.float64)
    found = compare(before, after)
    assert found.difference / found.error == pytest.approx(ttest_rel(before, after).statistic, rel=1e-9)
    assert found.before - found.after == pytest.approx(found.difference)
    statistic = found.difference / found.error
    assert found.by(statistic - 0.01)
    assert not found.by(statistic + 0.01)
    same = compare(before, before)
    assert (same.difference, same.error) == (0, 0)
    assert not same.by(0.0), "a tie is no gain"
    assert not compare(after, before).by(-math.inf)
    with pytest.raises(ValueError, match="paired by image"):
        compare(before, after[:-1])


@pytest.mark.parametrize(
    ("present", "pays", "joined", "heads", "move"),
    [
        ("member", True, True, True, "continue"),
        ("head", True, False, True, "continue"),  # a part that still learns may join later
        ("member", False, True, True, "head"),
        ("member", False, True, False, "member"),
        ("head", False, True, True, "head"),
        ("head", False, False, False, "member"),
        ("member", False, False, True, "stop"),
    ],
)
def test_what_comes_next(present: str, pays: bool, joined: bool, heads: bool, move: str) -> None:
    assert next_move(present, pays=pays, joined=joined, heads=heads) == move  # type: ignore[arg-type]
