"""The strided convolution against torch's own: the same outputs and the same gradients, by another way."""

import pytest
import torch
from robust.train.members.strided import StridedConvolution
from torch import nn


@pytest.mark.parametrize("kernel", [1, 3, 5, 7, 9])
@pytest.mark.parametrize(("height", "width"), [(28, 28), (9, 14), (17, 7)])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_outputs_and_gradients_are_those_of_torch(
    kernel: int, height: int, width: int, channels: int, layout: torch.memory_format
) -> None:
    stream = torch.Generator().manual_seed(kernel)
    own = StridedConvolution(channels, 4, kernel, bias=True).double().to(memory_format=layout)  # type: ignore[call-overload]
    theirs = nn.Conv2d(channels, 4, kernel, stride=2, padding=kernel // 2).double()
    theirs.load_state_dict(own.state_dict())
    image = torch.randn(3, channels, height, width, dtype=torch.float64, generator=stream).to(memory_format=layout)
    results = []
    for layer in (own, theirs):
        x = image.clone().requires_grad_()
        scores = layer(x)
        weighted = torch.linspace(-1, 1, scores.numel(), dtype=torch.float64).view(scores.shape)
        results.append((scores, *torch.autograd.grad((scores * weighted).sum(), (x, *layer.parameters()))))
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def test_its_own_backward_pass_is_used_where_the_image_has_a_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Breaking the function breaks the gradient at the image, and neither plain training nor plain answers."""
    layer, image = StridedConvolution(1, 4, 7, bias=False), torch.rand(2, 1, 28, 28)
    monkeypatch.setattr("robust.train.members.strided._input_gradient", lambda *_: 1 / 0)
    layer(image).sum().backward()
    with pytest.raises(ZeroDivisionError):
        layer(image.requires_grad_()).sum().backward()
