"""Fusion: normalisation, all members and their betas become one module from pixels to ensemble scores.

What changes is arithmetic only, never the function: batch normalisation is folded into the convolution before it,
beta_t into the last layer of member t, and a normalisation or a trunk that all members share is computed once. Whatever
cannot be folded, in an architecture of the user's own, stays as it is: layers that do more than torch's are not
touched, and each fold is tried on a trial. Acceptance compares the result with the ensemble it came from.
"""

import copy
from collections import OrderedDict
from collections.abc import Sequence
from typing import Protocol, TypeGuard, cast

import torch
from robust.train.members.trunk import shared_trunk
from torch import Tensor, fx, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval, fuse_linear_bn_eval

from robustinfer.card import InputSpec
from robustinfer.errors import ExportError

__all__ = ["EnsembleLike", "Fused", "fuse"]


class EnsembleLike(Protocol):
    """What export needs of an ensemble: f = sum_t beta_t f_wt, pixels in [0,1] to scores."""

    @property
    def members(self) -> nn.ModuleList: ...

    @property
    def betas(self) -> Tensor: ...

    def __call__(self, image: Tensor) -> Tensor: ...


class Fused(nn.Module):
    """The whole ensemble as one module; `factors` are the betas that could not be folded, 1 for all others.

    `front` is what all members share: their normalisation, and their trunk if they have one. With `apart` the members'
    scores are not added up but given side by side, (batch, members, classes).
    """

    def __init__(
        self, members: Sequence[nn.Module], factors: Sequence[float], front: nn.Module, *, apart: bool = False
    ) -> None:
        super().__init__()
        self.apart = apart
        self.front = front
        self.members = nn.ModuleList(members)
        self.factors = tuple(factors)

    def forward(self, image: Tensor) -> Tensor:
        shared = self.front(image)
        terms = [
            member(shared) if factor == 1.0 else factor * member(shared)
            for member, factor in zip(self.members, self.factors, strict=True)
        ]
        if self.apart:
            return torch.stack(terms, dim=1)
        total: Tensor = terms[0]
        for term in terms[1:]:
            total = total + term
        return total


class _Normalise(nn.Module):
    mean: Tensor
    std: Tensor

    def __init__(self, mean: Tensor, std: Tensor) -> None:
        super().__init__()
        self.register_buffer("mean", mean.detach().clone())
        self.register_buffer("std", std.detach().clone())

    def forward(self, image: Tensor) -> Tensor:
        return (image - self.mean) / self.std


def fuse(ensemble: EnsembleLike, spec: InputSpec, *, apart: bool = False) -> Fused:
    """One module with the scores of the ensemble, on the CPU, in single precision; the ensemble is left alone.

    With `apart` it gives each member's own scores, without its beta.
    """
    members = list(ensemble.members)
    betas = [float(beta) for beta in ensemble.betas]
    _check(members, betas)
    if apart:
        betas = [1.0] * len(members)
    members = [copy.deepcopy(member).to(device="cpu", dtype=torch.float32).requires_grad_(False) for member in members]
    images = torch.linspace(0.0, 1.0, 2 * spec.size).reshape(2, *spec.shape)
    front, members = _share_trunk(members, images) or _share_normalisation(members)
    trial = front(images)
    folded = [_fold_beta(member, beta, trial) for member, beta in zip(members, betas, strict=True)]
    networks, factors = [_fold_batch_norm(member, trial) for member, _ in folded], [factor for _, factor in folded]
    return Fused(networks, factors, front, apart=apart).eval()


