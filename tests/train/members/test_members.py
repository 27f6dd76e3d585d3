"""Members: the depths their names promise, reproducible weights, normalisation inside."""

import pytest
import torch
from robust.train.members import Member, architectures, build_member
from torch import nn

from robustinfer import InputSpec
from robustinfer.errors import RecipeError

SHAPES = {"lenet": (1, 28, 28), "cnn": (1, 28, 28), "cnn7": (1, 28, 28), "cnn7-norm": (1, 28, 28)}


def build(name: str, *, width: float = 0.25, seed: int = 0, shape: tuple[int, int, int] | None = None) -> Member:
    spec = InputSpec(*(shape or SHAPES.get(name, (3, 32, 32))))
    mean, std = torch.full((spec.channels,), 0.4), torch.full((spec.channels,), 0.2)
    return build_member(name, input=spec, classes=7, mean=mean, std=std, width=width, seed=seed)


@pytest.mark.parametrize("name", architectures())
def test_every_architecture_gives_scores_and_has_a_head(name: str) -> None:
    member = build(name)
    assert isinstance(member.head, nn.Linear)
    assert member.head.out_features == 7


def test_cnn7_is_cnn_but_for_its_first_kernel() -> None:
    shapes, others = (
        [
            tuple(weights.shape)
            for name, weights in build(kind).network.named_parameters()
            if name != "features.0.weight"
        ]
        for kind in ("cnn", "cnn7")
    )
    assert shapes == others
    assert build("cnn7").network.get_parameter("features.0.weight").shape[2:] == (7, 7)


def test_cnn7_norm_is_cnn7_with_batch_normalisation_behind_each_layer_but_the_last() -> None:
    plain, normalised = build("cnn7").network, build("cnn7-norm").network
    layers = [module for module in normalised.modules() if isinstance(module, nn.Conv2d | nn.Linear)]
    norms = [module for module in normalised.modules() if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d)]
    assert [norm.num_features for norm in norms] == [len(layer.weight) for layer in layers[:-1]]
    assert [layer.bias is None for layer in layers] == [True, True, True, False]
    shapes = [layer.weight.shape for layer in plain.modules() if isinstance(layer, nn.Conv2d | nn.Linear)]
    assert [layer.weight.shape for layer in layers] == shapes


@pytest.mark.parametrize("depth", [12, 18, 20, 32, 110])
def test_depth_counts_convolutions_and_the_head(depth: int) -> None:
    """depth = 2 * blocks + 2: two convolutions a block, the first one and the linear layer; shortcuts do not count."""
    member = build(f"resnet{depth}", width=0.125)
    main = [m for m in member.network.modules() if isinstance(m, nn.Conv2d) and m.kernel_size == (3, 3)]
    assert len(main) + 1 == depth


@pytest.mark.parametrize(("depth", "expected"), [(18, 18), (20, 20), (32, 32)])
def test_depth_of_the_imagenet_networks(depth: int, expected: int) -> None:
    member = build(f"imagenet-resnet{depth}", width=0.125)
    main = [m for m in member.network.modules() if isinstance(m, nn.Conv2d) and m.kernel_size != (1, 1)]
    assert len(main) + 1 == expected


def test_resnet20_has_the_published_number_of_weights() -> None:
    """He et al.: 0.27 million for 10 classes; ours differs by its 1x1 shortcuts and the class count."""
    weights = sum(parameter.numel() for parameter in build("resnet20", width=1.0).parameters())
    assert weights == pytest.approx(272_000, rel=0.02)


