"""The graph of a cascade: the members as parts, and between them what compresses the batch and scatters scores back.

Per step: TopK gives the margins, NonZero the rows that stay, Gather takes their features and sums to the next member,
ScatterND puts the new sums back. Shapes are dynamic and there is no branch, so that every ONNX runtime with these
operators runs it. No operator between the members mixes rows, and the members are tried one by one:
what is left of a batch depends on its neighbours, so a member's scores must not.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
import onnxruntime
import torch
from onnx import TensorProto, helper, numpy_helper

from robustinfer.card import Card

from .cascade import Rule, Terms
from .fusion import Fused
from .onnx_file import scores_graph
from .precision import integers

__all__ = ["Parts", "PartsRunner", "cascade_graph", "parts_of"]

_PRODUCTS = {"Conv", "Gemm", "MatMul"}


@dataclass(frozen=True)
class Parts:
    """An ensemble cut for a cascade: what all members share, and each member with its beta. `front` is None if they
    share nothing but the image."""

    front: onnx.ModelProto | None
    members: tuple[onnx.ModelProto, ...]

    def lowered(self, noisy: Sequence[npt.NDArray[np.float32]]) -> "Parts":
        """All parts in 8-bit integers, each calibrated on what it will see: every member on every noisy copy."""
        front = self.front
        if front is not None and any(node.op_type in _PRODUCTS for node in front.graph.node):
            front = integers(front, noisy)
        features = list(noisy) if front is None else [_Part(front).run(batch) for batch in noisy]
        return Parts(front, tuple(integers(member, features) for member in self.members))


class PartsRunner:
    """The parts in ONNX Runtime, all members asked: pixels to (members, images, classes)."""

    def __init__(self, parts: Parts) -> None:
        self._front = None if parts.front is None else _Part(parts.front)
        self._members = [_Part(member) for member in parts.members]

    def terms(self, images: npt.NDArray[np.float32]) -> Terms:
        """beta_t f_t of each member, (members, images, classes)."""
        features = images if self._front is None else self._front.run(images)
        return np.stack([member.run(features) for member in self._members])


class _Part:
    def __init__(self, proto: onnx.ModelProto) -> None:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        content = proto.SerializeToString()
        self._session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        self._input = self._session.get_inputs()[0].name

    def run(self, batch: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        found: npt.NDArray[np.float32] = self._session.run(None, {self._input: batch})[0]
        return found


def parts_of(fused: Fused, card: Card, *, opset: int | None) -> Parts:
    """The parts of a fused ensemble as graphs of their own: exported together, then cut apart."""
    apart = _Apart(fused).eval()
    names = [*(["features"] if apart.shares else []), *(f"scores_{number}" for number in range(len(fused.members)))]
    whole: onnx.ModelProto = ir.to_proto(
        scores_graph(apart, torch.zeros(2, *card.input.shape), opset=opset, outputs=names)
    )
    cut = onnx.utils.Extractor(whole).extract_model
    front = cut(["image"], ["features"]) if apart.shares else None
    members = [cut(["features" if apart.shares else "image"], [name]) for name in names if name != "features"]
    for part in (front, *members):
        if part is not None:
            del part.graph.value_info[:]
    return Parts(front, tuple(members))


class _Apart(torch.nn.Module):
    """A fused ensemble that gives what its members share, if they do, and the scores of each with its beta."""

    def __init__(self, fused: Fused) -> None:
        super().__init__()
        self.fused, self.shares = fused, not isinstance(fused.front, torch.nn.Identity)

    def forward(self, image: torch.Tensor) -> tuple[torch.Tensor, ...]:
        features = self.fused.front(image)
        pairs = zip(self.fused.members, self.fused.factors, strict=True)
        terms = [member(features) if factor == 1.0 else factor * member(features) for member, factor in pairs]
        return (features, *terms) if self.shares else tuple(terms)


def cascade_graph(parts: Parts, rule: Rule, card: Card) -> ir.Model:
    """The one graph of a cascade, from `image` to `scores`."""
    b = _Builder()
    features = "image" if parts.front is None else b.add(parts.front, "front/", "image")
    total = b.add(parts.members[rule.order[0]], "member_1/", features)
    terms, scores, rows = [total], total, ""
    images = b.op("Shape", total, start=0, end=1)
    for step, position in enumerate(rule.order[1:], start=1):
        if rule.leaves(step):
            stays = b.differing(terms) if rule.consensus else b.undecided(total, rule.thresholds[step - 1])
            kept = b.op("Reshape", b.op("NonZero", stays), b.ints(-1))
            if not rows:  # behind the scores, a row that nobody reads
                scores = b.op(
                    "Concat", total, b.constant("nobody", np.zeros((1, len(card.classes)), np.float32)), axis=0
                )
            # Where no row is left the first one goes on and its sums go to nobody: optimised graphs fail on no rows.
            empty = b.op("Cast", b.op("Equal", b.op("Shape", kept), b.ints(0)), to=TensorProto.INT64)
            own = b.op("Gather", rows, kept) if rows else kept
            rows = b.op("Concat", own, b.op("Slice", images, b.ints(0), empty), axis=0)
            kept = b.op("Concat", kept, b.op("Slice", b.ints(0), b.ints(0), empty), axis=0)
            features, total = b.op("Gather", features, kept), b.op("Gather", total, kept)
        terms.append(b.add(parts.members[position], f"member_{step + 1}/", features))
        total = b.op("Add", total, terms[-1])
        if rows and (step == len(rule.order) - 1 or rule.leaves(step + 1)):  # whoever leaves now has these scores
            scores = b.op("ScatterND", scores, b.op("Reshape", rows, b.ints(-1, 1)), total)
    return b.finish(b.op("Slice", scores, b.ints(0), images) if rows else total, card, [parts.front, *parts.members])


class _Builder:
    """The nodes of a cascade. Each part has its own prefix, so that a reader sees which member an operator is of."""

    def __init__(self) -> None:
        self.graph = onnx.GraphProto(name="robustinfer")
        self._constants: set[str] = set()

    def add(self, part: onnx.ModelProto, prefix: str, entry: str) -> str:
        """Put a part behind the value `entry`; its result."""
        named = onnx.compose.add_prefix(part, prefix).graph
        self.graph.node.append(helper.make_node("Identity", [entry], [named.input[0].name], name=f"{prefix}entry"))
        self.graph.node.extend(named.node)
        self.graph.initializer.extend(named.initializer)
        return str(named.output[0].name)

    def op(self, kind: str, *inputs: str, **attributes: Any) -> str:
        return self.ops(kind, *inputs, **attributes)[0]

    def ops(self, kind: str, *inputs: str, outputs: int = 1, **attributes: Any) -> list[str]:
        name = f"cascade/{kind}_{len(self.graph.node)}"
        results = [name, *(f"{name}_{number}" for number in range(1, outputs))]
        self.graph.node.append(helper.make_node(kind, inputs, results, name=name, **attributes))
        return results

    def constant(self, name: str, value: npt.NDArray[Any]) -> str:
        name = f"cascade/{name}"
        if name not in self._constants:
            self._constants.add(name)
            self.graph.initializer.append(numpy_helper.from_array(value, name))
        return name

    def ints(self, *values: int) -> str:
        return self.constant("ints/" + ",".join(map(str, values)), np.asarray(values, np.int64))

    def undecided(self, total: str, threshold: float) -> str:
        """Rows whose margin does not exceed the threshold."""
        top = self.ops("TopK", total, self.ints(2), outputs=2, axis=1)[0]
        first, second = (self.op("Gather", top, self.constant(f"{n}", np.asarray(n, np.int64)), axis=1) for n in (0, 1))
        limit = self.constant(f"threshold/{threshold!r}", np.asarray(threshold, np.float32))
        return self.op("LessOrEqual", self.op("Sub", first, second), limit)

    def differing(self, terms: Sequence[str]) -> str:
        """Rows for which these members do not name one class."""
        first, *others = [self.op("ArgMax", term, axis=1, keepdims=0) for term in terms]
        equal = [self.op("Equal", first, other) for other in others]
        agreed = equal[0]
        for other in equal[1:]:
            agreed = self.op("And", agreed, other)
        return self.op("Not", agreed)

    def finish(self, scores: str, card: Card, parts: Sequence[onnx.ModelProto | None]) -> ir.Model:
        self.graph.node.append(helper.make_node("Identity", [scores], ["scores"], name="cascade/scores"))
        shape: list[str | int | None] = ["batch", len(card.classes)]
        self.graph.input.append(helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", *card.input.shape]))
        self.graph.output.append(helper.make_tensor_value_info("scores", TensorProto.FLOAT, shape))
        known = [part for part in parts if part is not None]
        domains = {entry.domain: entry.version for part in known for entry in part.opset_import}
        opsets = [helper.make_opsetid(domain, version) for domain, version in sorted(domains.items())]
        proto = helper.make_model(self.graph, opset_imports=opsets)
        proto.ir_version = max(part.ir_version for part in known)
        return ir.from_proto(proto)
