"""The noise inside the files is the runtime's, word for word, and so are the votes."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from robust.export import export_ensemble
from robust.export.sampler import onnx as sampler_onnx
from robust.export.sampler.check import sampler_votes
from robust.export.sampler.stream import signed
from robust.export.sampler.torch import Sampler
from robust.train.members.ensemble import Ensemble
from torch import Tensor, nn

from robustinfer import Predictor
from robustinfer.card import Card, InputSpec
from robustinfer.errors import ExportError
from robustinfer.smoothing.domains import DOMAINS, GridDomain, noise_name
from robustinfer.smoothing.lanes import LaneLayout, lane_cells, look_up_lanes, settle_open
from robustinfer.smoothing.noise import add_noise, grid_steps, thresholds, words

from ..conftest import make_ensemble

SEEDS = st.integers(0, 2**64 - 1)
EXTREME = np.array(
    [0, 1, 2, 2**32 - 1, 2**32, 2**48 - 1, 2**48, 2**62, 2**63 - 1, 2**63, 2**63 + 1, 2**64 - 2, 2**64 - 1],
    dtype=np.uint64,
)


Inputs = dict[str, tuple[ir.DataType, list[int | str]]]


def session_of(build: Any, inputs: Inputs, output_type: ir.DataType) -> onnxruntime.InferenceSession:
    """A session of one graph of the sampler's own building blocks."""
    values = [
        ir.Value(name=name, type=ir.TensorType(dtype), shape=ir.Shape(shape)) for name, (dtype, shape) in inputs.items()
    ]
    graph = ir.Graph(values, [], nodes=[], opset_imports={"": 18}, name="piece")
    builder = sampler_onnx._Builder(graph, itertools.count())
    output = build(builder, *values)
    output.dtype = output_type
    graph.extend(builder.tape.nodes)
    graph.outputs.append(output)
    proto = ir.to_proto(ir.Model(graph, ir_version=10))
    return onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("size", [1, 4, 30, 64])
