"""The ONNX sampler: `seed`, `first`, `count` and `noise` go in beside the image, `votes` comes out beside the scores.

The four inputs have default values (count 0), so whoever feeds `image` alone gets `scores` alone, and the branches
that make the noise do not run. With a count, the noisy samples of `image[0]` join the batch behind the images: the file
holds one copy of the ensemble. Only operations are used that older ONNX Runtimes have as well: a logical shift needs
unsigned integers there, and a product signed ones, hence the casts.
"""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
from onnx_ir.tape import Tape

from robustinfer.card import Card
from robustinfer.smoothing.domains import DOMAINS
from robustinfer.smoothing.lanes import LANE_BITS, LaneLayout, lane_layout

from .stream import (
    CENTRAL,
    FAR_TAIL,
    FINE_LEVELS,
    KEY_STEPS,
    LEVELS,
    LOW_HALF,
    MULTIPLIERS,
    NEAR_TAIL,
    OPEN,
    ROUNDS,
    SIGN,
    integer_table,
    sampler_sigma,
    signed,
)

__all__ = ["SAMPLER_INPUTS", "attach_sampler"]

SAMPLER_INPUTS = ("seed", "first", "count", "noise")
"""Graph inputs of the sampler, all int64 scalars with default 0; `noise` is the number of a domain of the card."""

_Word = ir.Value | None  # None is the word 0, which the first rounds need not multiply


def attach_sampler(model: ir.Model, card: Card) -> None:
    """Give a scores graph (input `image`, output `scores`) the sampler's inputs and its output `votes`."""
    graph, sigma = model.graph, sampler_sigma(card)
    (image,), (scores,) = list(graph.inputs), list(graph.outputs)
    inputs = {
        name: ir.Value(name=name, shape=ir.Shape([]), type=ir.TensorType(ir.DataType.INT64)) for name in SAMPLER_INPUTS
    }
    for name, value in inputs.items():
        value.const_value = ir.tensor(np.asarray(0, np.int64), name=name)
        graph.register_initializer(value)
        graph.inputs.append(value)

    numbers = itertools.count()
    before = _Builder(graph, numbers)
    sampling = before.op("Greater", inputs["count"], before.scalar(0, np.int64))
    rows = before.op(
        "If",
        sampling,
        then_branch=before.branch("images_and_samples", lambda b: _with_samples(b, image, inputs, card, sigma)),
        else_branch=before.branch("images_only", lambda b: b.op("Identity", image)),
    )
    # Said, because shapes are not inferred through branches, and memory is planned only where shapes are known.
    rows.type, rows.shape = ir.TensorType(ir.DataType.FLOAT), ir.Shape(["rows", *card.input.shape])
    # Every reader of the image but the sampler now reads the longer batch.
    samplers = set(before.tape.nodes)
    for node, index in list(image.uses()):
        if node.graph is graph and node not in samplers:
            node.replace_input_with(index, rows)
    graph.insert_before(graph[0], before.tape.nodes)

    after = _Builder(graph, numbers)
    images = after.op("Shape", image, start=0, end=1)
    scores.name = "all_scores"
    first_rows = after.op("Slice", scores, after.ints(0), images, after.ints(0))
    votes = after.op(
        "If",
        sampling,
        then_branch=after.branch("count_votes", lambda b: _votes(b, scores, images, len(card.classes))),
        else_branch=after.branch(
            "no_votes", lambda b: b.op("Identity", b.array("no_votes", np.zeros(len(card.classes) + 1, np.int64)))
        ),
    )
    graph.extend(after.tape.nodes)
    _name_output(first_rows, "scores", ir.DataType.FLOAT, ["batch", len(card.classes)])
    _name_output(votes, "votes", ir.DataType.INT64, [len(card.classes) + 1])
    graph.outputs[0] = first_rows
    graph.outputs.append(votes)


def _name_output(value: ir.Value, name: str, dtype: ir.DataType, shape: list[int | str]) -> None:
    value.name, value.type, value.shape = name, ir.TensorType(dtype), ir.Shape(shape)


