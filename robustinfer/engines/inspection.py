"""What is inside a model file: card, digest, operators and cost, without running it."""

import dataclasses
import math
import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..card import CARD_KEY, Card
from ..errors import ModelFileError
from . import load_engine
from .engine import card_in_archive
from .external import model_digest, model_files

__all__ = ["Inspection", "inspect_model"]

_FORMATS = {".onnx": "ONNX", ".pt": "TorchScript", ".pt2": "torch.export"}


@dataclass(frozen=True)
class Inspection:
    """A model file, described. `operators` counts the nodes of the scores graph and `sampler_operators` those of the
    sampler's branches; `flops` is the cost of one image, two for a multiply-add of a convolution or matrix product.
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

    def to_json(self) -> dict[str, Any]:
        """The description as a JSON object."""
        return dataclasses.asdict(self) | {"card": self.card.to_json() if self.card else None}


def inspect_model(path: str | os.PathLike[str]) -> Inspection:
    """Describe a model file. Only the card is required to be readable; graph figures need onnx or torch."""
    file = Path(path)
    suffix = file.suffix.lower()
    if not file.is_file():
        raise ModelFileError(f"There is no model file {file}.")
    if suffix not in _FORMATS:
        raise ModelFileError(f"Expected a model file that ends in .onnx, .pt or .pt2, found {file.name}.")
    basics: dict[str, Any] = {
        "path": str(file),
        "format": _FORMATS[suffix],
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
    except ModuleNotFoundError:
        return {"card": load_engine(file, device="cpu", threads=1).card}
    try:
        model = onnx.load(file)
        inferred = onnx.shape_inference.infer_shapes(model, data_prop=True)
    except Exception as error:  # protobuf's and onnx's errors have no common base class
        raise ModelFileError(f"{file} is damaged, or not an ONNX model: {str(error).splitlines()[0]}.") from error
    if not model.graph.node:
        raise ModelFileError(f"{file} is damaged, or not an ONNX model: it has no graph.")
    text = {entry.key: entry.value for entry in model.metadata_props}.get(CARD_KEY)
    nested: Counter[str] = Counter(node.op_type for branch in _branches(model.graph.node) for node in _all(branch.node))
    return {
        "card": Card.loads(text) if text else None,
        "operators": dict(Counter(node.op_type for node in model.graph.node).most_common()),
        "sampler_operators": dict(nested.most_common()) or None,
        "parameters": _parameters(model.graph),
        "flops": _flops(inferred.graph),
        "opset": next((entry.version for entry in model.opset_import if not entry.domain), None),
    }


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
    """Cost of one image: convolutions and matrix products, two operations a multiply-add. None if a shape is open."""
    shapes: dict[str, list[int]] = {tensor.name: list(tensor.dims) for tensor in graph.initializer}
    for value in (*graph.value_info, *graph.input, *graph.output):
        # A dimension without a value is the batch: one image.
        shapes[value.name] = [dim.dim_value or 1 for dim in value.type.tensor_type.shape.dim]
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
                inner = weight[-1] if attributes.get("transB") else weight[-2]
            total += 2 * math.prod(result) * inner
    return total


def _torch_figures(file: Path, card: Card | None) -> dict[str, Any]:
    try:
        from .torch_figures import torch_figures
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        return {}
    return torch_figures(file, card)
