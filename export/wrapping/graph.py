"""Wrapping a graph: somebody else's ONNX classifier as a scores graph, pixels in [0,1] in, with a dynamic batch.

The network's own nodes are not touched, except for the constant shapes of a graph that was written for one batch size.
What it expects of its input (normalisation, layout, type) becomes nodes in front of it; `Original` does the same
outside of the graph, as the network's own pipeline does, and acceptance compares the two.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor, nn

from robustinfer.card import CARD_KEY, InputSpec
from robustinfer.engines.external import external_files
from robustinfer.engines.loading import existing_model
from robustinfer.engines.onnx import OnnxEngine
from robustinfer.errors import EngineError, ExportError, ModelFileError
from robustinfer.images import in_batches
from robustinfer.version import __version__

__all__ = ["Foreign", "Layout", "Original", "adapted", "read_graph"]

Layout = Literal["nchw", "nhwc"]

_TYPES: dict[int, str] = {
    TensorProto.FLOAT: "float32",
    TensorProto.FLOAT16: "float16",
    TensorProto.DOUBLE: "float64",
    TensorProto.UINT8: "uint8",
}
_PREFIX = "network/"
_LIMIT = 2**31 - 1  # of a protobuf message
_OLDEST = 11  # the opset that brought Round and a Clip with inputs


@dataclass(frozen=True)
class Foreign:
    """A classifier's graph, with its weights inside, and the type, layout, size and batch of images that it expects."""

    proto: Any
    path: Path
    type: int
    layout: Layout
    shape: tuple[int, int, int]
    batch: int | None

    @property
    def type_name(self) -> str:
        """The type of its pixels, as numpy names it."""
        return _TYPES[self.type]


def read_graph(
    path: str | os.PathLike[str], *, size: tuple[int, int] | None = None, layout: Layout | None = None
) -> Foreign:
    """Read a classifier's graph; `size` is (height, width) where the graph leaves it open.

    A graph that is not a classifier of images is refused with a sentence that says why.
    """
    file = Path(path)
    proto = _load(file)
    inputs = [value for value in proto.graph.input if value.name not in {t.name for t in proto.graph.initializer}]
    if len(inputs) != 1:
        raise ExportError(f"A classifier has one input, the image; {file.name} has {_names(inputs)}.")
    if len(proto.graph.output) != 1:
        raise ExportError(
            f"A classifier has one output, its scores; {file.name} has {_names(proto.graph.output)}, as detectors do."
        )
    declared = _dimensions(proto.graph.output[0])
    if declared is not None and len(declared) != 2:
        raise ExportError(
            f"A classifier gives scores of shape (images, classes); {file.name} gives {_shown(declared)}: "
            "it is not a classifier, or lacks its last layers."
        )
    _check_nodes(proto, file)
    kind, dimensions = inputs[0].type.tensor_type.elem_type, _dimensions(inputs[0])
    if kind not in _TYPES or dimensions is None or len(dimensions) != 4:
        raise ExportError(
            f"A classifier of images takes (images, channels, height, width) of float or uint8; the input "
            f"{inputs[0].name!r} of {file.name} is {TensorProto.DataType.Name(kind).lower()} of {_shown(dimensions)}."
        )
    layout = _layout(dimensions, layout, file)
    channels, *sides = (dimensions[i] for i in ((1, 2, 3) if layout == "nchw" else (3, 1, 2)))
    height, width = _size(sides, size, file)
    if channels is None:
        raise ExportError(f"{file.name} leaves the number of its channels open: export it with a fixed one.")
    return Foreign(proto, file, kind, layout, (channels, height, width), dimensions[0])


def _load(file: Path) -> Any:
    external_files(existing_model(file))  # refuses weights that lie outside of the folder, before anything reads them
    try:
        proto = onnx.load(file)
    except Exception as error:  # protobuf's and onnx's errors have no common base class
        raise ModelFileError(f"{file} is damaged, or not an ONNX model: {str(error).splitlines()[0]}.") from error
    if not proto.graph.node:
        raise ModelFileError(f"{file} is damaged, or not an ONNX model: it has no graph.")
    if any(entry.key == CARD_KEY for entry in proto.metadata_props):
        raise ExportError(f"{file} is a model file already, with a card inside: it need not be wrapped.")
    opset = next((entry.version for entry in proto.opset_import if entry.domain in ("", "ai.onnx")), 0)
    if opset < _OLDEST:
        raise ExportError(
            f"{file.name} has ONNX opset {opset}; wrapping needs {_OLDEST} or newer: convert it with "
            "onnx.version_converter, or export it again."
        )
    if proto.ByteSize() >= _LIMIT:
        raise ExportError(f"One ONNX file holds less than 2 GB; {file.name} with its weights is larger.")
    return proto


def _names(values: Any) -> str:
    names = ", ".join(value.name for value in values)
    return f"{len(values)} ({names})" if names else "none"


