"""TorchScript (.pt) and torch.export (.pt2) files of a fused ensemble.

torch writes what it knows about the exporting machine into both: source lines, paths, and names that count how much was
compiled before in the same process. All of that is taken out, so that equal ensembles give equal bytes.
"""

import contextlib
import io
import re
import warnings
from collections.abc import Callable, Iterator

import torch
from torch import nn

from robustinfer.card import CARD_KEY, Card

from .archive import unzipped, zipped
from .cascade import Cascade, Rule
from .fusion import Fused
from .sampler.torch import Sampler

__all__ = ["pt2_file", "scripted_cascade", "torchscript_file"]

_CARD_RECORD = f"extra/{CARD_KEY}.json"
_MANGLED = re.compile(rb"[./]___torch_mangle_\d+")
_MACHINE = ("stack_trace", "nn_module_stack", "source_fn_stack", "torch_fn", "from_node", "fwd_source_fn_stack")


def torchscript_file(fused: nn.Module, card: Card, *, sampler: bool) -> Callable[[Card], bytes]:
    """The TorchScript file as a function of the card inside it; a module that is TorchScript already stays as it is."""
    with _deprecated():
        module = fused if isinstance(fused, torch.jit.ScriptModule) else _traced(fused, _example(card, 2))
        if sampler:
            module = torch.jit.script(Sampler(module, card).eval())
        frozen = torch.jit.freeze(module.eval(), preserved_attrs=["sample"] if sampler else None)
        buffer = io.BytesIO()
        torch.jit.save(frozen, buffer)
    records = {
        _unmangle(name.encode()).decode(): _unmangle(content) if name.endswith((".py", "data.pkl")) else content
        for name, content in unzipped(buffer.getvalue()).items()
        if not name.endswith((".debug_pkl", "serialization_id"))
    }
    return lambda final: zipped({**records, _CARD_RECORD: final.dumps().encode()})


def scripted_cascade(fused: Fused, rule: Rule, card: Card) -> nn.Module:
    """The cascade of a fused ensemble: its parts traced, and between them a program, since the batch shrinks there."""
    images = _example(card, 2)
    with _deprecated(), torch.no_grad():
        features = fused.front(images)
        members = [_traced(member, features) for member in fused.members]
        cascade = Cascade(_traced(fused.front, images), members, fused.factors, rule)
        program: nn.Module = torch.jit.script(cascade.eval())
    return program


def _traced(module: nn.Module, example: torch.Tensor) -> nn.Module:
    with torch.no_grad():
        traced: nn.Module = torch.jit.trace(module, example, check_trace=False)
    return traced


@contextlib.contextmanager
def _deprecated() -> Iterator[None]:
    """TorchScript is deprecated in favour of torch.export; this file format is for those who still run it."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*torch.jit.*", category=DeprecationWarning)
        yield


def _unmangle(content: bytes) -> bytes:
    """Class names without the number torch adds when it has compiled a class of that name before."""
    return _MANGLED.sub(b"", content)


def pt2_file(fused: Fused, card: Card) -> Callable[[Card], bytes]:
    """The pt2 file as a function of the card inside it."""
    batch = torch.export.Dim("batch", min=1, max=2**31 - 1)
    program = torch.export.export(fused, (_example(card, 2),), dynamic_shapes=({0: batch},))
    for graph_module in program.graph_module.modules():
        for node in graph_module.graph.nodes if isinstance(graph_module, torch.fx.GraphModule) else ():
            for key in _MACHINE:
                node.meta.pop(key, None)
    buffer = io.BytesIO()
    torch.export.save(program, buffer)
    records = {
        name: content for name, content in unzipped(buffer.getvalue()).items() if not name.endswith("serialization_id")
    }
    return lambda final: zipped({**records, _CARD_RECORD: final.dumps().encode()})


def _example(card: Card, batch: int) -> torch.Tensor:
    return torch.zeros(batch, *card.input.shape)
