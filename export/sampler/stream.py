"""The noise stream in numbers: what the ONNX sampler and the TorchScript sampler have in common.

Both write out `robustinfer.smoothing.noise` in tensor operations: Philox4x64-10 (Salmon et al. 2011) keyed by the seed,
then a word becomes a whole number of grid steps. In the 8-bit domain a table does it, and the noise is the runtime's,
bit for bit. In the 16-bit domain the table would add 2 MB to a file at sigma = 0.25 and 9 MB at sigma = 1, so it is the
rounded Gaussian quantile of the word there. z is computed with a relative error of about 10^-15, so at sigma = 0.25
one value in 10^10 falls on the other side of a step than by the runtime's table.

Neither ONNX Runtime nor TorchScript has unsigned 64-bit arithmetic everywhere, so words are the same 64 bits seen as
signed integers.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from robustinfer.card import Card
from robustinfer.errors import ExportError
from robustinfer.smoothing.domains import DOMAINS, FINE_SIGMAS, GridDomain
from robustinfer.smoothing.noise import thresholds

__all__ = [
    "CENTRAL",
    "FAR_TAIL",
    "FINE_LEVELS",
    "KEY_STEPS",
    "LEVELS",
    "LOW_HALF",
    "MULTIPLIERS",
    "NEAR_TAIL",
    "NOT_SIGN",
    "OPEN",
    "ROUNDS",
    "SIGN",
    "IntegerTable",
    "integer_table",
    "sampler_domains",
    "sampler_sigma",
    "signed",
]

LEVELS = 255  # grid steps of 8-bit images in the unit of pixels
FINE_LEVELS = 65535  # the same of 16 bits
ROUNDS = 10


def signed(word: int) -> int:
    """The int64 with the same 64 bits as an unsigned word."""
    return word - (1 << 64) if word >= 1 << 63 else word


MULTIPLIERS = (0xD2E7470EE14C6C93, 0xCA5A826395121157)
KEY_STEPS = (0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B)
LOW_HALF = 0xFFFFFFFF
SIGN = signed(1 << 63)
NOT_SIGN = (1 << 63) - 1
OPEN = 1e9
"""Stands in the table of cells where the top 16 bits of a word do not settle its value."""

# Rational approximations of the Gaussian quantile, relative error 1e-16: Wichura's AS 241 (Applied Statistics 37,
# 1988), numerator and denominator by rising powers. CENTRAL is in 0.180625 - q^2 for |q| = |p - 1/2| <= 0.425; the
# tails are in r - 1.6 and r - 5 with r = sqrt(-log p), and meet at r = 5.
CENTRAL = (
    (
        3.3871328727963666080,
        133.14166789178437745,
        1971.5909503065514427,
        13731.693765509461125,
        45921.953931549871457,
        67265.770927008700853,
        33430.575583588128105,
        2509.0809287301226727,
    ),
    (
        1.0,
        42.313330701600911252,
        687.18700749205790830,
        5394.1960214247511077,
        21213.794301586595867,
        39307.895800092710610,
        28729.085735721942674,
        5226.4952788528545610,
    ),
)
NEAR_TAIL = (
    (
        1.42343711074968357734,
        4.63033784615654529590,
        5.76949722146069140550,
        3.64784832476320460504,
        1.27045825245236838258,
        0.241780725177450611770,
        0.0227238449892691845833,
        7.74545014278341407640e-4,
    ),
    (
        1.0,
        2.05319162663775882187,
        1.67638483018380384940,
        0.689767334985100004550,
        0.148103976427480074590,
        0.0151986665636164571966,
        5.47593808499534494600e-4,
        1.05075007164441684324e-9,
    ),
)
FAR_TAIL = (
    (
        6.65790464350110377720,
        5.46378491116411436990,
        1.78482653991729133580,
        0.296560571828504891230,
        0.0265321895265761230930,
        0.00124266094738807843860,
        2.71155556874348757815e-5,
        2.01033439929228813265e-7,
    ),
    (
        1.0,
        0.599832206555887937690,
        0.136929880922735805310,
        0.0148753612908506148525,
        7.86869131145613259100e-4,
        1.84631831751005468180e-5,
        1.42151175831644588870e-7,
        2.04426310338993978564e-15,
    ),
)


@dataclass(frozen=True)
class IntegerTable:
    """N = smallest + #{k: T_k <= word}, settled by the top 16 bits for most words and by bisection for the rest.

    `cells` holds N for each pattern of the top 16 bits, or `OPEN`. `thresholds` are the T_k with their sign bit
    flipped, which turns unsigned order into signed order, filled up to 2^steps - 1 entries for that many bisections.
    """

    cells: npt.NDArray[np.float32]
    thresholds: npt.NDArray[np.int64]
    count: int
    smallest: int

    @property
    def steps(self) -> int:
        """Bisection steps that find one of count + 1 places."""
        return self.count.bit_length()


def integer_table(sigma: float) -> IntegerTable:
    """The table of the runtime's thresholds for one sigma."""
    steps, smallest = thresholds(sigma, "8-bit")
    starts = np.arange(1 << 16, dtype=np.uint64) << np.uint64(48)
    at_start = np.searchsorted(steps, starts, side="right")
    at_end = np.searchsorted(steps, starts | np.uint64((1 << 48) - 1), side="right")
    cells = np.where(at_start == at_end, at_start + smallest, OPEN).astype(np.float32)
    filled = np.full((1 << len(steps).bit_length()) - 1, NOT_SIGN, dtype=np.int64)
    filled[: len(steps)] = (steps ^ np.uint64(1 << 63)).view(np.int64)
    return IntegerTable(cells, filled, len(steps), smallest)


def sampler_sigma(card: Card) -> float:
    """The sigma of a card that is to have a sampler."""
    if card.sigma is None:
        raise ExportError(
            "A sampler needs the sigma of the noise, and this model was not trained for any: "
            "export it without the sampler, or train it with noise."
        )
    return card.sigma


def sampler_domains(sigma: float) -> tuple[GridDomain, ...]:
    """The domains of a sampler, in the order of their numbers: 0 is 8-bit, 1 is 16-bit where the runtime has that."""
    smallest, largest = FINE_SIGMAS
    return DOMAINS if smallest <= sigma <= largest else DOMAINS[:1]