def test_the_fast_network_costs_what_it_says() -> None:
    """33 million multiplications and half a million parameters at half width; the stem and its two pools come first."""
    from torch.utils.flop_counter import FlopCounterMode

    member = build("fast", width=0.5)
    with FlopCounterMode(display=False) as counter:
        member(torch.zeros(1, 3, 32, 32))
    assert counter.get_total_flops() / 2 == pytest.approx(33e6, rel=0.02)  # a multiplication and an addition each
    assert sum(parameter.numel() for parameter in member.parameters()) == pytest.approx(500_000, rel=0.02)
    shapes = [tuple(layer.weight.shape) for layer in member.network.modules() if isinstance(layer, nn.Conv2d)]
    assert shapes[0] == (24, 3, 2, 2)
    assert [shape[0] for shape in shapes[1:]] == [32, 32, 128, 128, 128, 128]


def test_the_fast_network_refuses_images_that_its_pools_would_leave_nothing_of() -> None:
    assert build("fast", shape=(1, 9, 9))(torch.zeros(2, 1, 9, 9)).shape == (2, 7)
    with pytest.raises(RecipeError, match=r"fast does not take images of shape \(1, 8, 8\)"):
        build("fast", shape=(1, 8, 8))


def test_the_seed_gives_the_weights_and_the_global_stream_is_left_alone() -> None:
    before = torch.random.get_rng_state()
    one, again, other = build("cnn"), build("cnn"), build("cnn", seed=1)
    assert torch.equal(torch.random.get_rng_state(), before)
    image = torch.rand(3, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    assert torch.equal(one(image), again(image))
    assert not torch.equal(one(image), other(image))


def test_normalisation_is_inside() -> None:
    member = build("cnn")
    image = torch.rand(2, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(member(image), member.network((image - 0.4) / 0.2))
    assert {"mean", "std"} <= set(member.state_dict())


def test_width_scales_the_channels() -> None:
    narrow, wide = build("cnn", width=0.5), build("cnn", width=2.0)
    assert narrow.head is not None
    assert wide.head is not None
    assert (narrow.head.in_features, wide.head.in_features) == (64, 256)


def two_linear_layers(input: InputSpec, classes: int) -> nn.Module:
    """A user's own architecture, without a layer called head."""
    return nn.Sequential(nn.Flatten(), nn.Linear(input.size, 8), nn.ReLU(), nn.Linear(8, classes))


def test_an_architecture_of_the_users_own(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "users_networks", sys.modules[__name__])
    member = build("users_networks:two_linear_layers", shape=(1, 8, 8))
    assert member.head is None
    assert member(torch.rand(4, 1, 8, 8, generator=torch.Generator().manual_seed(0))).shape == (4, 7)


def without_arguments() -> nn.Module:
    """A user's network that is always the same."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 7))


def broken(input: InputSpec, classes: int) -> nn.Module:
    raise OSError("no such weights")


def test_a_factory_is_called_with_what_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "users_networks", sys.modules[__name__])
    for name in ("users_networks:without_arguments", "users_networks:without_arguments()"):
        assert build(name, shape=(1, 8, 8))(torch.zeros(4, 1, 8, 8)).shape == (4, 7)
    with pytest.raises(RecipeError, match="users_networks:broken failed: OSError: no such weights"):
        build("users_networks:broken", shape=(1, 8, 8))


def test_gradients_keep_the_layout_of_the_images_on_their_way_back() -> None:
    """Behind the flattening the gradient has the channels first; layers before it get it as their outputs are."""
    network = build("cnn7-norm").network.to(memory_format=torch.channels_last).train()  # type: ignore[call-overload]
    layouts = {}

    def note(module: nn.Module, _: object, outputs: tuple[torch.Tensor, ...]) -> None:
        layouts[module] = outputs[0].is_contiguous(memory_format=torch.channels_last)

    layers = [layer for layer in network.modules() if isinstance(layer, nn.BatchNorm2d | nn.Conv2d)]
    for layer in [*layers, network.features[5]]:
        layer.register_full_backward_hook(note)
    image = (
        torch.rand(3, 1, 28, 28, generator=torch.Generator().manual_seed(0))
        .to(memory_format=torch.channels_last)
        .requires_grad_()
    )
    network(image).square().sum().backward()
    assert len(layouts) == 5
    assert all(layouts.values())
