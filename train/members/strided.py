"""A convolution of stride 2 whose input gradient is quick on a CPU, for the first layer of a network under attack.

An attack needs the gradient at the image, for which torch's own strided convolution with one input channel takes far
longer than for anything else (benchmarks/input_gradient.py has by how much). Each pixel of the image takes part in the
outputs by one of four patterns, by its row and column being even or odd: so the gradient is one ordinary convolution of
the output's gradient with four small kernels for each input channel, whose results are interleaved.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

__all__ = ["StridedConvolution"]


class StridedConvolution(nn.Conv2d):
    """`nn.Conv2d` with stride 2 and half the (odd) kernel as padding: the same weights, outputs and gradients."""

    def __init__(self, before: int, after: int, kernel: int, *, bias: bool) -> None:
        super().__init__(before, after, kernel, stride=2, padding=kernel // 2, bias=bias)

    def forward(self, image: Tensor) -> Tensor:
        if not (image.requires_grad and image.device.type == "cpu" and image.dtype == self.weight.dtype):
            return super().forward(image)
        if torch.is_autocast_enabled("cpu"):  # there torch chooses the arithmetic of each layer
            return super().forward(image)
        scores: Tensor = _Strided.apply(image, self.weight, self.bias)  # type: ignore[no-untyped-call]
        return scores


class _Strided(torch.autograd.Function):
    """The convolution, with a backward pass of its own."""

    @staticmethod
    def forward(ctx: Any, image: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(image, weight)
        return functional.conv2d(image, weight, bias, stride=2, padding=weight.shape[-1] // 2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        image, weight = ctx.saved_tensors
        wanted = ctx.needs_input_grad
        at_image = _input_gradient(gradient, weight, image.shape) if wanted[0] else None
        at_weight = None
        if wanted[1]:
            pad = [weight.shape[-1] // 2] * 2
            options = (None, [2, 2], pad, [1, 1], False, [0, 0], 1, [False, True, False])
            at_weight = torch.ops.aten.convolution_backward(gradient, image, weight, *options)[1]
        return at_image, at_weight, gradient.sum(dim=(0, 2, 3)) if wanted[2] else None


def _input_gradient(gradient: Tensor, weight: Tensor, shape: torch.Size) -> Tensor:
    """Pixel 2a + u of the image meets output o with the kernel's entry i = 2(a - o) + u + pad, for u = 0 and 1.

    With d = a - o it is the sum over d of gradient[a - d] times weight[2d + u + pad]: an ordinary convolution.
    """
    after, before, side, _ = weight.shape
    pad = side // 2
    low, high = -((pad + 1) // 2), (side - 1 - pad) // 2  # all d for which some u gives an entry of the kernel
    count = high - low + 1
    # The kernel with zeros around it, so that entry 2(d - low) + u is weight[2d + u + pad].
    padded = functional.pad(weight, (-(2 * low + pad), 2 * count - side + 2 * low + pad) * 2)
    phases = padded.view(after, before, count, 2, count, 2).flip(2, 4)  # functional.conv2d correlates: d runs backwards
    kernels = phases.permute(1, 3, 5, 0, 2, 4).reshape(4 * before, after, count, count)
    reach = max(high, -low)
    rows, columns = ((length + 1) // 2 for length in shape[2:])
    # Few output channels are quicker with the channels first, whatever the layout of the network.
    found = functional.conv2d(gradient.contiguous(), kernels, padding=reach)
    begin = reach - high
    found = found[:, :, begin : begin + rows, begin : begin + columns]
    return functional.pixel_shuffle(found, 2)[:, :, : shape[2], : shape[3]]