def _check(members: Sequence[nn.Module], betas: Sequence[float]) -> None:
    if not members:
        raise ExportError("An export needs an ensemble with at least one member; this one has none.")
    if len(members) != len(betas):
        raise ExportError(
            f"An ensemble has one beta per member; this one has {len(members)} members and {len(betas)} betas."
        )
    for number, member in enumerate(members, start=1):
        training = [name for name, module in member.named_modules() if module.training]
        if training:
            # Batch statistics would make the scores of an image depend on its neighbours, and the certificate void.
            raise ExportError(
                f"An export needs every member in evaluation mode; member {number} is in training mode "
                f"({training[0] or 'the whole of it'}): call ensemble.eval() first."
            )
        tensors = list(member.parameters()) + [buffer for buffer in member.buffers() if buffer.is_floating_point()]
        if not all(bool(torch.isfinite(tensor).all()) for tensor in tensors):
            raise ExportError(f"Member {number} has parameters that are not finite: the training went wrong there.")


def _share_trunk(members: list[nn.Module], images: Tensor) -> tuple[nn.Module, list[nn.Module]] | None:
    """Pass the trunk once for all members, where all have the same; what is left of each is its head."""
    trunks = shared_trunk(members)
    if trunks is None:
        return None
    first = trunks[0].member
    front = nn.Sequential(_Normalise(first.mean, first.std), *trunks[0].layers).eval()
    heads = [_named(trunk.head) for trunk in trunks]
    return _fold_batch_norm(front, images), heads


def _named(parts: Sequence[nn.Module]) -> nn.Module:
    """A chain whose last layer is called `head`, as that of a network is."""
    names = [*(f"part{number}" for number in range(len(parts) - 1)), "head"]
    return nn.Sequential(OrderedDict(zip(names, parts, strict=True))).eval()


def _share_normalisation(members: list[nn.Module]) -> tuple[nn.Module, list[nn.Module]]:
    """Normalise once for all members, where all have the same mean and std in front of their network."""
    parts = [(getattr(member, "mean", None), getattr(member, "std", None)) for member in members]
    networks = [getattr(member, "network", None) for member in members]
    mean, std = parts[0]
    if not isinstance(mean, Tensor) or not isinstance(std, Tensor):
        return nn.Identity(), members
    for (other_mean, other_std), network in zip(parts, networks, strict=True):
        if (
            not isinstance(network, nn.Module)
            or not isinstance(other_mean, Tensor)
            or not isinstance(other_std, Tensor)
        ):
            return nn.Identity(), members
        if not (torch.equal(mean, other_mean) and torch.equal(std, other_std)):
            return nn.Identity(), members
    return _Normalise(mean, std), cast("list[nn.Module]", networks)


def _fold_beta(member: nn.Module, beta: float, trial: Tensor) -> tuple[nn.Module, float]:
    """beta f = f with a scaled last layer; tried on a trial, because a user's network may continue after its head."""
    head = getattr(member, "head", None)
    if not isinstance(head, nn.Linear):
        return member, beta
    scaled = copy.deepcopy(member)
    last = cast(nn.Linear, scaled.head)
    with torch.no_grad():
        last.weight.mul_(beta)
        if last.bias is not None:
            last.bias.mul_(beta)
        expected, found = beta * member(trial), scaled(trial)
    return (scaled, 1.0) if _same(expected, found) else (member, beta)


def _same(expected: Tensor, found: Tensor) -> bool:
    """Whether two results differ by rounding only; what is not a number in one is not in the other."""
    finite = expected[expected.isfinite()].abs()
    largest = float(finite.max()) if finite.numel() else 0.0
    return expected.shape == found.shape and torch.allclose(
        expected, found, rtol=1e-4, atol=1e-5 * largest, equal_nan=True
    )


_KINDS = (nn.Conv2d, nn.Linear, nn.BatchNorm1d, nn.BatchNorm2d)


