"""The card: everything a runtime must know about a model, in one JSON document inside the model file.

The card is published as a JSON schema in `card.schema.json` beside this module. A card describes a model; the digest of
the file that carries it is computed from the file (`Predictor.digest`), never stored inside.
"""

import dataclasses
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from .errors import CardError

__all__ = ["CARD_KEY", "Card", "CardMember", "InputSpec", "Resize", "Threat", "card_schema"]

CARD_KEY = "robustinfer.card"
"""Key of the card in ONNX `metadata_props`, and name of the extra file `robustinfer.card.json` in .pt and .pt2."""

FORMAT = 1

Resize = Literal["refuse", "nearest", "bilinear", "bicubic"]


@dataclass(frozen=True)
class InputSpec:
    """The images a model takes. Pixels are in [0,1]; normalisation is inside the graph.

    `resize` says what a runtime does with an image file of another size: `"refuse"`, or the name of an interpolation
    (`"bilinear"`, `"bicubic"`, `"nearest"`): the centre is cropped to the aspect ratio of the model, then resized. With
    `crop`, the share of each side that is kept (0.875 for 224 of 256 pixels; `crop_pct` in timm), the image is resized
    to the model's size divided by `crop`, then its centre is cut out. The certified radius refers to the pixels after
    this step.
    """

    channels: int
    height: int
    width: int
    resize: Resize = "refuse"
    crop: float | None = None

    def to_json(self) -> dict[str, Any]:
        """The input spec as it stands in a card; without a crop as it was before there was one."""
        return {name: value for name, value in dataclasses.asdict(self).items() if name != "crop" or value is not None}

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height, width."""
        return self.channels, self.height, self.width

    @property
    def size(self) -> int:
        """Number of pixels values of one image, the d of R^d."""
        return self.channels * self.height * self.width


@dataclass(frozen=True)
class Threat:
    """The change a model was trained to resist: a norm and its radius, in pixel units."""

    norm: Literal["linf", "l2"]
    delta: float


@dataclass(frozen=True)
class CardMember:
    """One base predictor f_w of the ensemble and its weight beta."""

    architecture: str
    beta: float
    stage: int


@dataclass(frozen=True)
class Card:
    """Everything a runtime must know about a model.

    `sigma` is the standard deviation of the Gaussian noise the model was trained for, in pixel units, or None for a
    model that was not trained for smoothing. `noise_trained` is false for a wrapped model, whose sigma was chosen by
    whoever wrapped it: its certificates hold as any others do, but it may abstain on nearly everything. `training`,
    `evaluation` and `parity` are for people and audits: the runtime does not read them. `baseline` is how certificates
    of held-out images turned out (`robustinfer.baseline`), for a server that watches for drift. `sampler` names the
    domains of the sampler graph, if the file has one. `cascade` says by which rule a graph asks its members one after
    the other, and what that costs; a runtime need not know.
    """

    classes: tuple[str, ...]
    input: InputSpec
    name: str = "model"
    version: str = "1"
    kind: Literal["scores", "votes"] = "scores"
    sigma: float | None = None
    noise_trained: bool = True
    threat: Threat | None = None
    members: tuple[CardMember, ...] = ()
    sampler: tuple[str, ...] = ()
    training: Mapping[str, Any] = field(default_factory=dict)
    evaluation: Mapping[str, Any] = field(default_factory=dict)
    parity: Mapping[str, Any] = field(default_factory=dict)
    license: str | None = None
    baseline: Mapping[str, Any] | None = None
    cascade: Mapping[str, Any] | None = None
    format: int = FORMAT

    def __post_init__(self) -> None:
        if len(self.classes) < 2:
            raise CardError(f"A card needs at least two classes; this one has {len(self.classes)}.")
        if min(self.input.shape) < 1:
            raise CardError(f"A card's input spec needs positive sizes; this one has {self.input.shape}.")
        if self.sigma is not None and not 0 < self.sigma < float("inf"):
            raise CardError(f"A card's sigma is a positive number or null; this one has {self.sigma!r}.")
        if self.input.resize not in get_args(Resize):
            raise CardError(f"A card's resize is one of {', '.join(get_args(Resize))}; found {self.input.resize!r}.")
        crop = self.input.crop
        if crop is not None and not (0 < crop <= 1 and self.input.resize != "refuse"):
            raise CardError(
                f"A card's crop is a share above 0 and up to 1, with a resize other than refuse; found {crop!r} with "
                f"{self.input.resize!r}."
            )

    def to_json(self) -> dict[str, Any]:
        """The card as the JSON document that goes into the file. What older cards did not have is left out where it
        says nothing, so that they keep their bytes."""
        document = dataclasses.asdict(self) | {"input": self.input.to_json()}
        if self.noise_trained:
            del document["noise_trained"]
        for name in ("baseline", "cascade"):
            if document[name] is None:
                del document[name]
        return document

    def dumps(self) -> str:
        """The card as text: sorted keys, so that equal cards are equal bytes."""
        return json.dumps(self.to_json(), sort_keys=True, ensure_ascii=False)

    @classmethod
    def from_json(cls, document: Any) -> "Card":
        """Read a card. Unknown keys of a newer minor format are ignored; a newer format number is refused."""
        if not isinstance(document, Mapping):
            raise CardError(f"A card is a JSON object; found {type(document).__name__}.")
        if document.get("format") != FORMAT:
            raise CardError(
                f"This robustinfer reads cards of format {FORMAT}; this one says {document.get('format')!r}. "
                "Install a newer robustinfer, or export the model again."
            )
        known = {f.name for f in dataclasses.fields(cls)}
        values = {key: value for key, value in document.items() if key in known}
        try:
            values["classes"] = tuple(str(name) for name in values["classes"])
            values["input"] = InputSpec(**values["input"])
            values["threat"] = Threat(**values["threat"]) if values.get("threat") else None
            values["members"] = tuple(CardMember(**member) for member in values.get("members", ()))
            values["sampler"] = tuple(values.get("sampler", ()))
            return cls(**values)
        except (KeyError, TypeError) as error:
            raise CardError(
                f"The card is malformed: {error}. It must follow {CARD_KEY}'s schema (card.schema.json)."
            ) from error

    @classmethod
    def loads(cls, text: str | bytes) -> "Card":
        """Read a card from JSON text."""
        try:
            document = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise CardError(f"The card is not a JSON document: {error}.") from error
        return cls.from_json(document)

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> "Card":
        """Read a card from a file of its own, for a model file that carries none."""
        try:
            return cls.loads(Path(path).read_bytes())
        except OSError as error:
            raise CardError(f"Cannot read the card {path}: {error.strerror or error}.") from error
        except CardError as error:
            raise CardError(f"{path}: {error}") from error


def card_schema() -> dict[str, Any]:
    """The published JSON schema of a card."""
    schema: dict[str, Any] = json.loads(Path(__file__).with_name("card.schema.json").read_text())
    return schema
