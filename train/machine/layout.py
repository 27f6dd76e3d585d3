"""The memory layout of a training: channels last where the recipe asks for it, unless this torch would crash."""

import torch
from torch import nn

from robustinfer.errors import RecipeError

from ..recipe import Recipe

__all__ = ["check_layout"]

_SAFE_CHANNELS = 8


def check_layout(recipe: Recipe, model: nn.Module, device: torch.device) -> None:
    """Refuse what corrupts memory instead of failing.

    With torch 2.13 on a CPU the backward pass of a 1x1 convolution with a stride, of fewer than 8 channels that lie
    last, writes beyond its memory: the process dies, or worse, continues. torch.compile chooses that layout by itself.
    """
    if device.type != "cpu" or not (recipe.channels_last or recipe.compile):
        return
    for name, layer in model.named_modules():
        if (
            isinstance(layer, nn.Conv2d)
            and layer.kernel_size == (1, 1)
            and max(layer.stride) > 1
            and layer.in_channels < _SAFE_CHANNELS
        ):
            field = "channels_last" if recipe.channels_last else "compile"
            raise RecipeError(
                f"The field `{field}` would crash torch on a CPU: the strided 1x1 convolution {name} has "
                f"{layer.in_channels} channels, and fewer than {_SAFE_CHANNELS} corrupt memory in this layout. Leave "
                f"`{field}` off, or use a larger `width`."
            )