class _LayerTracer(fx.Tracer):
    """A tracer that stops at every layer that folding looks at, also of classes derived from torch's."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, (*_KINDS, nn.Flatten)) or super().is_leaf_module(m, module_qualified_name)


def _fold_batch_norm(member: nn.Module, trial: Tensor) -> nn.Module:
    """Fold each batch normalisation into the layer before it, if that layer's result goes nowhere else.

    The folded member is tried on a trial, because a user's layer may do more than its class says.
    """
    with torch.no_grad():
        expected = member(trial)
        try:
            folded = _folded(copy.deepcopy(member))
            found = folded(trial)
        except Exception:  # tracing runs the user's code: whatever it cannot follow stays unfolded, and still right
            return member
    return folded if _same(expected, found) else member


def _folded(member: nn.Module) -> nn.Module:
    traced = fx.GraphModule(member, _LayerTracer().trace(member))
    modules = dict(traced.named_modules())
    for node in list(traced.graph.nodes):
        pair = _foldable(node, modules)
        if pair is None:
            continue
        place, layer, normalisation = pair
        if isinstance(layer, nn.Linear):
            fused: nn.Module = fuse_linear_bn_eval(layer, cast(nn.BatchNorm1d, normalisation))
        else:
            fused = fuse_conv_bn_eval(layer, normalisation)
        traced.set_submodule(place, fused)
        modules[place] = fused
        node.replace_all_uses_with(cast(fx.Node, node.args[0]))
        traced.graph.erase_node(node)
    traced.delete_all_unused_submodules()
    traced.recompile()
    return traced


def _foldable(
    node: fx.Node, modules: dict[str, nn.Module]
) -> tuple[str, nn.Conv2d | nn.Linear, nn.BatchNorm2d | nn.BatchNorm1d] | None:
    """The name of the layer, the layer and the batch normalisation at `node`, if the two can become one."""
    normalisation = modules.get(str(node.target)) if node.op == "call_module" else None
    if not isinstance(normalisation, nn.BatchNorm1d | nn.BatchNorm2d) or normalisation.running_mean is None:
        return None
    before = node.args[0]
    if _only_feeds_the_next(before) and _passes(modules.get(str(before.target)), normalisation):
        before = before.args[0]
    if not _only_feeds_the_next(before):
        return None
    layer = modules.get(str(before.target))
    calls = sum(other.op == "call_module" and other.target == before.target for other in node.graph.nodes)
    if not isinstance(layer, nn.Conv2d | nn.Linear) or calls != 1:  # a layer used twice has another reader
        return None
    if isinstance(layer, nn.Linear) != isinstance(normalisation, nn.BatchNorm1d):
        return None
    return (str(before.target), layer, normalisation) if _plain(layer) and _plain(normalisation) else None


def _only_feeds_the_next(node: object) -> TypeGuard[fx.Node]:
    """Whether this is a module whose result one other node reads."""
    return isinstance(node, fx.Node) and node.op == "call_module" and len(node.users) == 1


def _passes(layer: nn.Module | None, normalisation: nn.BatchNorm1d | nn.BatchNorm2d) -> bool:
    """Whether normalisation behind this layer is the same as before it: a maximum commutes with what only increases."""
    increasing = normalisation.weight is not None and bool((normalisation.weight > 0).all())
    return type(layer) is nn.MaxPool2d and not layer.return_indices and increasing


def _plain(layer: nn.Module) -> bool:
    """Whether a layer computes what torch's class of its kind does, from the weights it holds.

    Spectral normalisation and weight standardisation make the weight anew in each call: by a parametrisation (which
    takes `weight` out of the parameters), by a hook, or in a class of their own. A class that only computes the same in
    another way is known by trying it.
    """
    if not {"weight", "bias"} <= layer._parameters.keys():
        return False
    if type(layer) in _KINDS and not layer._forward_pre_hooks and not layer._forward_hooks:
        return True
    generator = torch.Generator().manual_seed(0)
    if isinstance(layer, nn.Conv2d):
        sizes = zip(layer.kernel_size, layer.dilation, layer.stride, strict=True)
        sides = [dilation * (kernel - 1) + 1 + 2 * stride for kernel, dilation, stride in sizes]
        image = torch.randn(2, layer.in_channels, *sides, generator=generator)
        return _same(nn.Conv2d._conv_forward(layer, image, layer.weight, layer.bias), layer(image))
    if isinstance(layer, nn.Linear):
        features = torch.randn(2, layer.in_features, generator=generator)
        return _same(nn.functional.linear(features, layer.weight, layer.bias), layer(features))
    return False
