"""Domains: among which images a label is certified, and by which noise.

* `8-bit`: uint8 images. N is the Gaussian rounded to grey levels, and the classifier sees (x + N)/255.
* `16-bit`: real images in [0,1], rounded to k/65535. N is the Gaussian rounded to steps of that grid.
* `continuous`: real images, and the Gaussian quantile of the word in double precision, added in single precision. The
  rounding of x + e is not covered by any theorem, so no new certificate is of this domain; old ones are replayed.

Why integers: on a grid, x + N is exact (Voracek and Hein, arXiv 2207.07209). For whole x, round(x + z) = x + round(z),
so this is ordinary Gaussian smoothing of the classifier "round to the grid, then f", to which Theorem 1 of Cohen et al.
applies: at every point within the radius of a grid point, the other grid points included. Whatever an engine rounds
after the exact sum is a part of f.

What rounding an image costs: let x be the image that is certified, x' another one, and k, k' the grid points they are
rounded to, in units of pixels. By the triangle inequality |k - k'| <= |x - x'| + |x - k| + |x' - k'|. Rounding to the
grid moves a pixel by at most (1/2)(1/65535), and rounding a double to single precision before it by at most 2^-25, so
each of the last two terms is at most sqrt(d) ((1/2)(1/65535) + 2^-25). If the label of the smoothed classifier is the
same at all grid points within R of k, then it is the same for all images within R - sqrt(d) (1/65535 + 2^-24) of x.
`rounding_cost` is that difference. An 8-bit image is a point of the 16-bit grid (255 * 257 = 65535), but its neighbours
need not be; it pays the same.
"""

import math
from typing import Literal, get_args

__all__ = [
    "COARSE_LEVELS",
    "DOMAINS",
    "FINE_LEVELS",
    "FINE_SIGMAS",
    "Domain",
    "GridDomain",
    "NoiseName",
    "domain_of_noise",
    "known_noise",
    "noise_name",
    "rounding_cost",
]

Domain = Literal["8-bit", "16-bit", "continuous"]
GridDomain = Literal["8-bit", "16-bit"]

DOMAINS: tuple[GridDomain, ...] = get_args(GridDomain)
"""The domains that can be asked for."""

COARSE_LEVELS = 255  # grid steps of 8-bit images in the unit of pixels
FINE_LEVELS = 65535  # the same of 16 bits
FINE_SIGMAS = (0.001, 2.0)
"""The smallest and the largest sigma of the 16-bit domain: from 66 grid steps to a table of 20 MB."""

NoiseName = Literal[
    "philox4x64-10/lanes", "philox4x64-10/integer", "philox4x64-10/integer-16", "philox4x64-10/continuous"
]
"""How a certificate names its noise: the stream, and what its words become (`noise.py`)."""

# The first noise of a domain is the one that is drawn; the others are replayed.
_DOMAINS: dict[NoiseName, Domain] = {
    "philox4x64-10/lanes": "8-bit",
    "philox4x64-10/integer": "8-bit",
    "philox4x64-10/integer-16": "16-bit",
    "philox4x64-10/continuous": "continuous",
}


def noise_name(domain: Domain) -> NoiseName:
    """The noise that is drawn in a domain."""
    return next(name for name, other in _DOMAINS.items() if other == domain)


def known_noise(name: str) -> NoiseName | None:
    """The noise of this name, or None."""
    return next((noise for noise in _DOMAINS if noise == name), None)


def domain_of_noise(noise: NoiseName) -> Domain:
    """The domain that a noise belongs to."""
    return _DOMAINS[noise]


def rounding_cost(domain: Domain, size: int) -> float:
    """What a radius between grid points loses when it is about all images; the proof stands above."""
    return math.sqrt(size) * (1 / FINE_LEVELS + 2.0**-24) if domain == "16-bit" else 0.0
