"""Rows: the scores of an image may not depend on the images beside it in a batch.

A certificate speaks of one function of one image. A graph with batch statistics, or one that chooses its quantisation
from the whole batch, is not such a function: which samples happen to share a run would decide votes. So whenever a file
is opened, an image is scored alone, among others, in another order, and beside extreme ones. A graph that is made to
pass can still do as it likes; this finds accidents.
"""

import numpy as np
import numpy.typing as npt

from ..errors import BatchError, EngineError
from .engine import Engine

__all__ = ["TOLERANCE", "check_rows"]

TOLERANCE = 1e-3
"""Largest difference of a score that counts as rounding, relative to the largest score."""

_EXTREME = 16.0  # pixels under the strongest noise that may be asked for
_LEAST = 1e-6  # differences below it are rounding, whatever the scores

Rows = npt.NDArray[np.float32]


def check_rows(engine: Engine, shape: tuple[int, int, int], *, images: Rows | None = None) -> None:
    """Refuse a graph that scores an image differently beside others; `images` are tried instead of random ones."""
    if getattr(engine, "dynamic", False):
        raise BatchError(
            "This graph is quantised dynamically: it takes its scales from the batch, so the scores of an image depend "
            "on the images beside it, and no certificate would hold. Quantise it statically (`robust export "
            "--precision int8`, or onnxruntime's quantize_static), or load the file with batch=1."
        )
    generator = np.random.Generator(np.random.Philox(key=0))
    if images is None:
        images = generator.normal(0.5, 0.25, (2, *shape)).astype(np.float32)
    alone = np.concatenate([_alone(engine, image) for image in images])
    bright, dark = np.ones((1, *shape), np.float32), np.zeros((1, *shape), np.float32)
    extreme = generator.choice(np.array([-_EXTREME, _EXTREME], np.float32), size=(2, *shape))
    count = len(images)
    orders = {
        "among others": (np.concatenate([images, bright, dark]), np.arange(count)),
        "in another order, beside extreme ones": (
            np.concatenate([extreme[:1], images[::-1], extreme[1:]]),
            np.arange(count, 0, -1),
        ),
    }
    for words, (batch, places) in orders.items():
        _compare(alone, _together(engine, np.ascontiguousarray(batch))[places], words)


def _alone(engine: Engine, image: Rows) -> Rows:
    try:
        return _scores(engine, image[None])
    except EngineError:  # torch.export may leave out a batch of one: the image beside itself says the same
        return _scores(engine, np.stack([image, image]))[:1]


def _together(engine: Engine, batch: Rows) -> Rows:
    try:
        return _scores(engine, batch)
    except EngineError as error:
        raise BatchError(
            f"Expected a graph that takes any number of images in one run; {len(batch)} of them fail: {error} Export "
            "it with a dynamic batch dimension, or load it with batch=1."
        ) from error


def _scores(engine: Engine, batch: Rows) -> Rows:
    scores = np.asarray(engine.scores(batch))
    if scores.ndim < 2 or len(scores) != len(batch):
        raise BatchError(
            f"Expected scores of shape (images, classes), found {scores.shape} for {len(batch)} images in one run."
        )
    return scores


def _compare(alone: Rows, found: Rows, words: str) -> None:
    largest = float(np.max(np.abs(alone), where=np.isfinite(alone), initial=0.0))
    with np.errstate(invalid="ignore"):
        gap = np.abs(found - alone)
    gap[(found == alone) | (np.isnan(found) & np.isnan(alone))] = 0.0
    worst = float(np.nan_to_num(gap, nan=np.inf).max(initial=0.0))
    if worst > TOLERANCE * largest + _LEAST:
        raise BatchError(
            f"The scores of an image depend on the images beside it: they differ by {worst:.2g} {words} (the largest "
            f"score is {largest:.2g}), so no certificate would hold. Remove batch statistics (BatchNorm in training "
            "mode or without running statistics) and dynamic quantisation, or load the file with batch=1."
        )
