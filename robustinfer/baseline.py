"""A baseline: how certificates of held-out images turn out, and how far those of later images are from it.

A model's radii and abstentions need no labels, so a server can watch them: where the images change, they do. Only
certificates of the same settings can be compared: n alone moves every radius.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .certificate import Certificate
from .errors import CardError, CertificateError

__all__ = ["Baseline"]

_STEPS = 100  # quantiles of the radii that are kept, and one more


@dataclass(frozen=True)
class Baseline:
    """Settings of the certificates, the share that abstained, and quantiles of the radii of the others.

    `radii` are the quantiles 0, 0.01, ..., 1, or nothing if all abstained.
    """

    images: int
    procedure: str
    n: int
    alpha: float
    bound: str
    domain: str
    abstention: float
    radii: tuple[float, ...]

    @classmethod
    def of(cls, certificates: Sequence[Certificate]) -> "Baseline":
        """The baseline of certificates that were all made with the same settings."""
        settings = {_settings(certificate) for certificate in certificates}
        if len(settings) != 1:
            raise CertificateError(
                f"A baseline is made from certificates of the same settings; found {len(settings)} different ones."
            )
        radii = [certificate.radius for certificate in certificates if not certificate.abstained]
        quantiles = np.quantile(radii, np.linspace(0, 1, _STEPS + 1), method="lower") if radii else ()
        one = certificates[0]
        return cls(
            images=len(certificates),
            procedure=one.procedure,
            n=one.n,
            alpha=one.alpha,
            bound=one.bound,
            domain=one.domain,
            abstention=1 - len(radii) / len(certificates),
            radii=tuple(float(radius) for radius in quantiles),
        )

    def to_json(self) -> dict[str, Any]:
        """The baseline as a JSON object, as a card has it."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> "Baseline":
        """Read it from a card; a CardError if it is none."""
        try:
            return cls(**{**document, "radii": tuple(document["radii"])})
        except (KeyError, TypeError) as error:
            raise CardError(f"The baseline of the card is malformed: {error}.") from error

    def covers(self, certificate: Certificate) -> bool:
        """Whether a certificate can be compared: it was made with the same settings."""
        return _settings(certificate) == (self.procedure, self.n, self.alpha, self.bound, self.domain)

    def abstention_difference(self, certificates: Sequence[Certificate]) -> float:
        """The share of abstentions among these certificates, less that of the baseline."""
        return sum(certificate.abstained for certificate in certificates) / len(certificates) - self.abstention

    def radius_distance(self, certificates: Sequence[Certificate]) -> float | None:
        """Kolmogorov's distance of the radii from those of the baseline, between 0 and 1; None without any radius.

        The largest difference, over all r, between the shares of radii up to r. The quantiles stand for the radii of
        the baseline, which can change the distance by a hundredth.
        """
        radii = np.sort([certificate.radius for certificate in certificates if not certificate.abstained])
        kept = np.array(self.radii)
        if not len(radii) or not len(kept):
            return None
        places = np.concatenate([radii, kept])
        shares = (np.searchsorted(sample, places, "right") / len(sample) for sample in (radii, kept))
        return float(np.abs(np.subtract(*shares)).max())


def _settings(certificate: Certificate) -> tuple[str, int, float, str, str]:
    return (certificate.procedure, certificate.n, certificate.alpha, certificate.bound, certificate.domain)
