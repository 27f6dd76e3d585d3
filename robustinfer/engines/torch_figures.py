"""Operators and cost of TorchScript and pt2 files. This module imports torch: import it only where torch is wanted."""

import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from ..card import Card
from ..errors import ModelFileError

__all__ = ["torch_figures"]


def torch_figures(file: Path, card: Card | None) -> dict[str, Any]:
    """Operator counts, parameters, and the cost of one image, which is run once for that."""
    try:
        with warnings.catch_warnings():
            # TorchScript is deprecated in favour of torch.export, but files of it are in use and still run.
            warnings.filterwarnings("ignore", message=".*torch.jit.load.*", category=DeprecationWarning)
            if file.suffix.lower() == ".pt2":
                module, kinds, parameters = _exported(file)
            else:
                module, kinds, parameters = _scripted(file)
    except Exception as error:  # torch raises whatever its readers raise
        raise ModelFileError(
            f"{file} is damaged, or not a {file.suffix} model: {str(error).splitlines()[0]}."
        ) from error
    figures: dict[str, Any] = {"operators": dict(kinds.most_common()), "parameters": parameters}
    if card is not None:
        with FlopCounterMode(display=False) as counter, torch.inference_mode():
            module(torch.zeros(1, *card.input.shape))
        figures["flops"] = counter.get_total_flops()
    return figures


def _scripted(file: Path) -> tuple[Any, "Counter[str]", int]:
    module: Any = torch.jit.load(str(file), map_location="cpu")  # type: ignore[no-untyped-call]
    nodes = list(module.forward.graph.nodes())
    kinds = Counter(node.kind().removeprefix("aten::") for node in nodes if node.kind().startswith("aten::"))
    constants = (
        [node.t("value") for node in nodes if node.kind() == "prim::Constant" and node.kindOf("value") == "t"]
        if nodes
        else []
    )
    weights = [tensor for tensor in (*constants, *module.parameters()) if tensor.is_floating_point()]
    return module, kinds, sum(tensor.numel() for tensor in weights)


def _exported(file: Path) -> tuple[Any, "Counter[str]", int]:
    program = torch.export.load(file)
    calls = [node.target for node in program.graph.nodes if node.op == "call_function"]
    kinds = Counter(str(getattr(target, "overloadpacket", target)).removeprefix("aten.") for target in calls)
    return program.module(), kinds, sum(tensor.numel() for tensor in program.state_dict.values())
