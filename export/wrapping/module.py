"""Wrapping a torch module: `module:factory` and a file of parameters become one network, pixels in [0,1] to scores."""

import os
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from robustinfer.errors import ExportError, RecipeError

__all__ = ["Single", "load_module", "single"]


class Single(nn.Module):
    """An ensemble of one network."""

    def __init__(self, member: nn.Module) -> None:
        super().__init__()
        self.members = nn.ModuleList([member])
        self.betas = torch.ones(1)

    def forward(self, image: Tensor) -> Tensor:
        scores: Tensor = self.members[0](image)
        return scores


class _Normalised(nn.Module):
    """A network behind its normalisation, with the names by which fusion knows a member."""

    mean: Tensor
    std: Tensor

    def __init__(self, network: nn.Module, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        self.network = network
        self.register_buffer("mean", torch.tensor(mean, dtype=torch.float32).reshape(1, -1, 1, 1))
        self.register_buffer("std", torch.tensor(std, dtype=torch.float32).reshape(1, -1, 1, 1))

    def forward(self, image: Tensor) -> Tensor:
        scores: Tensor = self.network((image - self.mean) / self.std)
        return scores


class _Logits(nn.Module):
    """A network that answers with an object whose `logits` are its scores."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, image: Tensor) -> Tensor:
        scores: Tensor = self.network(image).logits
        return scores


def single(module: nn.Module, mean: Sequence[float], std: Sequence[float], shape: tuple[int, int, int]) -> Single:
    """The module in evaluation mode behind its normalisation; one that is not a classifier is refused."""
    network = module.to(device="cpu", dtype=torch.float32).eval().requires_grad_(False)
    try:
        with torch.inference_mode():
            found = network(torch.zeros(2, *shape))
    except Exception as error:  # whatever the user's code raises
        sentence = next(iter(str(error).splitlines()), type(error).__name__)
        raise ExportError(f"The network does not take images of shape {shape}: {sentence}") from error
    if isinstance(getattr(found, "logits", None), Tensor):
        network, found = _Logits(network).eval(), found.logits
    if not isinstance(found, Tensor):
        raise ExportError(
            f"A classifier gives one tensor of scores; this network gives a {type(found).__name__}, as detectors do."
        )
    if found.ndim != 2 or len(found) != 2:
        raise ExportError(
            f"A classifier gives scores of shape (images, classes); this network gives {tuple(found.shape)} for 2 "
            "images: it is not a classifier, or lacks its last layers."
        )
    return Single(_Normalised(network, mean, std)).eval()


def load_module(source: str, parameters: str | os.PathLike[str] | None = None) -> nn.Module:
    """The module that `module:factory` names, with the parameters of a .safetensors or .pth file.

    The factory is a function, a class or a module, and may be called with literals:
    `timm:create_model("resnet18", num_classes=10)`.
    """
    from robust.train.members.factory import Factory
    from robust.train.members.pretrained import read_parameters

    try:
        factory = Factory.find(source)
        ready = factory.arguments is None and isinstance(factory.target, nn.Module)
        network: nn.Module = factory.target if ready else factory.make()
        state = None if parameters is None else read_parameters(Path(parameters))
    except RecipeError as error:
        raise ExportError(str(error)) from error
    if state is not None:
        _fill(network, state, parameters)
    return network


def _fill(module: nn.Module, state: dict[str, Tensor], path: str | os.PathLike[str] | None) -> None:
    try:
        missing, unexpected = module.load_state_dict(state, strict=False)
    except RuntimeError as error:
        raise ExportError(f"{path} does not fit the network: {str(error).splitlines()[-1].strip()}") from error
    if missing or unexpected:
        first = f"it lacks {missing[0]}" if missing else f"it has {unexpected[0]}, which the network lacks"
        raise ExportError(
            f"{path} does not fit the network: {first} ({len(missing)} missing names, {len(unexpected)} unexpected)."
        )
