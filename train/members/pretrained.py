"""Parameters that somebody trained before, read from a file and put into a member."""

import pickle
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from robustinfer.errors import RecipeError

from . import Member

__all__ = ["fill", "read_parameters"]

_PICKLED = {".pth", ".pt", ".bin", ".ckpt"}


def read_parameters(path: Path) -> dict[str, Tensor]:
    """The tensors of a .safetensors file or of a saved `state_dict()`, by name. Nothing but tensors is unpickled."""
    if not path.is_file():
        raise RecipeError(f"There is no file of parameters {path}.")
    suffix = path.suffix.lower()
    if suffix != ".safetensors" and suffix not in _PICKLED:
        raise RecipeError(f"Parameters are a .safetensors or .pth file; found {path.name}.")
    try:
        content = load_file(path) if suffix == ".safetensors" else torch.load(path, "cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise RecipeError(
            f"{path} holds more than tensors, and nothing else is unpickled: save the module's state_dict() instead."
        ) from error
    except Exception as error:  # the readers raise whatever a damaged file does to them
        sentence = next(iter(str(error).splitlines()), type(error).__name__)
        raise RecipeError(f"{path} is damaged, or not a file of parameters: {sentence}") from error
    for key in ("state_dict", "model", "model_state_dict"):  # what training scripts put around it
        if isinstance(content, Mapping) and isinstance(content.get(key), Mapping):
            content = content[key]
    if not isinstance(content, Mapping) or not all(isinstance(value, Tensor) for value in content.values()):
        raise RecipeError(f"{path} is not a state_dict: names with tensors were expected.")
    if content and all(name.startswith("module.") for name in content):  # of a module that was trained in parallel
        return {name.removeprefix("module."): tensor for name, tensor in content.items()}
    return dict(content)


def fill(member: Member, state: Mapping[str, Tensor], *, source: str) -> tuple[str, ...]:
    """Put the parameters into the member; the names of those that keep their random values.

    The names are those of the member itself, with its normalisation, or of the network inside it. Only the last linear
    layer may have another shape, because it was trained for other classes: it stays as it is.
    """
    found = dict(state)
    whole = {"mean", "std"} <= set(found) and any(name.startswith("network.") for name in found)
    target: nn.Module = member if whole else member.network
    own = target.state_dict()
    found |= {name: own[name] for name in own if name.endswith("num_batches_tracked") and name not in found}
    missing, unexpected = sorted(set(own) - set(found)), sorted(set(found) - set(own))
    if missing or unexpected:
        first = f"they lack {missing[0]}" if missing else f"they have {unexpected[0]}, which the network lacks"
        raise RecipeError(
            f"The parameters of {source} do not fit the architecture: {first} ({len(missing)} missing names, "
            f"{len(unexpected)} unexpected)."
        )
    last = [name for name, layer in target.named_modules() if isinstance(layer, nn.Linear)][-1:]
    head = {f"{name}.{kind}" for name in last for kind in ("weight", "bias")}
    other = sorted(name for name in own if found[name].shape != own[name].shape)
    for name in other:
        if name not in head:
            raise RecipeError(
                f"The parameters of {source} do not fit the architecture: {name} has the shape "
                f"{tuple(found[name].shape)}; expected {tuple(own[name].shape)}."
            )
    target.load_state_dict({name: own[name] if name in other else tensor for name, tensor in found.items()})
    return tuple(other)
