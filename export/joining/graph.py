"""Several ONNX scores graphs behind one input: their scores weighed and added up, or side by side for votes."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import TensorProto, helper, inliner, numpy_helper, version_converter

from robustinfer.card import Card
from robustinfer.engines.external import external_files
from robustinfer.errors import ExportError
from robustinfer.version import __version__

from ..onnx_file import OPSETS, with_card
from ..sampler.onnx import attach_sampler

__all__ = ["joined_graph"]

_LIMIT = 2**31 - 1  # of a protobuf message


def joined_graph(
    paths: Sequence[Path], betas: Sequence[float], card: Card, *, sampler: bool = False
) -> Callable[[Card], bytes]:
    """The ONNX file of these members as a function of the card inside it."""
    protos = _same_opset([_read(path) for path in paths], paths)
    graph = onnx.GraphProto(name="robustinfer")
    outputs: list[str] = []
    domains: dict[str, int] = {}
    for number, (proto, path) in enumerate(zip(protos, paths, strict=True), start=1):
        prefix = f"member_{number}/"
        part = onnx.compose.add_prefix(proto, prefix).graph
        entry, exit_ = f"{prefix}image", f"{prefix}scores"
        _check_ends(part, entry, exit_, path)
        graph.node.append(helper.make_node("Identity", ["image"], [entry]))
        graph.node.extend(part.node)
        graph.initializer.extend(part.initializer)
        outputs.append(exit_)
        domains |= {used.domain: used.version for used in proto.opset_import}
    _combine(graph, outputs, betas, votes=card.kind == "votes")
    members = [len(outputs)] if card.kind == "votes" else []
    shape: list[str | int | None] = ["batch", *members, len(card.classes)]
    graph.input.append(helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", *card.input.shape]))
    graph.output.append(helper.make_tensor_value_info("scores", TensorProto.FLOAT, shape))
    opsets = [helper.make_opsetid(domain, version) for domain, version in sorted(domains.items())]
    proto = helper.make_model(graph, opset_imports=opsets, producer_name="robustinfer", producer_version=__version__)
    proto.ir_version = max(found.ir_version for found in protos)
    if sampler:
        proto = _with_sampler(proto, card)
    if proto.ByteSize() >= _LIMIT:
        raise ExportError(
            f"One ONNX file holds less than 2 GB; these members take {proto.ByteSize() / 2**30:.1f} GB together."
        )
    onnx.checker.check_model(proto, full_check=True)
    return lambda final: with_card(proto, final)


def _read(path: Path) -> Any:
    external_files(path)  # refuses weights that lie outside of the folder, before anything reads them
    proto = onnx.load(path)
    return inliner.inline_local_functions(proto) if proto.functions else proto


def _same_opset(protos: Sequence[Any], paths: Sequence[Path]) -> list[Any]:
    """All graphs in the newest opset among them: operators mean what their opset says."""
    versions = [_opset(proto) for proto in protos]
    newest, found = max(versions), []
    for proto, path, version in zip(protos, paths, versions, strict=True):
        try:
            found.append(proto if version == newest else version_converter.convert_version(proto, newest))
        except Exception as error:  # the converter raises whatever a graph does to it
            sentence = next(iter(str(error).splitlines()), type(error).__name__)
            raise ExportError(
                f"{path.name} has ONNX opset {version}, another member {newest}, and it cannot be converted: "
                f"{sentence}. Export it again in that opset."
            ) from error
    return found


def _opset(proto: Any) -> int:
    return next((int(entry.version) for entry in proto.opset_import if entry.domain in ("", "ai.onnx")), 0)


def _check_ends(graph: Any, entry: str, exit_: str, path: Path) -> None:
    taken = {tensor.name for tensor in graph.initializer}
    inputs = [value.name for value in graph.input if value.name not in taken]
    if inputs != [entry] or [value.name for value in graph.output] != [exit_]:
        raise ExportError(f"{path.name} is not a scores graph from `image` to `scores`: export or wrap it again.")


def _combine(graph: Any, outputs: Sequence[str], betas: Sequence[float], *, votes: bool) -> None:
    """f = sum_t beta_t f_t, or (batch, members, classes): the betas of votes stand in the card alone."""
    if votes:
        graph.initializer.append(numpy_helper.from_array(np.array([1], np.int64), "members_axis"))
        apart = [f"{name}_apart" for name in outputs]
        for name, result in zip(outputs, apart, strict=True):
            graph.node.append(helper.make_node("Unsqueeze", [name, "members_axis"], [result]))
        graph.node.append(helper.make_node("Concat", apart, ["scores"], axis=1))
        return
    terms = []
    for number, (name, beta) in enumerate(zip(outputs, betas, strict=True), start=1):
        graph.initializer.append(numpy_helper.from_array(np.array(beta, np.float32), f"beta_{number}"))
        terms.append(f"{name}_weighed")
        graph.node.append(helper.make_node("Mul", [name, f"beta_{number}"], [terms[-1]]))
    graph.node.append(helper.make_node("Sum", terms, ["scores"]))


def _with_sampler(proto: Any, card: Card) -> Any:
    version = _opset(proto)
    if version not in OPSETS:
        raise ExportError(
            f"A sampler needs ONNX opset {OPSETS[0]} to {OPSETS[-1]}; the members have {version}: leave it out."
        )
    model = ir.from_proto(proto)
    attach_sampler(model, card)
    finished = ir.to_proto(model)
    del finished.graph.value_info[:]
    return finished
