"""What a training cannot do on these data and this machine, found before there is a folder."""

from ..data.batches import check_batch
from ..data.datasets import ImageData
from ..machine.arithmetic import check_arithmetic
from ..machine.layout import check_layout
from ..machine.processes import Processes
from ..members import Member
from ..members.trunk import check_trunk
from ..recipe import Recipe
from .confidence import check_teacher
from .perturbations import check_perturbations

__all__ = ["check_stage"]


def check_stage(recipe: Recipe, data: ImageData, member: Member, processes: Processes) -> None:
    """Refuse a batch, perturbations, a teacher, a memory layout or an arithmetic that could not work.

    `member` is any member of the recipe's architecture: what can go wrong does not depend on its parameters.
    """
    check_batch(recipe, data, processes)
    check_perturbations(recipe, data, processes)
    check_layout(recipe, member, processes.device)
    check_teacher(recipe, data)
    check_arithmetic(recipe, processes.device)
    if recipe.shares_trunk:
        check_trunk(member, recipe.split, data.input)
