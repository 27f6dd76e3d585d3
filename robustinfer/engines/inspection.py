"""What is inside a model file: card, digest, operators and cost, without running it."""

import dataclasses
import math
import os
import warnings
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..card import CARD_KEY, Card
from ..errors import CardError, ModelFileError
from .engine import first_line
from .external import model_digest, model_files
from .loading import FORMATS, card_in_archive, load_engine, model_file

__all__ = ["Inspection", "inspect_model"]


@dataclass(frozen=True)
class Inspection:
    """A model file, described. `operators` counts the nodes of the scores graph and `sampler_operators` those of the
    sampler's branches; `flops` is the cost of one image, two per multiply-add of a convolution or matrix product, and
    in a cascade that of an image which all members are asked of.
    The three and `parameters` are None where the package that reads the graph (onnx, or torch) is not installed.
    """

    path: str
    format: str
    bytes: int
    digest: str
    card: Card | None
    operators: dict[str, int] | None = None
    sampler_operators: dict[str, int] | None = None
    parameters: int | None = None
    flops: int | None = None
    opset: int | None = None

    @property
    def expected_flops(self) -> float | None:
        """The cost of one sample, on average: less than `flops` for a cascade whose card says who is asked."""
        cascade = self.card.cascade if self.card else None
        if not cascade or "reached" not in cascade:
            return self.flops
        own = sum(cost * share for cost, share in zip(cascade["flops"]["members"], cascade["reached"], strict=True))
        return float(cascade["flops"]["shared"] + own)

    def to_json(self) -> dict[str, Any]:
        """The description as a JSON object."""
        card = self.card.to_json() if self.card else None
        return dataclasses.asdict(self) | {"card": card, "expected_flops": self.expected_flops}


def inspect_model(path: str | os.PathLike[str]) -> Inspection:
    """Describe a model file. Only the card is required to be readable; graph figures need onnx or torch."""
    file = model_file(path)
    suffix = file.suffix.lower()
    basics: dict[str, Any] = {
        "path": str(file),
        "format": FORMATS[suffix],
        "bytes": sum(part.stat().st_size for part in model_files(file)),
        "digest": model_digest(file),
    }
    if suffix == ".onnx":
        return Inspection(**basics, **_onnx_figures(file))
    card = card_in_archive(file)
    return Inspection(**basics, card=card, **_torch_figures(file, card))


def _onnx_figures(file: Path) -> dict[str, Any]:
    try:
        import onnx
        import onnx.inliner
    except ModuleNotFoundError:
        return {"card": load_engine(file, device="cpu", threads=1).card}
    try:
        model = onnx.load(file)
        if model.functions:
            model = onnx.inliner.inline_local_functions(model)
        text = {entry.key: entry.value for entry in model.metadata_props}.get(CARD_KEY)
        card = Card.loads(text) if text else None
        inferred = onnx.shape_inference.infer_shapes(_one_image(model, card), data_prop=True)
    except CardError:
        raise
    except Exception as error:  # protobuf's and onnx's errors have no common base class
        raise ModelFileError(f"{file} is damaged, or not an ONNX model: {first_line(error)}.") from error
    if not model.graph.node:
        raise ModelFileError(f"{file} is damaged, or not an ONNX model: it has no graph.")
    nested: Counter[str] = Counter(node.op_type for branch in _branches(model.graph.node) for node in _all(branch.node))
    return {
        "card": card,
        "operators": dict(Counter(node.op_type for node in model.graph.node).most_common()),
        "sampler_operators": dict(nested.most_common()) or None,
        "parameters": _parameters(model.graph),
        "flops": _flops(inferred.graph),
        "opset": next((entry.version for entry in model.opset_import if not entry.domain), None),
    }


def _one_image(model: Any, card: Card | None) -> Any:
    """The model with all that its input leaves open settled: one image, of the size that the card says."""
    sized = type(model)()
    sized.CopyFrom(model)
    del sized.graph.value_info[:]  # of the open sizes; inferred again from the settled ones
    weights = {tensor.name for tensor in sized.graph.initializer}
    inputs = [value for value in sized.graph.input if value.name not in weights]
    if inputs:
        wanted = (1, *card.input.shape) if card else (1,)
        for dim, size in zip(inputs[0].type.tensor_type.shape.dim, wanted, strict=False):
            if not dim.dim_value:
                dim.dim_value = size
    for value in sized.graph.output:  # their shape follows; a name that stays open would hide it
        value.type.tensor_type.ClearField("shape")
    return sized


