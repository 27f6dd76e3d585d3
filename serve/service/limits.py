"""What one request may ask for. Checked before any work is done, so a refusal costs almost nothing."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from robustinfer.errors import SettingError
from robustinfer.settings import SETTINGS

from .refusals import Refusal

__all__ = ["Limits"]

_CODES = {"n": "limit_n", "n0": "limit_n", "deadline": "limit_deadline"}  # of what nobody may ask for, too


@dataclass(frozen=True)
class Limits:
    """Limits of one request.

    `max_n`: samples of all images of the request together. `max_deadline`: seconds a client may ask for.
    `max_seconds`: how long the samples may take on this machine, by the speed the worker has measured.
    `max_reading`: seconds for which the bodies of requests that are answered together may be read and decoded; one
    picture has no more either. `max_body`: bytes. `max_pixels`: pixels an image file may have, read from its header
    before it is decoded.
    `max_images`: images in one request of the open inference protocol. `allow_seeds`: clients may choose the seed,
    and so draw again until a certificate pleases them. `domain`: the only domain this server answers in, or None for
    that of the image's pixels.
    """

    max_n: int = 100_000
    max_deadline: float = 30.0
    max_seconds: float = 60.0
    max_reading: float = 3.0
    max_body: int = 1 << 20
    max_pixels: int = 25_000_000
    max_images: int = 64
    allow_seeds: bool = False
    domain: str | None = None
    min_alpha: float = SETTINGS["alpha"].least or 0.0
    max_alpha: float = SETTINGS["alpha"].most or 1.0

    def to_json(self) -> dict[str, Any]:
        """The limits as a JSON object, part of a model's metadata."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> "Limits":
        """Read limits; names that are not known are ignored."""
        known = {field.name for field in dataclasses.fields(cls)}
        return cls(**{name: value for name, value in document.items() if name in known})

    def check_settings(self, settings: Mapping[str, Any], *, images: int) -> None:
        """Refuse what this server does not allow, naming the field.

        What nobody may ask for is the matter of `robustinfer.settings`; it is refused here where it has a limit's code.
        """
        if settings.get("seed") is not None and not self.allow_seeds:
            raise Refusal.unacceptable(
                "limit_seed",
                "This server draws its own seeds: leave seed out (see `robust serve --allow-seeds`).",
            )
        if self.domain is not None and settings.get("domain") not in {None, self.domain}:
            raise Refusal.unacceptable(
                "limit_domain",
                f"This server answers in the {self.domain} domain only; found {settings['domain']}: leave domain out.",
            )
        n, n0, alpha, deadline = (settings.get(name) for name in ("n", "n0", "alpha", "deadline"))
        for name, samples in (("n", n), ("n0", n0)):
            if samples is not None and samples * images > self.max_n:
                each = f" for each of {images} images" if images > 1 else ""
                raise Refusal.unacceptable(
                    "limit_n", f"{name} is at most {self.max_n} on this server; found {samples}{each}."
                )
        if alpha is not None and not self.min_alpha <= alpha <= self.max_alpha:
            raise Refusal.unacceptable(
                "limit_alpha", f"alpha lies between {self.min_alpha} and {self.max_alpha} here; found {alpha}."
            )
        if deadline is not None and deadline > self.max_deadline:
            raise Refusal.unacceptable(
                "limit_deadline", f"deadline is at most {self.max_deadline:g} seconds here; found {deadline:g}."
            )
        for name, code in _CODES.items():
            if settings.get(name) is not None:
                try:
                    SETTINGS[name].check(settings[name])
                except SettingError as error:
                    raise Refusal.unacceptable(code, str(error)) from None

    def check_cost(self, samples: int, speed: float | None) -> None:
        """Refuse work that would hold the worker for longer than `max_seconds` at a `speed` in samples per second."""
        if speed is None or samples <= speed * self.max_seconds:
            return
        raise Refusal.unacceptable(
            "limit_seconds",
            f"{samples} samples take about {samples / speed:.0f} s on this server, which allows {self.max_seconds:g} s"
            f": ask for at most {int(speed * self.max_seconds)} samples, or give a deadline.",
        )