def test_words_are_numpys(size: int) -> None:
    blocks = -(-size // 4)
    inputs: Inputs = {name: (ir.DataType.INT64, []) for name in ("seed", "first", "count")}
    session = session_of(lambda b, *numbers: sampler_onnx._words(b, *numbers, blocks), inputs, ir.DataType.INT64)  # type: ignore[call-arg]
    module = Sampler(nn.Identity(), Card(classes=("a", "b"), input=InputSpec(1, 1, size), sigma=0.25))

    @given(SEEDS, st.integers(0, 2**40), st.integers(1, 9))
    @settings(max_examples=40, deadline=None)
    def check(seed: int, first: int, count: int) -> None:
        expected = words(seed, first, count, size)
        numbers = {"seed": signed(seed), "first": first, "count": count}
        drawn = session.run(None, {name: np.asarray(number, np.int64) for name, number in numbers.items()})[0]
        in_order = drawn.reshape(count, 4, blocks).transpose(0, 2, 1).reshape(count, -1)[:, :size]
        assert np.array_equal(in_order.view(np.uint64), expected)
        by_torch = module._words(signed(seed), first, count, size, torch.device("cpu")).numpy()
        assert np.array_equal(np.ascontiguousarray(by_torch).view(np.uint64), expected)

    check()


@pytest.mark.parametrize("sigma", [0.05, 0.25, 1.0])
def test_words_become_the_runtimes_noise(sigma: float) -> None:
    """On random words, on the ends of the range, and on both sides of every threshold of the 8-bit noise."""
    coarse, _ = thresholds(sigma, "8-bit")
    drawn = np.concatenate([EXTREME, words(7, 0, 1, 200_000)[0], coarse, coarse - np.uint64(1)])
    drawn = drawn[: len(drawn) // 4 * 4]
    size = len(drawn)
    pixels = np.full((1, size), 100 / 255, dtype=np.float32)
    # Every value with a word of its own: 16 bits in its lane, 48 in the reserve, for the open ones in their order.
    layout = LaneLayout(size, size // 4, size)
    low = (drawn << np.uint64(16))[np.isinf(lane_cells(sigma)[drawn >> np.uint64(48)])]
    packed = (drawn >> np.uint64(48)).astype("<u2").view("<u8")
    lane_words = np.concatenate([packed, low, np.zeros(layout.words - len(packed) - len(low), np.uint64)])[None]
    exact = (grid_steps(drawn, sigma, "8-bit") + 100).astype(np.float32) * np.float32(1 / 255)
    for found in eight_bit_samples(lane_words, pixels, sigma, layout):
        assert np.array_equal(found[0], exact)

    # The graph takes word j of block b at place (j, b).
    stream = np.ascontiguousarray(drawn.reshape(-1, 4).T).reshape(-1).view(np.int64)
    signed_words = torch.from_numpy(drawn.view(np.int64)).reshape(1, -1)
    inputs: Inputs = {"words": (ir.DataType.INT64, [size]), "pixels": (ir.DataType.FLOAT, [1, size])}
    blocks = size // 4
    module = Sampler(nn.Identity(), Card(classes=("a", "b"), input=InputSpec(1, 1, size), sigma=sigma))

    # Every threshold of the 8-bit noise is one of the 16-bit noise, too: there the last bit decides between two steps;
    # in the far tails a step is less than one word wide.
    inner, chance = (drawn > 2**24) & (drawn < 2**64 - 2**24), slice(len(EXTREME), len(EXTREME) + 200_000)
    fine = (grid_steps(drawn, sigma, "16-bit") + 25700).astype(np.float32) * np.float32(1 / 65535)
    session = session_of(
        lambda b, w, p: sampler_onnx._sixteen_bits(b, w, p, sigma, blocks, size), inputs, ir.DataType.FLOAT
    )
    for found in (
        session.run(None, {"words": stream, "pixels": pixels})[0][0],
        module._sixteen_bits(signed_words, torch.from_numpy(pixels)).numpy()[0],
    ):
        assert np.array_equal(found[chance], fine[chance])
        assert np.abs(found - fine)[inner].max() < 1.5 / 65535
        assert np.abs(found).max() < 10 * sigma + 1


def eight_bit_samples(drawn: Any, pixels: Any, sigma: float, layout: LaneLayout) -> list[Any]:
    """What the ONNX sampler and the TorchScript sampler make of these words, (count, words), in the 8-bit domain."""
    count = len(drawn)
    by_block = np.ascontiguousarray(drawn.reshape(count, -1, 4).transpose(0, 2, 1)).reshape(-1).view(np.int64)
    inputs: Inputs = {"words": (ir.DataType.INT64, ["words"]), "pixels": (ir.DataType.FLOAT, [1, layout.size])}
    session = session_of(lambda b, w, p: sampler_onnx._eight_bits(b, w, p, sigma, layout), inputs, ir.DataType.FLOAT)
    module = Sampler(nn.Identity(), Card(classes=("a", "b"), input=InputSpec(1, 1, layout.size), sigma=sigma))
    module.lanes, module.reserve, module.lane_words = layout.lanes, layout.reserve, layout.words
    by_torch = module._eight_bits(torch.from_numpy(drawn.view(np.int64)), torch.from_numpy(pixels))
    return [session.run(None, {"words": by_block, "pixels": pixels})[0], by_torch.numpy()]


@pytest.mark.parametrize(("size", "reserve"), [(1, 1), (30, 3), (784, 784), (3072, 40)])
def test_all_samplers_take_the_reserve_in_the_same_order(size: int, reserve: int) -> None:
    """The runtime too, with reserves that suffice and with such as run out."""
    layout, sigma = LaneLayout(size, -(-size // 4), reserve), 1.0
    drawn = np.ascontiguousarray(words(3, 0, 7, layout.words))
    steps = np.empty((7, size), dtype=np.float32)
    look_up_lanes(drawn, sigma, layout, steps)
    places = np.flatnonzero(np.isinf(steps))
    steps.reshape(-1)[places] = settle_open(drawn, sigma, layout, places)
    expected = (steps + np.float32(10)) * np.float32(1 / 255)
    for found in eight_bit_samples(drawn, np.full((1, size), 10 / 255, dtype=np.float32), sigma, layout):
        assert np.array_equal(found, expected)


@pytest.fixture(scope="module")
def sampler_files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One odd-sized ensemble as a sampler in both formats, and as a plain scores graph."""
    folder = tmp_path_factory.mktemp("sampler")
    ensemble, card = make_ensemble(shape=(3, 9, 7), betas=(1.0, -0.7, 0.4), classes=5, sigma=0.5, seed=11)
    paths = {name: folder / name for name in ("sampler.onnx", "sampler.pt", "plain.onnx")}
    for name, path in paths.items():
        export_ensemble(ensemble, card, path, sampler=name.startswith("sampler"), samples=20)
    return paths


def test_votes_are_the_runtimes(sampler_files: dict[str, Path]) -> None:
    """The same seed casts the same votes in the sampler, in TorchScript and by Predictor on the scores graph."""
    predictor = Predictor.load(sampler_files["plain.onnx"], device="cpu", threads=1)
    card = predictor.card
    image = np.random.default_rng(5).integers(0, 256, card.input.shape, dtype=np.uint8)
    unit = (image * np.float32(1 / 255))[None]

    @given(SEEDS, st.integers(0, 10**6), st.integers(1, 60), st.sampled_from(DOMAINS))
    @settings(max_examples=10, deadline=None)
    def check(seed: int, first: int, count: int, domain: GridDomain) -> None:
        noisy = np.empty((count, *card.input.shape), dtype=np.float32)
        add_noise(image, noise=noise_name(domain), sigma=0.5, seed=seed, first=first, out=noisy)
        scores = predictor.engine.scores(noisy)
        expected = np.bincount(scores.argmax(1), minlength=6)
        ordered = np.sort(scores, axis=1)
        near_ties = int((ordered[:, -1] - ordered[:, -2] < 1e-5 * np.abs(scores).max()).sum())
        for name in ("sampler.onnx", "sampler.pt"):
            found = sampler_votes(sampler_files[name], unit, seed=seed, first=first, count=count, domain=domain)
            assert found.sum() == count
            assert np.abs(found - expected).sum() <= 2 * near_ties

    check()


def test_a_certificate_has_the_samplers_votes(sampler_files: dict[str, Path]) -> None:
    predictor = Predictor.load(sampler_files["sampler.onnx"], device="cpu", threads=1)
    image = np.random.default_rng(6).integers(0, 256, predictor.card.input.shape, dtype=np.uint8)
    certificate = predictor.certify(image, n=300, n0=20, seed=2**63 + 5)
    unit = (image * np.float32(1 / 255))[None]
    for name in ("sampler.onnx", "sampler.pt"):
        votes = sampler_votes(sampler_files[name], unit, seed=2**63 + 5, first=20, count=300, domain="8-bit")
        assert np.abs(votes - [*certificate.counts, certificate.invalid]).sum() <= 2


def test_scores_only_consumers_see_no_difference(sampler_files: dict[str, Path]) -> None:
    plain, sampling = (
        onnxruntime.InferenceSession(sampler_files[name], providers=["CPUExecutionProvider"])
        for name in ("plain.onnx", "sampler.onnx")
    )
    images = np.random.default_rng(0).random((4, 3, 9, 7), dtype=np.float32)
    assert [value.name for value in sampling.get_inputs()] == ["image"]
    assert sampling.get_outputs()[0].name == "scores"
    assert sampling.get_outputs()[0].shape == plain.get_outputs()[0].shape
    scores, votes = sampling.run(None, {"image": images})
    assert np.array_equal(scores, plain.run(None, {"image": images})[0])
    assert votes.tolist() == [0] * 6


def test_one_copy_of_the_weights(sampler_files: dict[str, Path]) -> None:
    """A sampler adds its tables and operations, about 0.35 MB, and no second ensemble."""
    models = [onnx.load(sampler_files[name]) for name in ("plain.onnx", "sampler.onnx")]
    names = [{tensor.name for tensor in model.graph.initializer} for model in models]
    added = names[1] - names[0]
    assert names[0] <= names[1]
    assert all(name.startswith("sampler/") or name in sampler_onnx.SAMPLER_INPUTS for name in added)


class _Spoilt(nn.Module):
    """Scores are not finite wherever the first pixel is dark."""

    def forward(self, image: Tensor) -> Tensor:
        first = image[:, 0, 0, 0]
        nothing = torch.where(first < 0.2, torch.log(first * 0 - 1), first * 0)
        return torch.stack([first + nothing, 1 - first], dim=1)


@pytest.mark.parametrize("suffix", [".onnx", ".pt"])
def test_scores_that_are_not_finite_vote_for_no_class(tmp_path: Path, suffix: str) -> None:
    card = Card(classes=("bright", "dark"), input=InputSpec(1, 2, 2), sigma=0.25)
    build = {".onnx": _onnx_bytes, ".pt": _torchscript_bytes}[suffix]
    path = tmp_path / f"spoilt{suffix}"
    path.write_bytes(build(Ensemble([_Spoilt()], [1.0]).freeze(), card))
    image = np.full((1, 1, 2, 2), 128 / 255, dtype=np.float32)
    noisy = np.empty((200, 1, 2, 2), dtype=np.float32)
    add_noise(
        np.full((1, 2, 2), 128, dtype=np.uint8), noise=noise_name("8-bit"), sigma=0.25, seed=1, first=0, out=noisy
    )
    first = noisy[:, 0, 0, 0]
    expected = [int((first >= 0.5).sum()), int(((first >= 0.2) & (first < 0.5)).sum()), int((first < 0.2).sum())]
    assert min(expected) > 10
    assert sampler_votes(path, image, seed=1, first=0, count=200, domain="8-bit").tolist() == expected


def _onnx_bytes(ensemble: Ensemble, card: Card) -> bytes:
    from robust.export.fusion import fuse
    from robust.export.onnx_file import onnx_file

    return onnx_file(fuse(ensemble, card.input), card, sampler=True, opset=None)(card)


def _torchscript_bytes(ensemble: Ensemble, card: Card) -> bytes:
    from robust.export.fusion import fuse
    from robust.export.torch_files import torchscript_file

    return torchscript_file(fuse(ensemble, card.input), card, sampler=True)(card)


def test_a_sampler_needs_sigma_and_a_format_that_has_one(tmp_path: Path) -> None:
    ensemble, card = make_ensemble(sigma=None)
    with pytest.raises(ExportError, match="needs the sigma"):
        export_ensemble(ensemble, card, tmp_path / "model.onnx", sampler=True)
    ensemble, card = make_ensemble()
    with pytest.raises(ExportError, match="no sampler"):
        export_ensemble(ensemble, card, tmp_path / "model.pt2", sampler=True)
    assert not any(tmp_path.iterdir())


def test_the_longer_batch_has_a_shape_from_which_memory_is_planned(sampler_files: dict[str, Path]) -> None:
    graph = onnx.load(sampler_files["sampler.onnx"]).graph
    described = {value.name: value.type.tensor_type.shape.dim for value in graph.value_info}
    ((name, dims),) = ((name, dims) for name, dims in described.items() if len(dims) == 4)
    assert [dim.dim_param or dim.dim_value for dim in dims] == ["rows", 3, 9, 7]
    assert any(name in node.input for node in graph.node)
    assert not onnx.load(sampler_files["plain.onnx"]).graph.value_info