class _Builder:
    """The nodes of one graph or branch. Constants are initializers of the main graph, shared by all branches."""

    def __init__(self, graph: ir.Graph, numbers: Iterator[int]) -> None:
        self.graph = graph
        self.numbers = numbers  # a branch sees the values around it, so no two values may have one name
        self.tape = Tape()

    def op(self, kind: str, *inputs: ir.Value | None, **attributes: Any) -> ir.Value:
        name = f"sampler/{kind}_{next(self.numbers)}"
        return self.tape.op(kind, inputs, attributes or None, name=name, output=ir.Value(name=name))

    def array(self, name: str, array: npt.NDArray[Any]) -> ir.Value:
        """A named constant; the same name stands for the same content."""
        name = f"sampler/{name}"
        known = self.graph.initializers.get(name)
        if known is None:
            known = self.tape.initializer(ir.tensor(array, name=name))
            self.graph.register_initializer(known)
        return known

    def scalar(self, value: float, dtype: Any) -> ir.Value:
        return self.array(f"{np.dtype(dtype).name}/{value!r}", np.asarray(value, dtype))

    def ints(self, *values: int) -> ir.Value:
        """A list of int64, for shapes and axes."""
        return self.array("ints/" + ",".join(map(str, values)), np.asarray(values, np.int64))

    def branch(self, name: str, build: Callable[["_Builder"], ir.Value]) -> ir.Graph:
        """A branch of an If: the graph of what `build` computes with a builder of its own."""
        inner = _Builder(self.graph, self.numbers)
        output = build(inner)
        return ir.Graph([], [output], nodes=inner.tape.nodes, name=name)

    def shift(self, words: ir.Value, bits: int, dtype: ir.DataType = ir.DataType.INT64) -> ir.Value:
        """A logical shift to the right."""
        unsigned = self.op("Cast", words, to=ir.DataType.UINT64)
        return self.op("Cast", self.op("BitShift", unsigned, self.scalar(bits, np.uint64), direction="RIGHT"), to=dtype)

    def xor(self, *words: _Word) -> ir.Value:
        present = [word for word in words if word is not None]
        result = present[0]
        for word in present[1:]:
            result = self.op("BitwiseXor", result, word)
        return result


