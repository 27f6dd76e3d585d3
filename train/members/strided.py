"""A convolution of stride 2 whose gradients are quick on a CPU, for the first layer of a network.

torch's own strided convolution takes far longer for the gradient at the image, which an attack needs, than for anything
else (benchmarks/speed/input_gradient.py has by how much). Here it is one matrix product: the kernel times the output's
gradient gives, for each entry (i, j) of the kernel, the gradient at the pixels that this entry meets, one an output;
these are added up pixel by pixel. A pixel is met by entries of one parity only, so the sums are kept as four images, of
the even and odd rows and columns of the padded one: there the pixels of an entry are a plain rectangle.

The gradient of the kernel is torch's own, which is quick if the image is laid out with its channels last. With a single
channel both layouts are the same memory, and torch goes by the strides.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

__all__ = ["StridedConvolution"]


class StridedConvolution(nn.Conv2d):
    """`nn.Conv2d` with stride 2 and half the (odd) kernel as padding: the same parameters, outputs and gradients.

    For batches, and for first gradients only. In evaluation mode parameters are not expected to be trained: then it is
    torch's own layer, which a tracer or an exporter can follow.
    """

    def __init__(self, before: int, after: int, kernel: int, *, bias: bool) -> None:
        super().__init__(before, after, kernel, stride=2, padding=kernel // 2, bias=bias)

    def forward(self, image: Tensor) -> Tensor:
        wanted = image.requires_grad or (self.training and self.weight.requires_grad and torch.is_grad_enabled())
        if not (wanted and image.device.type == "cpu" and image.dtype == self.weight.dtype):
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
        at_image = _image_gradient(gradient, weight, image.shape) if wanted[0] else None
        at_weight = _weight_gradient(gradient, weight, image) if wanted[1] else None
        return at_image, at_weight, gradient.sum(dim=(0, 2, 3)) if wanted[2] else None


def _weight_gradient(gradient: Tensor, weight: Tensor, image: Tensor) -> Tensor:
    restrided = image.shape[1] == 1 and weight.shape[-1] > 1  # not for 1x1: see layout.py
    if restrided:
        image = image.to(memory_format=torch.channels_last)
    pad = [weight.shape[-1] // 2] * 2
    options = (None, [2, 2], pad, [1, 1], False, [0, 0], 1, [False, True, False])
    found: Tensor = torch.ops.aten.convolution_backward(gradient, image, weight, *options)[1]
    return found.as_strided(weight.shape, weight.stride()) if restrided else found


def _image_gradient(gradient: Tensor, weight: Tensor, shape: torch.Size) -> Tensor:
    count, before, height, width = shape
    side, pad = weight.shape[-1], weight.shape[-1] // 2
    down, across = gradient.shape[2:]
    outputs = gradient.permute(0, 2, 3, 1).reshape(-1, len(weight))  # one row per output, one column per kernel
    kernels = weight.permute(1, 2, 3, 0).reshape(before * side * side, -1)
    met = (kernels @ outputs.T).view(before, side, side, count, down, across)
    rows, columns = down + pad, across + pad  # half the padded image: all outputs, and as far as the last entry reaches
    quarters = outputs.new_zeros(2, 2, before, count, rows, columns)
    for i in range(side):
        for j in range(side):
            quarters[i % 2, j % 2, :, :, i // 2 : i // 2 + down, j // 2 : j // 2 + across] += met[:, i, j]
    padded = quarters.permute(3, 2, 4, 0, 5, 1).reshape(count, before, 2 * rows, 2 * columns)
    return padded[:, :, pad : pad + height, pad : pad + width]