def _shown(dimensions: Sequence[int | None] | None) -> str:
    return "an unknown shape" if dimensions is None else f"({', '.join(str(size or '?') for size in dimensions)})"


def _dimensions(value: Any) -> list[int | None] | None:
    """The declared shape, None where a dimension is free; None if there is no shape at all."""
    if not value.type.tensor_type.HasField("shape"):
        return None
    return [dim.dim_value if dim.dim_value > 0 else None for dim in value.type.tensor_type.shape.dim]


def _layout(dimensions: Sequence[int | None], wanted: Layout | None, file: Path) -> Layout:
    if wanted is not None:
        if wanted not in get_args(Layout):
            raise ExportError(f"A layout is one of {', '.join(get_args(Layout))}; found {wanted!r}.")
        return wanted
    first, last = dimensions[1] in (1, 3), dimensions[3] in (1, 3)
    if first == last and dimensions[1] is None:
        raise ExportError(
            f"The input of {file.name}, {_shown(dimensions)}, could have its channels first or last: say which with "
            "--layout nchw or nhwc."
        )
    return "nhwc" if last and not first else "nchw"


def _size(sides: Sequence[int | None], wanted: tuple[int, int] | None, file: Path) -> tuple[int, int]:
    if wanted is not None and min(wanted) < 1:
        raise ExportError(f"A size has a positive height and width; found {wanted[0]} x {wanted[1]}.")
    found = []
    for place, (side, name) in enumerate(zip(sides, ("height", "width"), strict=True)):
        if side is None and wanted is None:
            raise ExportError(
                f"{file.name} leaves the size of its images open, and a certificate needs one: say which with --size."
            )
        if side is not None and wanted is not None and side != wanted[place]:
            raise ExportError(f"{file.name} takes images of {name} {side}; --size says {wanted[place]}.")
        found.append(side or (wanted or (0, 0))[place])
    return found[0], found[1]


def _check_nodes(proto: Any, file: Path) -> None:
    """Refuse chance. Whether neighbours in a batch matter is tried when the file is opened (`check_rows`)."""
    for node in _all_nodes(proto.graph):
        training = any(attribute.name == "training_mode" and attribute.i for attribute in node.attribute)
        switched = node.op_type == "Dropout" and len(node.input) > 2 and bool(node.input[2])
        if switched:
            constants = _constants(proto.graph)
            switched = node.input[2] not in constants or bool(constants[node.input[2]].any())
        if training or switched or node.op_type.startswith("Random") or node.op_type in {"Multinomial", "Bernoulli"}:
            raise ExportError(
                f"{file.name} has a {node.op_type} that is random or behaves as in training mode ({node.name}): "
                "export it in evaluation mode."
            )


def _all_nodes(graph: Any) -> Iterator[Any]:
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _all_nodes(attribute.g)


def _constants(graph: Any) -> dict[str, npt.NDArray[Any]]:
    found = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer if _small(tensor)}
    for node in graph.node:
        if node.op_type == "Constant":
            for attribute in node.attribute:
                if attribute.name == "value" and _small(attribute.t):
                    found[node.output[0]] = numpy_helper.to_array(attribute.t)
                elif attribute.name == "value_ints":
                    found[node.output[0]] = np.array(attribute.ints, dtype=np.int64)
    return found


def _small(tensor: Any) -> bool:
    return int(np.prod(tensor.dims, dtype=np.int64)) <= 16


def adapted(foreign: Foreign, mean: Sequence[float], std: Sequence[float], *, classes: int, reshape: bool) -> Any:
    """The scores graph: what the pipeline did before the network is inside it, and the batch is free.

    With `reshape` the constant shapes that name the batch size of the export become free as well.
    """
    proto = onnx.compose.add_prefix(foreign.proto, _PREFIX)
    graph = proto.graph
    taken = {tensor.name for tensor in graph.initializer}
    entry = next(value.name for value in graph.input if value.name not in taken)
    exit_ = graph.output[0].name
    if reshape:
        _free_shapes(graph, entry, foreign.batch or 1)
    before = _pipeline(foreign, mean, std, entry)
    kind = graph.output[0].type.tensor_type.elem_type
    after = helper.make_node("Cast", [exit_], ["scores"], to=TensorProto.FLOAT)
    if kind == TensorProto.FLOAT:
        after = helper.make_node("Identity", [exit_], ["scores"])
    nodes = [*before.node, *graph.node, after]
    del graph.node[:], graph.input[:], graph.output[:], graph.value_info[:]
    graph.node.extend(nodes)
    graph.initializer.extend(before.initializer)
    graph.input.append(helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", *foreign.shape]))
    graph.output.append(helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["batch", classes]))
    _strip(proto)
    return proto


