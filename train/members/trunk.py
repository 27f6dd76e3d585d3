"""A trunk that members share: the first member is a whole network, later ones have its trunk and a head of their own.

A network that can be cut says so by a method `parts()`: modules whose composition is the network, the stem first, then
its stages, last the layer that gives the scores. The trunk is the normalisation, the stem and the first `split` stages.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from robustinfer.card import InputSpec
from robustinfer.errors import RecipeError

if TYPE_CHECKING:
    from . import Member

__all__ = ["Trunk", "check_trunk", "own_tensors", "share_trunk", "shared_trunk"]


class Trunk:
    """The trunk of one member. Not a module: its layers are the member's, and so are those of `head` behind it."""

    def __init__(self, member: "Member", split: int) -> None:
        parts = _parts(member.network, split)
        self.member, self.split, self.frozen = member, split, False
        self.layers, self.head = parts[: split + 1], parts[split + 1 :]

    def features(self, image: Tensor) -> Tensor:
        """What the trunk makes of images in [0,1]."""
        return _compose(self.layers, (image - self.member.mean) / self.member.std)

    def scores(self, features: Tensor) -> Tensor:
        """What the member's own head makes of the features."""
        return _compose(self.head, features)

    def freeze(self) -> None:
        """Train the head only: no gradients for the trunk, and its batch normalisation stays in evaluation mode."""
        self.frozen = True
        for layer in self.layers:
            layer.requires_grad_(False).eval()

    def names(self) -> set[str]:
        """The names of its tensors in the member's `state_dict`."""
        inside = {id(tensor) for layer in self.layers for tensor in (*layer.parameters(), *layer.buffers())}
        tensors = (*self.member.named_parameters(), *self.member.named_buffers())
        return {"mean", "std"} | {name for name, tensor in tensors if id(tensor) in inside}


def share_trunk(member: "Member", split: int) -> "Member":
    """Let the member know its trunk; a network that cannot be cut there is refused."""
    member.trunk = Trunk(member, split)
    return member


def check_trunk(member: "Member", split: int, input: InputSpec) -> None:
    """Refuse a network that cannot be cut there, or whose parts are not the network: tried on two images."""
    trunk, training = Trunk(member, split), member.training
    images = torch.linspace(0.0, 1.0, 2 * input.size).reshape(2, *input.shape)
    with torch.no_grad():
        expected, found = member.eval()(images), trunk.scores(trunk.features(images))
    member.train(training)
    if expected.shape != found.shape or not torch.allclose(expected, found, rtol=1e-4, atol=1e-5, equal_nan=True):
        raise RecipeError(
            f"The method `parts()` of {type(member.network).__name__} lists modules whose composition is the network; "
            "called one after the other, these give other scores."
        )


def own_tensors(member: "Member") -> dict[str, Tensor]:
    """The tensors of a member but those of a trunk that another member has trained."""
    tensors: dict[str, Tensor] = member.state_dict()
    if member.trunk is None or not member.trunk.frozen:
        return tensors
    theirs = member.trunk.names()
    return {name: tensor for name, tensor in tensors.items() if name not in theirs}


def shared_trunk(members: Sequence[nn.Module]) -> list[Trunk] | None:
    """The trunks of these members if all are the same, number for number, so that one pass serves all; else None."""
    trunks = [trunk for member in members if isinstance(trunk := getattr(member, "trunk", None), Trunk)]
    if len(members) < 2 or len(trunks) < len(members) or len({trunk.split for trunk in trunks}) > 1:
        return None
    first = trunks[0].member.state_dict()
    for trunk in trunks[1:]:
        other = trunk.member.state_dict()
        if any(not torch.equal(first[name], other[name].to(first[name].device)) for name in trunk.names()):
            return None
    return trunks


def _parts(network: nn.Module, split: int) -> list[nn.Module]:
    found = getattr(network, "parts", None)
    parts = list(found()) if callable(found) else []
    if not parts or not all(isinstance(part, nn.Module) for part in parts):
        raise RecipeError(
            f'The field share = "trunk" needs a network that can be cut; {type(network).__name__} cannot: give it a '
            'method `parts()` that lists its stem, its stages and its last layer, or set share = "none".'
        )
    if split > len(parts) - 2:
        raise RecipeError(
            f"The field `split` counts stages behind the stem; {type(network).__name__} can be cut at 0 to "
            f"{len(parts) - 2}, found {split}."
        )
    return parts


def _compose(parts: Sequence[nn.Module], value: Tensor) -> Tensor:
    for part in parts:
        value = part(value)
    return value
