"""Spend a budget: slice by slice, decided by held-out loss, on the present member, on a head or on a new member."""

from .purse import Budget, Purse
from .rules import Evidence, Move, compare, next_move
from .spender import BudgetBooster, budgeted

__all__ = ["Budget", "BudgetBooster", "Evidence", "Move", "Purse", "budgeted", "compare", "next_move"]
