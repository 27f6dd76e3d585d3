"""ONNX files of a fused ensemble: one file, no sidecar, nothing in it about the machine that wrote it."""

import contextlib
import io
import logging
import warnings
from collections.abc import Callable, Iterator, Sequence

import onnx
import onnx_ir as ir
import torch
from torch import Tensor, nn

from robustinfer.card import CARD_KEY, Card
from robustinfer.errors import ExportError
from robustinfer.version import __version__

from .fusion import Fused
from .sampler.onnx import attach_sampler

__all__ = ["OPSETS", "finished", "onnx_file", "scores_graph", "with_card"]

OPSETS = range(18, 24)
"""18 brought the bitwise operators the sampler needs; 23 is the newest that torch writes."""

_LIMIT = 2**31 - 1  # of a protobuf message; beyond it weights would have to lie in a second file


def onnx_file(fused: Fused, card: Card, *, sampler: bool, opset: int | None) -> Callable[[Card], bytes]:
    """The ONNX file as a function of the card inside it."""
    return finished(scores_graph(fused, torch.zeros(2, *card.input.shape), opset=opset), card, sampler=sampler)


def finished(model: ir.Model, card: Card, *, sampler: bool) -> Callable[[Card], bytes]:
    """The ONNX file of a scores graph as a function of the card inside it."""
    if sampler:
        attach_sampler(model, card)
    model.producer_name, model.producer_version = "robustinfer", __version__
    proto = ir.to_proto(model)
    _forget_shapes(proto.graph)
    if proto.ByteSize() >= _LIMIT:
        raise ExportError(
            f"One ONNX file holds less than 2 GB; this ensemble takes {proto.ByteSize() / 2**30:.1f} GB: "
            "export it as .pt or .pt2, or with fewer stages."
        )
    _check(proto)
    return lambda final: with_card(proto, final)


def _forget_shapes(graph: onnx.GraphProto) -> None:
    """Drop the shapes of values in between: every reader infers them, and stored ones get stale when tools change the
    graph. Those behind branches (the sampler's) are not inferred, and stay: without them ONNX Runtime plans no reuse of
    memory, and is 5 to 15 % slower (measured, 5 x ResNet-20)."""
    branched = {name for node in graph.node if node.op_type == "If" for name in node.output}
    kept = [value for value in graph.value_info if value.name in branched]
    del graph.value_info[:]
    graph.value_info.extend(kept)


def scores_graph(
    module: nn.Module, example: Tensor, *, opset: int | None, outputs: Sequence[str] = ("scores",)
) -> ir.Model:
    """A module as a graph with a dynamic batch, from `image` to these outputs."""
    if opset is not None and opset not in OPSETS:
        raise ExportError(f"An ONNX export has opset {OPSETS[0]} to {OPSETS[-1]}; found {opset}.")
    batch = torch.export.Dim("batch", min=1, max=2**31 - 1)
    with _quiet():
        program = torch.onnx.export(
            module,
            (example,),
            dynamo=True,
            external_data=False,
            dynamic_shapes=({0: batch},),
            input_names=["image"],
            output_names=list(outputs),
            opset_version=opset,
            verbose=False,
        )
    if program is None:
        raise ExportError("torch produced no ONNX program for this ensemble.")
    _strip(program.model)
    return program.model


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """The exporter tells its steps to stdout and its doubts to the log; what matters of them it raises."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            warnings.simplefilter("ignore", FutureWarning)
            yield
    finally:
        logger.setLevel(level)


def _strip(model: ir.Model) -> None:
    """Take out stack traces, source lines and paths, which the exporter puts into every node and value."""
    model.metadata_props.clear()
    model.doc_string = None
    graph = model.graph
    graph.metadata_props.clear()
    graph.name, graph.doc_string = "robustinfer", None
    for value in (*graph.inputs, *graph.initializers.values()):
        value.metadata_props.clear()
        value.doc_string = None
    for node in ir.traversal.RecursiveGraphIterator(graph):
        node.metadata_props.clear()
        node.doc_string = None
        for value in node.outputs:
            value.metadata_props.clear()
            value.doc_string = None


def _check(proto: onnx.ModelProto) -> None:
    """Refuse a graph in which the scores of one image would depend on chance or on its neighbours."""
    for node in proto.graph.node:
        training = any(attribute.name == "training_mode" and attribute.i for attribute in node.attribute)
        if node.op_type == "Dropout" or training or node.op_type.startswith("Random"):
            raise ExportError(
                f"The graph has a {node.op_type} that behaves as in training mode ({node.name}): "
                "an ensemble is exported in evaluation mode, and its members must be deterministic."
            )
    onnx.checker.check_model(proto, full_check=True)


def with_card(proto: onnx.ModelProto, card: Card) -> bytes:
    pixel_format = {1: "Gray8", 3: "Rgb8"}.get(card.input.channels)
    entries = {
        CARD_KEY: card.dumps(),
        "model_author": card.training.get("author"),
        "model_license": card.license,
        "Image.BitmapPixelFormat": pixel_format,
        "Image.ColorSpaceGamma": "SRGB" if pixel_format else None,
        "Image.NominalPixelRange": "Normalized_0_1",
    }
    final = onnx.ModelProto()
    final.CopyFrom(proto)
    final.model_version = int(card.version) if card.version.isdecimal() else 0
    final.doc_string = f"{card.name}: {len(card.members)} members, {len(card.classes)} classes"
    onnx.helper.set_model_props(final, {key: str(value) for key, value in sorted(entries.items()) if value})
    content: bytes = final.SerializeToString(deterministic=True)
    return content
