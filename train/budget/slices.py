"""A part of the ensemble that is trained slice by slice, with a schedule that can be cut anywhere.

Warm-up, then a constant rate. What is measured and deployed after a slice is the mean of the parameters over the last
quarter of all that the part has cost. It takes no steps from later slices, and a few passes where there is batch
normalisation. No slice follows the one that spends what is left: there the rate falls to 0 over that quarter.
`benchmarks/accuracy/schedules.py` compares both with a rate that falls throughout.
"""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from ..runs.checkpoint import Checkpoint
from ..stage.schedule import LAST_DECAY, constant_learning_rate, ramped_delta
from ..stage.trainer import StageTrainer
from .purse import Purse

__all__ = ["Operations", "SliceTrainer", "last_share"]

_MOST = 0.8  # of a slice may belong to the last quarter of its part
_STATISTICS = (
    20  # a mean gets the statistics of its batch normalisation from one batch per this many steps of the slice
)
_MOST_BATCHES = 32


def last_share(amount: float, *, before: float) -> float:
    """The share of a slice that is the last quarter of its part, which had cost `before` when the slice began."""
    return min(_MOST, LAST_DECAY * (before + amount) / amount) if amount > 0 else LAST_DECAY


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
        self._decay: tuple[int, int] | None = None  # steps of the decay that are done, and all of them
        self._tail_mean: list[Tensor] = []  # of the trained parameters, over the last steps of the slice
        self._steps = 0  # of the slice
        self._operations: dict[bool, float] = {}  # of a step, without an attack and with one

    def learning_rate(self) -> float:
        """Linear to the recipe's rate over the warm-up, constant from then on; in a decay linear to 0."""
        rate = constant_learning_rate(self.recipe.learning_rate, self.taken)
        if self._decay is None:
            return rate
        done, total = self._decay
        return rate * (1 - (done + 1) / (total + 1))

    def advance(self, amount: float, tell: Callable[[], None], *, mean_from: float = float("inf")) -> int:
        """Steps at the constant rate until this amount is spent; how many they were.

        The mean of the parameters is taken over those after `mean_from`, the last one among them.
        """
        self.model.train()
        begun, spent, steps, counted = self.purse.spent, 0.0, 0, 0
        trained, self._tail_mean = self._trained_parameters(), []
        while steps == 0 or spent < amount:
            self.processes.leave_if_asked()
            self._step()
            steps, self.taken = steps + 1, self.taken + 1
            spent = self.purse.spent - begun  # one look at the clock, or a stall between two could leave no mean
            if spent > mean_from:
                counted += 1
                self._tail_mean = self._tail_mean or [one.detach().clone() for one in trained]
                for mean, one in zip(self._tail_mean, trained, strict=True):
                    mean.lerp_(one.detach(), 1 / counted)
            tell()
        self._check_finite()
        self._steps = steps
        return steps

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Within the block the model has the mean of its parameters over the last steps; then as before."""
        with self._undone():
            with torch.no_grad():
                for one, mean in zip(self._trained_parameters(), self._tail_mean, strict=True):
                    one.copy_(mean)
            self._refresh_statistics()
            self.model.eval()
            yield

    @contextmanager
    def decayed(self, steps: int) -> Iterator[None]:
        """Within the block the model is what a decay over so many steps makes of it; then as before."""
        with self._undone():
            self.model.train()
            try:
                for done in range(steps):
                    self.processes.leave_if_asked()
                    self._decay = (done, steps)
                    self._step()
            finally:
                self._decay = None
            self.model.eval()
            yield

    @contextmanager
    def _undone(self) -> Iterator[None]:
        """What happens within the block leaves no trace in the training."""
        place, losses = (self.epoch, self.step), self.losses
        model, optimizer = copy.deepcopy(self.model.state_dict()), copy.deepcopy(self.optimizer.state_dict())
        kept = None if self.perturbations is None else self.perturbations.kept.clone()
        try:
            yield
        finally:
            self.model.load_state_dict(model)
            self.optimizer.load_state_dict(optimizer)
            (self.epoch, self.step), self.losses = place, losses
            if self.perturbations is not None and kept is not None:
                self.perturbations.kept = kept

    def _trained_parameters(self) -> list[nn.Parameter]:
        return [one for one in self.model.parameters() if one.requires_grad]

    def _refresh_statistics(self) -> None:
        """Batch normalisation: the plain mean over the next batches, attacked as in training."""
        self.model.train()
        layers = [one for one in self.model.modules() if isinstance(one, _BatchNorm) and one.training]
        kept = [layer.momentum for layer in layers]
        for layer in layers:
            # The first batch replaces what there was; until then an attack meets statistics that are nearly right.
            layer.momentum = None
            if layer.num_batches_tracked is not None:
                layer.num_batches_tracked.zero_()
        # Like the judging, they take time and are not counted as operations: few where a slice is short.
        batches = min(_MOST_BATCHES, max(1, self._steps // _STATISTICS)) if layers else 0
        try:
            with torch.no_grad():
                for number in range(self.step, self.step + batches):
                    self.processes.leave_if_asked()
                    self.loss_of(self.epoch + number // self.batches.steps, number % self.batches.steps)
        finally:
            for layer, momentum in zip(layers, kept, strict=True):
                layer.momentum = momentum

    def _step(self) -> None:
        """One step, charged with what the first of its kind cost: while a radius grows, it begins at 0."""
        attacked = ramped_delta(self.recipe, self.epoch + self.step / self.batches.steps, fresh=self.fresh) > 0
        counts = self.purse.budget.unit == "operations" and attacked not in self._operations
        with Operations() if counts else nullcontext() as counter:  # nothing is compiled while somebody counts
            loss = self.update()
        if counter is not None:
            self._operations[attacked] = float(counter.total)
        self.purse.charge(self._operations.get(attacked, 0.0))
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