def _pipeline(foreign: Foreign, mean: Sequence[float], std: Sequence[float], entry: str) -> Any:
    """The nodes from `image` to the network's input, in the order of `Original.prepared`."""
    graph = onnx.GraphProto()
    value = "image"

    def add(operator: str, *constants: Any, **attributes: Any) -> None:
        nonlocal value
        names = []
        for constant in constants:
            names.append(f"pixels/constant_{len(graph.initializer)}")
            graph.initializer.append(numpy_helper.from_array(constant, names[-1]))
        result = f"pixels/{len(graph.node)}_{operator.lower()}"
        graph.node.append(helper.make_node(operator, [value, *names], [result], name=result, **attributes))
        value = result

    if foreign.type == TensorProto.UINT8:
        add("Mul", np.float32(255.0).reshape(()))
        add("Round")
        add("Clip", np.float32(0.0).reshape(()), np.float32(255.0).reshape(()))
    elif any(mean) or any(number != 1.0 for number in std):
        add("Sub", np.asarray(mean, np.float32).reshape(1, -1, 1, 1))
        add("Div", np.asarray(std, np.float32).reshape(1, -1, 1, 1))
    if foreign.type != TensorProto.FLOAT:
        add("Cast", to=foreign.type)
    if foreign.layout == "nhwc":
        add("Transpose", perm=[0, 2, 3, 1])
    graph.node.append(helper.make_node("Identity", [value], [entry]))
    return graph


def _free_shapes(graph: Any, entry: str, batch: int) -> None:
    """Free the batch in the constant shapes of Reshape nodes on the way of the image; trying tells whether it worked.

    With no other free dimension the leading one becomes it (-1). Otherwise, if it is the batch, it is copied from the
    input (0).
    """
    constants, reached = _constants(graph), {entry}
    for node in graph.node:
        if not reached & set(node.input) or node.op_type in {"Shape", "Size"}:
            continue
        reached |= set(node.output)
        if node.op_type != "Reshape" or node.input[0] not in reached or node.input[1] not in constants:
            continue
        shape = constants[node.input[1]].astype(np.int64).copy()
        if not len(shape) or shape[0] <= 0:
            continue
        if -1 not in shape:
            shape[0] = -1
        elif shape[0] == batch:
            shape[0] = 0
            for attribute in node.attribute:
                if attribute.name == "allowzero":  # torch writes 1, which would take the 0 at its word
                    attribute.i = 0
        name = f"{node.output[0]}/free_shape"
        graph.initializer.append(numpy_helper.from_array(shape, name))
        node.input[1] = name


def _strip(proto: Any) -> None:
    """Take out what a file says about the machine and the program that wrote it."""
    del proto.metadata_props[:]
    proto.doc_string, proto.producer_name, proto.producer_version = "", "robustinfer", __version__
    proto.graph.name, proto.graph.doc_string = "robustinfer", ""
    for node in _all_nodes(proto.graph):
        node.doc_string = ""
        del node.metadata_props[:]
    for tensor in proto.graph.initializer:
        tensor.doc_string = ""


class Original(nn.Module):
    """The file as it was, behind its own pipeline: pixels in [0,1] to scores, in batches that it takes."""

    def __init__(self, foreign: Foreign, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        self.foreign = foreign
        self.engine = OnnxEngine(foreign.path, device="cpu")
        self.members = nn.ModuleList([nn.Identity()])
        self.betas = torch.ones(1)
        self._mean, self._std = (np.asarray(numbers, np.float32).reshape(1, -1, 1, 1) for numbers in (mean, std))

    def prepared(self, pixels: npt.NDArray[np.float32]) -> npt.NDArray[Any]:
        """What the network's own pipeline would hand to it."""
        values: npt.NDArray[Any]
        if self.foreign.type == TensorProto.UINT8:
            values = np.clip(np.rint(pixels * np.float32(255)), 0, 255)
        else:
            values = (pixels - self._mean) / self._std
        values = values.astype(self.foreign.type_name)
        return np.ascontiguousarray(values.transpose(0, 2, 3, 1) if self.foreign.layout == "nhwc" else values)

    def scores(self, pixels: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Scores (N, K) of images (N, C, H, W)."""
        values, batch = self.prepared(pixels), self.foreign.batch or 1
        pieces = []
        for _, part in in_batches(values, batch):
            full = np.concatenate([part, np.repeat(part[-1:], batch - len(part), axis=0)])
            try:
                pieces.append(np.asarray(self.engine.scores(full))[: len(part)].astype(np.float32))
            except EngineError as error:
                raise ExportError(f"{self.foreign.path.name} does not run as it is: {error}") from error
        return np.concatenate(pieces)

    def forward(self, image: Tensor) -> Tensor:
        return torch.from_numpy(self.scores(image.numpy()))

    @property
    def spec(self) -> InputSpec:
        """Channels, height and width."""
        return InputSpec(*self.foreign.shape)
