"""The strided convolution against torch's own: the same outputs and the same gradients, by another way."""

import itertools

import pytest
import torch
from robust.train.members.strided import StridedConvolution
from torch import nn

# torch itself corrupts memory with 1x1 kernels and the channels last (train/machine/layout.py).
FIRST, LAST = torch.contiguous_format, torch.channels_last


@pytest.mark.parametrize(("height", "width"), [(28, 28), (9, 14), (17, 7)])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(("kernel", "layout"), [(1, FIRST), *itertools.product((3, 5, 7, 9), (FIRST, LAST))])
@pytest.mark.parametrize(("dtype", "error"), [(torch.float64, 1e-12), (torch.float32, 1e-4)])
def test_outputs_and_gradients_are_those_of_torch(
    kernel: int, height: int, width: int, channels: int, layout: torch.memory_format, dtype: torch.dtype, error: float
) -> None:
    stream = torch.Generator().manual_seed(kernel)
    own = StridedConvolution(channels, 4, kernel, bias=True).to(dtype, memory_format=layout)  # type: ignore[call-overload]
    theirs = nn.Conv2d(channels, 4, kernel, stride=2, padding=kernel // 2).to(dtype)
    theirs.load_state_dict(own.state_dict())
    image = torch.randn(3, channels, height, width, dtype=dtype, generator=stream).to(memory_format=layout)
    results = []
    for layer in (own, theirs):
        x = image.clone().requires_grad_()
        scores = layer(x)
        weighted = torch.linspace(-1, 1, scores.numel(), dtype=dtype).view(scores.shape)
        results.append((scores, *torch.autograd.grad((scores * weighted).sum(), (x, *layer.parameters()))))
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, rtol=error, atol=error)
    assert own.weight.stride() == results[0][2].stride(), "distributed training wants them alike"


def test_its_own_backward_pass_is_used_where_the_image_has_a_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Breaking the function breaks the gradient at the image, and neither plain training nor plain answers."""
    layer, image = (
        StridedConvolution(1, 4, 7, bias=False),
        torch.rand(2, 1, 28, 28, generator=torch.Generator().manual_seed(0)),
    )
    monkeypatch.setattr("robust.train.members.strided._image_gradient", lambda *_: 1 / 0)
    layer(image).sum().backward()
    with pytest.raises(ZeroDivisionError):
        layer(image.requires_grad_()).sum().backward()


def test_its_own_backward_pass_is_used_where_the_kernel_is_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    """Breaking the function breaks training; an attack on frozen weights and a layer in evaluation do without it."""
    layer, image = (
        StridedConvolution(1, 4, 7, bias=False),
        torch.rand(2, 1, 28, 28, generator=torch.Generator().manual_seed(0)),
    )
    monkeypatch.setattr("robust.train.members.strided._weight_gradient", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        layer(image).sum().backward()
    layer.eval()(image).sum().backward()
    layer.requires_grad_(False).train()(image.clone().requires_grad_()).sum().backward()
