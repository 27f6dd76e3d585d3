"""The fused module is the ensemble, with fewer operations."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from robust.export.fusion import fuse
from robust.train.members import architectures
from robust.train.members.ensemble import Ensemble
from torch import Tensor, nn

from robustinfer.card import InputSpec
from robustinfer.errors import ExportError

from .conftest import make_ensemble

SPEC = InputSpec(2, 5, 7)


def largest_difference(ensemble: Ensemble, spec: InputSpec) -> float:
    images = torch.rand(3, *spec.shape, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected, found = ensemble(images), fuse(ensemble, spec)(images)
    return float((found - expected).abs().max() / expected.abs().max())


@pytest.mark.parametrize("architecture", architectures())
def test_every_architecture_folds_completely(architecture: str) -> None:
    width = 0.05 if architecture.startswith("imagenet") else 0.25
    ensemble, card = make_ensemble(architecture, shape=(3, 33, 35), width=width)
    fused = fuse(ensemble, card.input)
    assert not any(isinstance(module, nn.BatchNorm2d) for module in fused.modules())
    assert fused.factors == (1.0, 1.0)
    assert largest_difference(ensemble, card.input) < 1e-5


def test_normalisation_that_turns_a_maximum_round_stays_behind_the_pool() -> None:
    """max(s x) is s max(x) for a positive s only: with a negative one the file keeps both as they are."""
    ensemble, card = make_ensemble("fast", shape=(3, 33, 35), width=0.25)
    turned = next(module for module in ensemble.modules() if isinstance(module, nn.BatchNorm2d))
    with torch.no_grad():
        turned.weight[0] *= -1
    fused = fuse(ensemble, card.input)
    assert sum(isinstance(module, nn.BatchNorm2d) for module in fused.modules()) == 1
    assert largest_difference(ensemble, card.input) < 1e-5


@given(
    st.sampled_from(["cnn", "resnet12"]),
    st.integers(1, 4),
    st.integers(8, 21),
    st.integers(8, 21),
    st.lists(st.floats(-3, 3).filter(lambda beta: abs(beta) > 1e-3), min_size=1, max_size=5),
    st.integers(2, 11),
    st.integers(0, 2**31),
)
@settings(max_examples=10, deadline=None)
def test_fusion_keeps_the_function(
    architecture: str, channels: int, height: int, width: int, betas: list[float], classes: int, seed: int
) -> None:
    ensemble, card = make_ensemble(
        architecture, shape=(channels, height, width), betas=betas, classes=classes, width=0.2, seed=seed
    )
    assert largest_difference(ensemble, card.input) < 1e-4


def test_the_ensemble_is_left_alone() -> None:
    ensemble, card = make_ensemble("resnet12", shape=(1, 9, 9))
    before = {name: tensor.clone() for name, tensor in ensemble.state_dict().items()}
    fuse(ensemble, card.input)
    assert all(torch.equal(before[name], tensor) for name, tensor in ensemble.state_dict().items())


class _Standardised(nn.Conv2d):
    """Weight standardisation: the weight that is used is not the one that is held."""

    def forward(self, input: Tensor) -> Tensor:
        mean, std = self.weight.mean(dim=(1, 2, 3), keepdim=True), self.weight.std(dim=(1, 2, 3), keepdim=True)
        weight = (self.weight - mean) / (std + 1e-5)
        return torch.nn.functional.conv2d(input, weight, self.bias, self.stride, self.padding)


class _Scaled(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) * 3


class _Named(nn.Conv2d):
    """A class of its own that changes nothing."""


class _Doubled(nn.BatchNorm2d):
    def forward(self, input: Tensor) -> Tensor:
        return 2 * super().forward(input)


class _Own(nn.Module):
    """A user's network of a convolution and a linear layer, each with its batch normalisation."""

    def __init__(self, convolution: nn.Module, linear: nn.Module, normalisation: nn.Module) -> None:
        super().__init__()
        self.convolution, self.first = convolution, normalisation
        self.linear, self.second = linear, nn.BatchNorm1d(3)
        for layer in (self.first, self.second):
            for tensor in (layer.weight, layer.bias, layer.running_mean, layer.running_var):
                assert isinstance(tensor, Tensor)
                tensor.data.uniform_(0.5, 1.5)

    def forward(self, image: Tensor) -> Tensor:
        hidden = torch.relu(self.first(self.convolution(image)))
        scores: Tensor = self.second(self.linear(hidden.flatten(1)))
        return scores


def _spectral(layer: nn.Module) -> nn.Module:
    return torch.nn.utils.parametrizations.spectral_norm(layer)


def _hooked(layer: nn.Module) -> nn.Module:
    layer.register_forward_hook(lambda _, inputs, result: result + 1)
    return layer


