"""A part of the ensemble that is trained slice by slice, with a schedule that can be cut anywhere.

Warm-up, then a constant rate; and at the end of each slice a decay to 0 that is branched off: the decayed parameters
are what is measured and deployed, while training continues from those before the decay. What a decay costs is lost to
the next slice, so it is short. Only the slice that spends what is left has no next one: it decays over the quarter of
the whole that is as good as a rate that falls all the time (`benchmarks/accuracy/schedules.py`).
"""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from ..runs.checkpoint import Checkpoint
from ..stage.trainer import StageTrainer
from .purse import Purse

__all__ = ["Operations", "SliceTrainer", "decay_share"]

_WARM_UP = 50  # steps
_BRANCH = 0.1  # of a slice that others follow
_LAST = 0.25  # of all that a part has cost when its last slice ends
_MOST = 0.8  # of the last slice


def decay_share(amount: float, *, before: float, last: bool) -> float:
    """The share of a slice in which the rate falls; `before` is what its part had cost when the slice began."""
    if not last:
        return _BRANCH
    return min(_MOST, _LAST * (before + amount) / amount) if amount > 0 else _LAST


class SliceTrainer(StageTrainer):
    """One member or head, and how far it has come."""

    def __init__(self, *arguments: Any, kind: Literal["member", "head"], purse: Purse, **parts: Any) -> None:
        super().__init__(*arguments, **parts)
        self.kind, self.purse = kind, purse
        self.taken = 0  # steps before any decay
        self.spent = 0.0
        self.before: Tensor | None = None  # held-out losses after the slice before
        self.failed = False  # whether that slice did not pay
        self.joined, self.version = False, 0
        self.notes: dict[str, Any] = {}  # what a checkpoint says besides
        self._decay: tuple[int, int] | None = None  # steps of the branch that are done, and all of them
        self._operations = 0.0

    def learning_rate(self) -> float:
        """Linear to the recipe's rate over the warm-up, constant from then on; in a decay linear to 0."""
        rate = self.recipe.learning_rate * min(1.0, (self.taken + 1) / _WARM_UP)
        if self._decay is None:
            return rate
        done, total = self._decay
        return rate * (1 - (done + 1) / (total + 1))

    def advance(self, amount: float, tell: Callable[[], None]) -> int:
        """Steps at the constant rate until this amount is spent; how many they were."""
        self.model.train()
        begun, steps = self.purse.spent, 0
        while steps == 0 or self.purse.spent - begun < amount:
            self.processes.leave_if_asked()
            self._step()
            steps, self.taken = steps + 1, self.taken + 1
            tell()
        self._check_finite()
        return steps

    @contextmanager
    def decayed(self, steps: int) -> Iterator[None]:
        """Within the block the model is what a decay over so many steps makes of it; then as before."""
        place = (self.epoch, self.step)
        model, optimizer = copy.deepcopy(self.model.state_dict()), copy.deepcopy(self.optimizer.state_dict())
        kept = None if self.perturbations is None else self.perturbations.kept.clone()
        self.model.train()
        for done in range(steps):
            self.processes.leave_if_asked()
            self._decay = (done, steps)
            self._step()
        self._decay = None
        self.model.eval()
        try:
            yield
        finally:
            self.model.load_state_dict(model)
            self.optimizer.load_state_dict(optimizer)
            self.epoch, self.step = place
            if self.perturbations is not None and kept is not None:
                self.perturbations.kept = kept

    def _step(self) -> None:
        if self._operations:
            loss = self.update()
        else:  # every step of a part costs the same
            with Operations() as counter:
                loss = self.update()
            self._operations = float(counter.total)
        self.purse.charge(self._operations)
        self.losses = [*self.losses[-19:], loss]
        self.step += 1
        if self.step == self.batches.steps:
            self.epoch, self.step = self.epoch + 1, 0

    def state(self) -> dict[str, Any]:
        before = None if self.before is None else self.before.tolist()
        own = {name: getattr(self, name) for name in ("kind", "taken", "spent", "joined", "failed", "version")}
        return super().state() | {"slices": {**own, "before": before}} | self.notes

    def restore(self, checkpoint: Checkpoint) -> None:
        super().restore(checkpoint)
        own = checkpoint.state["slices"]
        self.taken, self.spent, self.joined, self.version = (
            own[key] for key in ("taken", "spent", "joined", "version")
        )
        self.before = None if own["before"] is None else torch.tensor(own["before"])
        self.failed = own.get("failed", False)  # runs of before have not noted it


class Operations(TorchDispatchMode):
    """Counts the floating-point operations of convolutions and matrix products, backward passes included.

    torch's own FlopCounterMode also follows modules, by hooks that an attack's `autograd.grad` cannot be called under.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.total = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        count = flop_registry.get(func._overloadpacket)
        if count is not None:
            self.total += int(count(*args, **(kwargs or {}), out_val=result))
        return result
