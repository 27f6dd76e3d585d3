"""Prices: the radius that n votes prove at each alpha, so that a visitor sees what more votes or less certainty buy.

All of them rest on one sequence of samples, so they differ in nothing but n and alpha. Each one is the radius of the
certificate that `Predictor.certify(image, n=n, n0=100, alpha=alpha, seed=seed)` gives, and true by itself. Who looks at
all of them and keeps the largest has looked more than once: that is why they are shown, and not certified.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from robustinfer import Predictor
from robustinfer.errors import SampleSizeError
from robustinfer.requests import Request
from robustinfer.settings import GridDomain
from robustinfer.voting import votes_of

__all__ = ["ALPHAS", "SELECTION", "SIZES", "Prices", "prices"]

SIZES = (100, 1_000, 10_000, 100_000)
ALPHAS = (0.1, 0.01, 0.001, 0.0001, 0.000001)
SELECTION = 100


@dataclass(frozen=True)
class Prices:
    """`radii` has one row for each of `sizes` and in it one entry for each of `alphas`.

    A radius of 0 is an abstention; None means that so few votes prove nothing at this alpha, even if all agree.
    """

    seed: int
    sizes: tuple[int, ...]
    alphas: tuple[float, ...]
    radii: tuple[tuple[float | None, ...], ...]

    def to_json(self) -> dict[str, Any]:
        """As a JSON object; the seed is text, because JavaScript rounds numbers of 64 bits."""
        return {**vars(self), "seed": str(self.seed)}


def prices(
    predictor: Predictor,
    image: npt.NDArray[Any],
    *,
    sizes: Sequence[int] = SIZES,
    alphas: Sequence[float] = ALPHAS,
    seconds: float = 10.0,
    seed: int | None = None,
    domain: GridDomain | None = None,
) -> Prices:
    """Draw votes once, and see what they prove. Sizes that would take longer than about `seconds` are left out."""
    question = Request(image=image, n0=SELECTION, seed=seed, domain=domain).ask(predictor.card)
    began = time.perf_counter()

    def drawn(first: int, count: int) -> Any:
        return votes_of(predictor.engine, question, first, count, batch=predictor.batch)

    def radius(n: int, alpha: float) -> float | None:
        """What the votes so far prove, by the procedure that would have drawn them."""
        request = Request(image=image, n=n, n0=SELECTION, alpha=alpha, seed=question.seed, domain=domain)
        try:
            procedure = request.ask(predictor.card).begin()
        except SampleSizeError:
            return None
        next(procedure)
        procedure.send(selection)
        try:
            procedure.send(counts)
        except StopIteration as end:
            return float(end.value.radius)
        raise AssertionError("A procedure of fixed size looks at its votes once.")

    selection, counts, done = drawn(0, SELECTION), question.tally.empty(), 0
    rows: list[tuple[float | None, ...]] = []
    for size in sizes:
        if rows and (time.perf_counter() - began) * size / done > seconds:
            break
        counts, done = counts + drawn(SELECTION + done, size - done), size
        rows.append(tuple(radius(size, alpha) for alpha in alphas))
    return Prices(question.seed, tuple(sizes[: len(rows)]), tuple(alphas), tuple(rows))
