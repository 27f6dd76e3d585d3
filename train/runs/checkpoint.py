"""Where an interrupted stage resumes: one safetensors file with the position in its header, replaced as a whole."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from robustinfer.errors import RunError
from robustinfer.files import write_text

from .run import save_tensors

__all__ = ["Checkpoint", "flatten_optimizer", "prefixed", "restore_optimizer"]


@dataclass(frozen=True)
class Checkpoint:
    """A position within a stage, and every tensor that training resumes from."""

    stage: int
    epoch: int
    step: int
    state: dict[str, Any] = field(default_factory=dict)
    tensors: dict[str, Tensor] = field(default_factory=dict)

    def save(self, folder: Path) -> None:
        """Replace the run's checkpoint. Position and tensors are one file, so they can never disagree."""
        position = {"stage": self.stage, "epoch": self.epoch, "step": self.step, "state": self.state}
        save_tensors(folder / "resume.safetensors", self.tensors, {"position": json.dumps(position)})
        write_text(folder / "resume.json", json.dumps(position, indent=2) + "\n")

    @classmethod
    def load(cls, folder: Path) -> "Checkpoint | None":
        """The run's checkpoint, or None if there is none."""
        file = folder / "resume.safetensors"
        if not file.is_file():
            return None
        try:
            with safe_open(file, framework="pt") as stored:
                position = json.loads(stored.metadata()["position"])
                tensors = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118 (no mapping)
            return cls(position["stage"], position["epoch"], position["step"], position["state"], tensors)
        except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
            raise RunError(
                f"{file} is damaged ({error}); remove it to start its stage again: finished stages are kept."
            ) from error

    @staticmethod
    def clear(folder: Path) -> None:
        """Forget the checkpoint: its stage is finished."""
        for name in ("resume.safetensors", "resume.json"):
            (folder / name).unlink(missing_ok=True)

    def part(self, prefix: str) -> dict[str, Tensor]:
        """The tensors whose names start with `prefix.`, without it."""
        return {
            name.removeprefix(f"{prefix}."): tensor
            for name, tensor in self.tensors.items()
            if name.startswith(f"{prefix}.")
        }


def prefixed(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors under names that start with `prefix.`."""
    return {f"{prefix}.{name}": tensor for name, tensor in tensors.items()}


def flatten_optimizer(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimiser's moments, by `parameter number.name`."""
    return {
        f"{number}.{name}": value
        for number, values in optimizer.state_dict()["state"].items()
        for name, value in values.items()
        if isinstance(value, Tensor)
    }


def restore_optimizer(optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    """Put the moments of `flatten_optimizer` back."""
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        number, _, name = key.partition(".")
        state.setdefault(int(number), {})[name] = value
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