def _with_samples(b: _Builder, image: ir.Value, inputs: dict[str, ir.Value], card: Card, sigma: float) -> ir.Value:
    """The images, and behind them the noisy samples of image[0]."""
    size = card.input.size
    pixels = b.op("Reshape", b.op("Slice", image, b.ints(0), b.ints(1), b.ints(0)), b.ints(1, size))

    def eight_bits(c: _Builder) -> ir.Value:
        layout = lane_layout(sigma, size)
        return _eight_bits(c, _words(c, *numbers, layout.words // 4), pixels, sigma, layout)

    def sixteen_bits(c: _Builder) -> ir.Value:
        blocks = -(-size // 4)
        return _sixteen_bits(c, _words(c, *numbers, blocks), pixels, sigma, blocks, size)

    numbers = (inputs["seed"], inputs["first"], inputs["count"])
    samples = b.op(
        "If",
        b.op("Equal", inputs["noise"], b.scalar(DOMAINS.index("8-bit"), np.int64)),
        then_branch=b.branch("noise_of_8_bits", eight_bits),
        else_branch=b.branch("noise_of_16_bits", sixteen_bits),
    )
    return b.op("Concat", image, b.op("Reshape", samples, b.ints(-1, *card.input.shape)), axis=0)


def _words(b: _Builder, seed: ir.Value, first: ir.Value, count: ir.Value, blocks: int) -> ir.Value:
    """Words of samples first ... first + count - 1, of shape (4 count blocks): for each sample word 0 of all blocks,
    then word 1 of all, and so on. Block b of sample i has the counter 1 + i blocks + b."""
    index = b.op("Add", b.op("Range", b.scalar(0, np.int64), count, b.scalar(1, np.int64)), first)
    starts = b.op("Mul", b.op("Reshape", index, b.ints(-1, 1)), b.scalar(blocks, np.int64))
    counter = b.op("Add", starts, b.array(f"blocks/{blocks}", np.arange(1, blocks + 1, dtype=np.int64)))
    state: tuple[_Word, _Word, _Word, _Word] = (counter, None, None, None)
    key = b.op("Reshape", seed, b.ints(1, 1))
    for number in range(ROUNDS):
        step = b.scalar(signed(number * KEY_STEPS[0] % 2**64), np.int64)
        first_key = b.op("Add", key, step) if number else key
        second_key = b.scalar(signed(number * KEY_STEPS[1] % 2**64), np.int64) if number else None
        high0, low0 = _multiply(b, state[0], MULTIPLIERS[0])
        high1, low1 = _multiply(b, state[2], MULTIPLIERS[1])
        state = b.xor(high1, state[1], first_key), low1, b.xor(high0, state[3], second_key), low0
    return b.op("Reshape", b.op("Concat", *state, axis=1), b.ints(-1))


def _multiply(b: _Builder, word: _Word, factor: int) -> tuple[_Word, _Word]:
    """High and low half of the 128-bit product, from products of 32-bit halves, none of which leaves 64 bits."""
    if word is None:
        return None, None
    mask = b.scalar(LOW_HALF, np.int64)
    factor_low, factor_high = (b.scalar(half, np.int64) for half in (factor & LOW_HALF, factor >> 32))
    low, high = b.op("BitwiseAnd", word, mask), b.shift(word, 32)
    crossed = b.op("Mul", low, factor_high)
    carried = b.shift(b.op("Mul", low, factor_low), 32)
    middle = b.op("Add", b.op("Add", carried, b.op("BitwiseAnd", crossed, mask)), b.op("Mul", high, factor_low))
    top = b.op("Add", b.op("Mul", high, factor_high), b.op("Add", b.shift(crossed, 32), b.shift(middle, 32)))
    return top, b.op("Mul", word, b.scalar(signed(factor), np.int64))


def _in_order(b: _Builder, values: ir.Value, blocks: int, size: int) -> ir.Value:
    """Values in the order of `_words` to (count, size), in the order of the stream."""
    by_word = b.op("Reshape", values, b.ints(-1, 4, blocks))
    rows = b.op("Reshape", b.op("Transpose", by_word, perm=[0, 2, 1]), b.ints(-1, 4 * blocks))
    return rows if size == 4 * blocks else b.op("Slice", rows, b.ints(0), b.ints(size), b.ints(1))


def _places(b: _Builder, mask: ir.Value) -> ir.Value:
    """Where a flat mask is true."""
    return b.op("Reshape", b.op("NonZero", mask), b.ints(-1))


def _eight_bits(b: _Builder, words: ir.Value, pixels: ir.Value, sigma: float, layout: LaneLayout) -> ir.Value:
    """float32(x + N) * float32(1/255), with x on the grid of 8-bit images; all integers here are exact in float32."""
    rows = _in_order(b, words, layout.words // 4, layout.words)
    lanes = _lanes(b, b.op("Slice", rows, b.ints(0), b.ints(layout.lanes), b.ints(1)), layout)
    # GatherElements, because ONNX Runtime's Gather copies single values by a call each.
    cells = b.op("GatherElements", b.array("integer/cells", integer_table(sigma).cells), lanes, axis=0)
    places = _places(b, b.op("Equal", cells, b.scalar(OPEN, np.float32)))
    more = b.shift(_reserve_words(b, rows, places, layout), LANE_BITS)
    top = b.op("Cast", b.op("Gather", lanes, places, axis=0), to=ir.DataType.INT64)
    settled = _settle(b, b.op("Add", b.op("Mul", top, b.scalar(1 << 64 - LANE_BITS, np.int64)), more), sigma)
    noise = b.op("ScatterElements", cells, places, settled, axis=0)
    grid = b.op("Round", b.op("Mul", pixels, b.scalar(float(LEVELS), np.float32)))
    total = b.op("Add", b.op("Reshape", noise, b.ints(-1, layout.size)), grid)
    return b.op("Mul", total, b.scalar(1 / LEVELS, np.float32))


def _lanes(b: _Builder, words: ir.Value, layout: LaneLayout) -> ir.Value:
    """The lanes of words (count, lanes), a flat array of (count, size): four per word, low bits first."""
    unsigned = b.op("Reshape", b.op("Cast", words, to=ir.DataType.UINT64), b.ints(-1, layout.lanes, 1))
    shifts = b.array("lanes/shifts", np.arange(0, 64, LANE_BITS, dtype=np.uint64))
    shifted = b.op("BitShift", unsigned, shifts, direction="RIGHT")
    lanes = b.op("Cast", b.op("BitwiseAnd", shifted, b.scalar((1 << LANE_BITS) - 1, np.uint64)), to=ir.DataType.INT32)
    if layout.size != 4 * layout.lanes:
        rows = b.op("Reshape", lanes, b.ints(-1, 4 * layout.lanes))
        lanes = b.op("Slice", rows, b.ints(0), b.ints(layout.size), b.ints(1))
    return b.op("Reshape", lanes, b.ints(-1))


def _reserve_words(b: _Builder, words: ir.Value, places: ir.Value, layout: LaneLayout) -> ir.Value:
    """For each open value the reserve word of its rank among the open values of its sample."""
    rows = b.op("Div", places, b.scalar(layout.size, np.int64))
    none = b.op("Expand", b.ints(0), b.op("Shape", words, start=0, end=1))
    ones = b.op("Expand", b.ints(1), b.op("Shape", places))
    counts = b.op("ScatterElements", none, rows, ones, axis=0, reduction="add")
    before = b.op("CumSum", counts, b.scalar(0, np.int64), exclusive=1)
    length = b.op("Reshape", b.op("Shape", places), b.ints())
    running = b.op("Range", b.scalar(0, np.int64), length, b.scalar(1, np.int64))
    ranks = b.op("Sub", running, b.op("Gather", before, rows, axis=0))
    columns = b.op("Add", b.op("Mod", ranks, b.scalar(layout.reserve, np.int64)), b.scalar(layout.lanes, np.int64))
    index = b.op("Add", b.op("Mul", rows, b.scalar(layout.words, np.int64)), columns)
    return b.op("Gather", b.op("Reshape", words, b.ints(-1)), index, axis=0)


def _settle(b: _Builder, words: ir.Value, sigma: float) -> ir.Value:
    """N = smallest + #{k: T_k <= word} by bisection, as float32."""
    table = integer_table(sigma)
    wanted = b.op("BitwiseXor", words, b.scalar(SIGN, np.int64))
    thresholds = b.array("integer/thresholds", table.thresholds)
    found = b.op("Mul", words, b.scalar(0, np.int64))
    for step in range(table.steps - 1, -1, -1):
        threshold = b.op("Gather", thresholds, b.op("Add", found, b.scalar((1 << step) - 1, np.int64)), axis=0)
        passed = b.op("Cast", b.op("GreaterOrEqual", wanted, threshold), to=ir.DataType.INT64)
        found = b.op("Add", found, b.op("Mul", passed, b.scalar(1 << step, np.int64)))
    # A word of all ones passes the filling too, hence the minimum.
    found = b.op("Add", b.op("Min", found, b.scalar(table.count, np.int64)), b.scalar(table.smallest, np.int64))
    return b.op("Cast", found, to=ir.DataType.FLOAT)


def _sixteen_bits(b: _Builder, words: ir.Value, pixels: ir.Value, sigma: float, blocks: int, size: int) -> ir.Value:
    """float32(x + N) * float32(1/65535), with x on the 16-bit grid and N = round(65535 sigma z).

    z is the quantile of the word's middle: the upper half is mirrored, then the sign. The sum is exact in doubles.
    """
    upper = b.op("Less", words, b.scalar(0, np.int64))
    mirrored = b.op("Where", upper, b.op("Sub", b.scalar(-1, np.int64), words), words)  # -1 - w flips every bit
    lower = b.op("Cast", mirrored, to=ir.DataType.DOUBLE)
    p = b.op("Mul", b.op("Add", lower, b.scalar(0.5, np.float64)), b.scalar(2.0**-64, np.float64))
    q = b.op("Sub", p, b.scalar(0.5, np.float64))
    r = b.op("Sub", b.scalar(0.180625, np.float64), b.op("Mul", q, q))
    central = b.op("Mul", q, _ratio(b, r, CENTRAL))
    places = _places(b, b.op("Less", q, b.scalar(-0.425, np.float64)))
    tail = b.op("Sqrt", b.op("Neg", b.op("Log", b.op("Gather", p, places, axis=0))))
    near = _ratio(b, b.op("Sub", tail, b.scalar(1.6, np.float64)), NEAR_TAIL)
    far = _ratio(b, b.op("Sub", tail, b.scalar(5.0, np.float64)), FAR_TAIL)
    outer = b.op("Neg", b.op("Where", b.op("Greater", tail, b.scalar(5.0, np.float64)), far, near))
    z = b.op("Mul", b.op("ScatterElements", central, places, outer, axis=0), b.scalar(FINE_LEVELS * sigma, np.float64))
    noise = b.op("Round", b.op("Where", upper, b.op("Neg", z), z))
    exact = b.op("Mul", b.op("Cast", pixels, to=ir.DataType.DOUBLE), b.scalar(float(FINE_LEVELS), np.float64))
    total = b.op("Add", _in_order(b, noise, blocks, size), b.op("Round", exact))
    return b.op("Mul", b.op("Cast", total, to=ir.DataType.FLOAT), b.scalar(1 / FINE_LEVELS, np.float32))


def _ratio(b: _Builder, x: ir.Value, coefficients: tuple[tuple[float, ...], tuple[float, ...]]) -> ir.Value:
    numerator, denominator = (_polynomial(b, x, part) for part in coefficients)
    return b.op("Div", numerator, denominator)


def _polynomial(b: _Builder, x: ir.Value, coefficients: tuple[float, ...]) -> ir.Value:
    result = b.scalar(coefficients[-1], np.float64)
    for coefficient in reversed(coefficients[:-1]):
        result = b.op("Add", b.op("Mul", result, x), b.scalar(coefficient, np.float64))
    return result


def _votes(b: _Builder, scores: ir.Value, images: ir.Value, classes: int) -> ir.Value:
    """Votes per class, and at the end those of samples with a score that is not finite, which vote for no class."""
    sampled = b.op("Slice", scores, images, b.ints(np.iinfo(np.int64).max), b.ints(0))
    label = b.op("ArgMax", sampled, axis=1, keepdims=1)
    spoilt = b.op("IsNaN", b.op("ReduceSum", b.op("Mul", sampled, b.scalar(0.0, np.float32)), b.ints(1), keepdims=1))
    vote = b.op("Where", spoilt, b.scalar(classes, np.int64), label)
    ballots = b.op("Equal", vote, b.array("labels", np.arange(classes + 1, dtype=np.int64)))
    return b.op("ReduceSum", b.op("Cast", ballots, to=ir.DataType.INT64), b.ints(0), keepdims=0)