@pytest.mark.parametrize(
    ("change", "left"),
    [
        ("none", 0),
        ("named", 0),
        ("spectral convolution", 1),
        ("spectral linear", 1),
        ("weight norm", 1),
        ("standardised", 1),
        ("scaled linear", 1),
        ("doubled normalisation", 1),
        ("hook", 1),
    ],
)
def test_layers_of_the_user_s_own_are_left_as_they_are(change: str, left: int) -> None:
    torch.manual_seed(0)
    convolution: nn.Module = {"standardised": _Standardised, "named": _Named}.get(change, nn.Conv2d)(2, 4, 3)
    linear: nn.Module = (_Scaled if change == "scaled linear" else nn.Linear)(4 * 3 * 5, 3)
    normalisation = (_Doubled if change == "doubled normalisation" else nn.BatchNorm2d)(4)
    wrap: dict[str, Callable[[nn.Module], nn.Module]] = {
        "spectral convolution": _spectral,
        "hook": _hooked,
        "weight norm": nn.utils.parametrizations.weight_norm,
    }
    if change in wrap:
        convolution = wrap[change](convolution)
    linear = _spectral(linear) if change == "spectral linear" else linear
    member = _Own(convolution, linear, normalisation).eval()
    ensemble = Ensemble([member, member], [1.0, 0.5]).freeze()
    fused = fuse(ensemble, SPEC)
    normalisations = [
        module for module in fused.members[0].modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)
    ]
    assert len(normalisations) == left, "what is torch's own is folded, and only that"
    assert largest_difference(ensemble, SPEC) < 1e-5


def test_a_fold_that_changes_the_function_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Should a layer look like torch's and not be it, the probe tells."""
    monkeypatch.setattr("robust.export.fusion._plain", lambda layer: True)
    member = _Own(_Standardised(2, 4, 3), nn.Linear(4 * 3 * 5, 3), nn.BatchNorm2d(4)).eval()
    assert largest_difference(Ensemble([member], [1.0]).freeze(), SPEC) < 1e-5


class _Softmax(nn.Module):
    """Goes on after its head: scaling the head is not scaling the scores."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(SPEC.size, 3)

    def forward(self, image: Tensor) -> Tensor:
        return torch.softmax(self.head(image.flatten(1)), dim=1)


class _Headless(nn.Module):
    """A convolution used twice, so that its batch normalisation must stay, and no head."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(2, 2, 3, padding=1)
        self.normalisation = nn.BatchNorm2d(2)
        self.normalisation.running_mean = torch.tensor([0.3, -0.2])

    def forward(self, image: Tensor) -> Tensor:
        features: Tensor = self.convolution(self.normalisation(self.convolution(image)))
        return features.mean((2, 3))


class _Branching(nn.Module):
    """Control flow that tracing cannot follow."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(2, 3, 3)
        self.normalisation = nn.BatchNorm2d(3)

    def forward(self, image: Tensor) -> Tensor:
        features: Tensor = self.normalisation(self.convolution(image))
        return features.mean((2, 3)) if float(features.sum()) > -1e9 else features.amax((2, 3))


@pytest.mark.parametrize("member", [_Softmax, _Headless, _Branching])
def test_what_cannot_be_folded_stays(member: type[nn.Module]) -> None:
    torch.manual_seed(0)
    ensemble = Ensemble([member(), member()], [0.7, -1.3]).freeze()
    assert fuse(ensemble, SPEC).factors[0] == pytest.approx(0.7)
    assert largest_difference(ensemble, SPEC) < 1e-5


def test_members_of_different_normalisation() -> None:
    ensemble, card = make_ensemble()
    ensemble.members[1].get_buffer("mean").add_(0.1)
    assert largest_difference(ensemble, card.input) < 1e-5


def test_training_mode_is_refused() -> None:
    ensemble, card = make_ensemble("resnet12", shape=(1, 9, 9))
    ensemble.members[1].train()
    with pytest.raises(ExportError, match="member 2 is in training mode"):
        fuse(ensemble, card.input)


def test_no_members_and_missing_weights_are_refused() -> None:
    ensemble, card = make_ensemble()
    ensemble.betas = torch.ones(3)
    with pytest.raises(ExportError, match="one beta per member"):
        fuse(ensemble, card.input)
    ensemble.members = nn.ModuleList()
    with pytest.raises(ExportError, match="at least one member"):
        fuse(ensemble, card.input)


def test_weights_that_are_not_finite_are_refused() -> None:
    ensemble, card = make_ensemble()
    next(ensemble.members[0].parameters()).data.view(-1)[0] = float("nan")
    with pytest.raises(ExportError, match="Member 1 has parameters that are not finite"):
        fuse(ensemble, card.input)