def _branches(nodes: Iterable[Any]) -> Iterable[Any]:
    return (attribute.g for node in nodes for attribute in node.attribute if attribute.HasField("g"))


def _all(nodes: Iterable[Any]) -> Iterable[Any]:
    for node in nodes:
        yield node
        for branch in _branches([node]):
            yield from _all(branch.node)


def _parameters(graph: Any) -> int:
    """Numbers in the floating weights of the scores graph."""
    used = {name for node in graph.node for name in node.input}
    floating = {1, 10, 11, 16}  # float, float16, double, bfloat16 of ONNX's TensorProto
    return sum(
        math.prod(tensor.dims) for tensor in graph.initializer if tensor.name in used and tensor.data_type in floating
    )


def _flops(graph: Any) -> int | None:
    """Cost of one image: convolutions and matrix products, two operations per multiply-add. None if a shape is open."""
    shapes: dict[str, list[int]] = {tensor.name: list(tensor.dims) for tensor in graph.initializer}
    batches = [value.type.tensor_type.shape.dim[:1] for value in graph.input if value.name not in shapes]
    images = next((dim.dim_value for dims in batches for dim in dims if dim.dim_value), 1)
    for value in (*graph.input, *graph.value_info, *graph.output):
        sizes = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        if value.name not in shapes and len(sizes) > 1 and all(sizes[1:]):
            shapes[value.name] = [sizes[0] or images, *sizes[1:]]  # open behind the branch of a sampler: the batch
    total = 0
    for node in graph.node:
        if node.op_type in {"Conv", "Gemm", "MatMul"}:
            result, weight = shapes.get(node.output[0]), shapes.get(node.input[1])
            if not result or not weight:
                return None
            attributes = {attribute.name: attribute.i for attribute in node.attribute}
            if node.op_type == "Conv":
                inner = math.prod(weight[1:])
            else:
                inner = weight[-1] if attributes.get("transB") else weight[max(-2, -len(weight))]
            total += 2 * math.prod(result) * inner
    return total // images


def _torch_figures(file: Path, card: Card | None) -> dict[str, Any]:
    """Operator counts, parameters, and the cost of one image, which is run once for that; nothing without torch."""
    try:
        import torch
        from torch.utils.flop_counter import FlopCounterMode
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        return {}
    try:
        with warnings.catch_warnings():
            # TorchScript is deprecated in favour of torch.export, but files of it are in use and still run.
            warnings.filterwarnings("ignore", message=".*torch.jit.load.*", category=DeprecationWarning)
            module, kinds, parameters = (_exported if file.suffix.lower() == ".pt2" else _scripted)(torch, file)
    except Exception as error:  # torch raises whatever its readers raise
        raise ModelFileError(f"{file} is damaged, or not a {file.suffix} model: {first_line(error)}.") from error
    figures: dict[str, Any] = {"operators": dict(kinds.most_common()), "parameters": parameters}
    if card is not None and card.cascade is not None:  # one image would not reach all members
        figures["flops"] = card.cascade["flops"]["shared"] + sum(card.cascade["flops"]["members"])
    elif card is not None:
        with FlopCounterMode(display=False) as counter, torch.inference_mode():
            module(torch.zeros(1, *card.input.shape))
        figures["flops"] = counter.get_total_flops()
    return figures


def _scripted(torch: Any, file: Path) -> tuple[Any, "Counter[str]", int]:
    module: Any = torch.jit.load(str(file), map_location="cpu")
    nodes = list(_nested(module.forward.graph))
    kinds = Counter(node.kind().removeprefix("aten::") for node in nodes if node.kind().startswith("aten::"))
    known = [node for node in nodes if node.kind() == "prim::Constant" and node.hasAttribute("value")]  # None has none
    constants = [node.t("value") for node in known if node.kindOf("value") == "t"]
    weights = [tensor for tensor in (*constants, *module.parameters()) if tensor.is_floating_point()]
    return module, kinds, sum(tensor.numel() for tensor in weights)


def _nested(graph: Any) -> Iterable[Any]:
    """The nodes of a TorchScript graph and of its branches."""
    for node in graph.nodes():
        yield node
        for block in node.blocks():
            yield from _nested(block)


def _exported(torch: Any, file: Path) -> tuple[Any, "Counter[str]", int]:
    program = torch.export.load(file)
    calls = [node.target for node in program.graph.nodes if node.op == "call_function"]
    kinds = Counter(str(getattr(target, "overloadpacket", target)).removeprefix("aten.") for target in calls)
    return program.module(), kinds, sum(tensor.numel() for tensor in program.state_dict.values())
