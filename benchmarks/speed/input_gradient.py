"""How quickly a member's gradients are computed on a CPU: by the first layer of `cnn7-norm` and by torch.

    python benchmarks/speed/input_gradient.py [--repeats 15] [--quick]

Claims: the gradient at the image through the first layer (7x7, stride 2, one input channel) takes at most 0.5 of the
time of torch's own; the pass of an attack through the whole member (forward and backward to the image) at most 0.85;
the forward and backward pass of a training with kept perturbations at most 0.75, and at most 1.5 times that of plain
training. With the channels first, as recipes have it by default, plain training takes at most 0.9.

Members of width 0.5 and 1, 512 images of 28x28 (two noisy copies of 256), channels last, one thread, processor seconds.
The contestants take turns, each runs once before; medians of the ratios, repeat by repeat, count. Weights and gradients
are the same to rounding (tests/train/test_strided.py). Hardware: any CPU; the JSON names it.
"""

import argparse
import copy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from robust.train.machine.memory import keep_freed_memory
from robust.train.members import Member, build_member
from robust.train.members.strided import StridedConvolution
from torch import Tensor, nn

from robustinfer import InputSpec

sys.path.append(str(Path(__file__).resolve().parents[2]))  # for `benchmarks`, which is not installed
from benchmarks.lib.record import Timing, interleaved, median, record, verdict

WIDTHS = (0.5, 1.0)
IMAGES = 512


def plain(layer: nn.Conv2d) -> nn.Conv2d:
    """torch's own convolution with the same weights."""
    shape = (layer.in_channels, layer.out_channels, layer.kernel_size[0])
    twin = nn.Conv2d(*shape, stride=2, padding=layer.kernel_size[0] // 2, bias=layer.bias is not None)
    twin.load_state_dict(layer.state_dict())
    return twin


def with_plain_layer(member: Member) -> Member:
    """The member with torch's convolution in the first place."""
    twin = copy.deepcopy(member)
    features: Any = twin.network.features
    features[0] = plain(features[0])
    return twin.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


def first(module: Any) -> Any:
    """A copy with the channels first: of a network, or of images."""
    return copy.deepcopy(module).to(memory_format=torch.contiguous_format)


def attack(network: nn.Module, images: Tensor) -> Callable[[], Any]:
    """Forward, and backward to the image; the weights are frozen."""
    frozen = copy.deepcopy(network).eval().requires_grad_(False)
    x = images.clone().requires_grad_()
    return lambda: torch.autograd.grad(frozen(x).square().sum(), x)


def training(network: nn.Module, images: Tensor, *, kept: bool) -> Callable[[], Any]:
    """Forward, and backward to the weights; with kept perturbations to the image as well."""
    trained = copy.deepcopy(network).train()
    x = images.clone().requires_grad_(kept)

    def step() -> None:
        trained.zero_grad(set_to_none=True)
        trained(x).square().sum().backward()

    return step


def measure(width: float, repeats: int) -> dict[str, Timing]:
    """Processor seconds of every contestant."""
    spec = InputSpec(channels=1, height=28, width=28)
    half = torch.full((1,), 0.5)
    member = build_member("cnn7-norm", input=spec, classes=10, mean=half, std=half, width=width)
    member.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    layer = member.get_submodule("network.features.0")
    assert isinstance(layer, StridedConvolution)
    images = torch.rand(IMAGES, *spec.shape).to(memory_format=torch.channels_last)
    theirs = with_plain_layer(member)
    contestants = {
        "layer": attack(layer, images),
        "layer, torch": attack(theirs.get_submodule("network.features.0"), images),
        "attack": attack(member, images),
        "attack, torch": attack(theirs, images),
        "kept": training(member, images, kept=True),
        "kept, torch": training(theirs, images, kept=True),
        "training": training(member, images, kept=False),
        "channels first": training(first(member), first(images), kept=False),
        "channels first, torch": training(first(theirs), first(images), kept=False),
    }
    return interleaved(contestants, repeats=repeats)


def judged(timings: dict[str, dict[str, Timing]]) -> list[dict[str, Any]]:
    """The claims for each width, from the raw timings."""
    claims = (
        ("gradient at the image through the first layer / torch's", "layer", "layer, torch", 0.5),
        ("pass of an attack / with torch's first layer", "attack", "attack, torch", 0.85),
        ("pass of a training with kept perturbations / with torch's first layer", "kept", "kept, torch", 0.75),
        ("pass of a training with kept perturbations / plain training", "kept", "training", 1.5),
        (
            "pass of a plain training, channels first / with torch's first layer",
            "channels first",
            "channels first, torch",
            0.9,
        ),
    )
    verdicts = []
    for width, found in timings.items():
        for claim, one, other, most in claims:
            pairs = zip(found[one]["cpu"], found[other]["cpu"], strict=True)
            ratio = median([ours / theirs for ours, theirs in pairs])
            verdicts.append(verdict(f"{claim}, {width}", ratio, most, at_least=False))
    return verdicts


def main() -> int:
    """Measure, print, record; the exit code says whether the claims hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--quick", action="store_true", help="one repeat, nothing recorded")
    options = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory(torch.device("cpu"))
    repeats = 1 if options.quick else options.repeats
    timings = {f"width {width:g}": measure(width, repeats) for width in WIDTHS}
    verdicts = judged(timings)
    if not options.quick:
        record("input_gradient", arguments={"repeats": repeats}, results={"verdicts": verdicts, "timings": timings})
    return 0 if all(found["holds"] for found in verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
