"""How fast a model answers on this machine, and how fast the machine could be.

The machine's own limit is the rate of a large float32 matrix product, by numpy or, for an ONNX file, by ONNX Runtime if
that is faster, measured in the same run: no network made of convolutions and matrix products is faster than its
operations at that rate.
"""

import dataclasses
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from .engines.product import matrix_products
from .predictor import Predictor
from .smoothing.domains import noise_name
from .smoothing.noise import add_noise

__all__ = ["BatchSpeed", "FileSpeed", "Throughput", "compare_throughput", "measure_throughput", "samples_of"]

Pixels = npt.NDArray[np.uint8]

_SIDE = 512  # large enough for full speed, short enough to find a quiet moment on a busy machine
_SIGMA = 0.25  # for a model that was not trained for noise
BATCHES = (1, 16, 64, 256, 1024)


@dataclass(frozen=True)
class BatchSpeed:
    """Samples a second of the engine alone at one batch size: the median and the best of several timings."""

    batch: int
    median: float
    best: float


@dataclass(frozen=True)
class Throughput:
    """The speed of a model on this machine.

    `engine` has the rates of the engine alone, `certify` is the rate of whole certificates at the best batch, noise and
    statistics included. `gflops` is the machine's float32 matrix product in GFLOP a second, `flops` the cost of a
    sample, `limit` their quotient in samples per second; None where the graph cannot be read or runs elsewhere.
    """

    model: str
    digest: str
    engine_name: str
    device: str
    engine: tuple[BatchSpeed, ...]
    batch: int
    certify: float
    certify_samples: int
    gflops: float | None
    flops: int | None
    limit: float | None

    @property
    def share(self) -> float | None:
        """The part of the machine's limit that certification reaches."""
        return self.certify / self.limit if self.limit else None

    @property
    def disturbed(self) -> bool:
        """Whether the engine was faster than the limit, which only happens when other work slowed the machine down."""
        return self.limit is not None and max(rate.best for rate in self.engine) > self.limit

    def to_json(self) -> dict[str, Any]:
        """The measurement as a JSON object."""
        return dataclasses.asdict(self) | {"share": self.share, "disturbed": self.disturbed}


@dataclass(frozen=True)
class FileSpeed:
    """One of several files: samples a second of its engine at the batch that suits it best, and how many times those of
    the first file."""

    model: str
    digest: str
    batch: int
    rate: float
    times: float


def compare_throughput(
    predictors: Sequence[Predictor],
    *,
    images: Pixels | None = None,
    batches: Sequence[int] = BATCHES,
    seconds: float = 1.0,
    progress: Callable[[float], None] = lambda _: None,
) -> tuple[FileSpeed, ...]:
    """Time several files in turn, so that a busy moment of the machine hits all of them; `seconds` for each batch size.

    All see noisy copies of the same images, which matters for cascades, or random pixels.
    """
    taken: list[dict[int, float]] = [{} for _ in predictors]
    for batch in batches:
        actions = [partial(one.engine.scores, samples_of(one, images, batch)) for one in predictors]
        for times, found in zip(_in_turn(actions, seconds), taken, strict=True):
            found[batch] = batch / float(np.median(times))
        progress(1)
    best = [max(found.items(), key=lambda pair: pair[1]) for found in taken]
    return tuple(
        FileSpeed(predictor.card.name, predictor.digest, batch, rate, rate / best[0][1])
        for predictor, (batch, rate) in zip(predictors, best, strict=True)
    )


def _in_turn(actions: Sequence[Callable[[], Any]], seconds: float) -> list[list[float]]:
    """How long each action took, again and again one after the other, at least three times; the first is a warm-up."""
    for action in actions:
        action()
    taken: list[list[float]] = [[] for _ in actions]
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(taken[-1]) < 3:
        for action, times in zip(actions, taken, strict=True):
            begun = time.perf_counter()
            action()
            times.append(time.perf_counter() - begun)
    return taken


def samples_of(predictor: Predictor, images: Pixels | None, count: int) -> npt.NDArray[np.float32]:
    """Noisy copies of the images, as many of each as there is room for; random pixels if there are none."""
    spec = predictor.card.input
    if images is None:
        return np.random.default_rng(0).random((count, *spec.shape), dtype=np.float32)
    samples = np.empty((count, *spec.shape), dtype=np.float32)
    noise, sigma = noise_name("8-bit"), predictor.card.sigma or _SIGMA
    for place in range(count):
        image = images[place % len(images)]
        add_noise(image, noise=noise, sigma=sigma, seed=0, first=place, out=samples[place : place + 1])
    return samples


def measure_throughput(
    predictor: Predictor,
    *,
    flops: int | None,
    images: Pixels | None = None,
    batches: Sequence[int] = BATCHES,
    seconds: float = 1.0,
    progress: Callable[[float], None] = lambda _: None,
) -> Throughput:
    """Time the engine at each batch size, a certificate at the best one, and the machine, `seconds` each.

    The engine sees noisy copies of the `images`, uint8 (N, C, H, W), or random pixels if there are none.
    """
    rng = np.random.default_rng(0)
    spec = predictor.card.input
    rates = []
    for batch in batches:
        (runs,) = _in_turn([partial(predictor.engine.scores, samples_of(predictor, images, batch))], seconds)
        rates.append(BatchSpeed(batch, batch / float(np.median(runs)), batch / min(runs)))
        progress(1)
    best = max(rates, key=lambda rate: rate.median)
    image = rng.integers(0, 256, spec.shape, dtype=np.uint8) if images is None else images[0]
    certify, samples = _certify_rate(predictor, best, seconds, image)
    progress(1)
    gflops = _matrix_product(predictor, rng, seconds) if predictor.device == "cpu" else None
    progress(1)
    return Throughput(
        model=predictor.card.name,
        digest=predictor.digest,
        engine_name=predictor.engine.name,
        device=predictor.device,
        engine=tuple(rates),
        batch=best.batch,
        certify=certify,
        certify_samples=samples,
        gflops=gflops,
        flops=flops,
        limit=gflops * 1e9 / flops if gflops and flops else None,
    )


def _certify_rate(predictor: Predictor, rate: BatchSpeed, seconds: float, image: Any) -> tuple[float, int]:
    """Samples a second of whole certificates, and the samples of each: about as many as fit into the time."""
    sized = Predictor(predictor.engine, predictor.card, digest=predictor.digest, batch=rate.batch)
    n = int(min(100_000, max(1000, rate.median * seconds)))
    sigma = predictor.card.sigma or _SIGMA
    used = sized.certify(image, n=n, sigma=sigma, seed=0).samples_used
    (runs,) = _in_turn([lambda: sized.certify(image, n=n, sigma=sigma, seed=0)], seconds)
    return used / float(np.median(runs)), used


def _matrix_product(predictor: Predictor, rng: np.random.Generator, seconds: float) -> float:
    """GFLOP a second of the best of several float32 products."""
    left, right = (rng.random((_SIDE, _SIDE), dtype=np.float32) for _ in range(2))
    taken = _in_turn(matrix_products(predictor.engine, left, right), seconds)
    return float(2 * _SIDE**3 / min(map(min, taken)) / 1e9)
