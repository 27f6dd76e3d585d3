"""The way through joining: check that the files belong together, settle their betas, and write one file of all.

The graphs are put side by side behind one input, and f = sum_t beta_t f_t is their output. The cards must agree about
classes and input, because a certificate speaks of one set of pixels and one set of names. The file goes through the
acceptance of every export: it is compared with the files it was made of before it takes its name.
"""

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from robustinfer import Predictor
from robustinfer.card import Card, CardMember
from robustinfer.errors import CardError, ExportError

from ..acceptance import HeldOut, Images, synthetic_images
from ..exporter import Exported, check_options, format_of, write_accepted
from ..sampler.stream import sampler_domains, sampler_sigma
from .fitting import Fit, fit_betas, read_held_out
from .graph import joined_graph

__all__ = ["Joined", "export_members"]

_COMPARED = 64  # images that acceptance compares on


@dataclass(frozen=True)
class Joined(Exported):
    """A model file whose members are other files: what is to be known, in words, and how the betas were fitted."""

    notes: tuple[str, ...] = ()
    fit: Fit | None = None

    def to_json(self) -> dict[str, Any]:
        """The file, its betas, what acceptance found, and what is to be known, as a JSON object."""
        betas = [member.beta for member in self.card.members]
        fitted = self.fit.to_json() if self.fit else None
        return super().to_json() | {"betas": betas, "notes": list(self.notes), "fit": fitted}


class _File(nn.Module):
    """One model file as a member: pixels in [0,1] to its scores, by the engine that will run it."""

    def __init__(self, predictor: Predictor) -> None:
        super().__init__()
        self.predictor = predictor

    def forward(self, image: Tensor) -> Tensor:
        return torch.from_numpy(np.asarray(self.predictor.engine.scores(image.numpy()), dtype=np.float32))


class _Files(nn.Module):
    """The files one by one, and their scores added up: what the joined file is compared with."""

    def __init__(self, predictors: Sequence[Predictor], betas: Sequence[float]) -> None:
        super().__init__()
        self.members = nn.ModuleList(_File(predictor) for predictor in predictors)
        self.betas = torch.tensor(betas, dtype=torch.float32)

    def forward(self, image: Tensor) -> Tensor:
        return torch.einsum("t,tnk->nk", self.betas, torch.stack([member(image) for member in self.members]))


def export_members(
    files: Sequence[str | os.PathLike[str]],
    path: str | os.PathLike[str],
    *,
    betas: Sequence[float] | None = None,
    data: str | None = None,
    split: str = "auto",
    limit: int = 1000,
    sigma: float | None = None,
    votes: bool = False,
    sampler: bool = False,
    name: str | None = None,
    version: str = "1",
    license: str | None = None,
    author: str | None = None,
    samples: int = 1000,
    progress: Callable[[float], None] = lambda _: None,
) -> Joined:
    """Write one ONNX model file whose members are the ONNX model files `files`; nothing is trained.

    `betas` multiply the members' scores: equal ones that add up to 1 if None, or fitted on up to `limit` labelled
    images of `data` (a data set as `robust certify --data` takes it, of which `split` is read: by default its test
    images, or all of a folder without a split). Choose images that no member was trained on, and measure the result on
    others.
    `sigma` is needed where the cards name different ones. With `votes` the members vote one by one.
    """
    target = Path(path)
    if format_of(target) != "onnx":
        raise ExportError(f"Members are joined as ONNX graphs, into one .onnx file; found {target.name}.")
    if betas is not None and data is not None:
        raise ExportError("Betas are given or fitted on images, not both: leave one of the two out.")
    paths = [Path(file) for file in files]
    predictors = _opened(paths)
    card = _common_card(paths, predictors, sigma=sigma, votes=votes, name=name, version=version, license=license)
    images = None if data is None else read_held_out(data, card, split=split, limit=limit)
    fit = None if images is None else fit_betas(predictors, images, card, names=_names(paths), progress=progress)
    chosen = _betas(betas, fit, len(paths))
    kept = [number for number, beta in enumerate(chosen) if beta != 0]
    notes = [f"{paths[number].name} got beta 0 and is left out" for number in range(len(paths)) if number not in kept]
    notes += _scale_notes(paths, predictors, images, fitted=fit is not None or betas is not None)
    paths, predictors = [paths[number] for number in kept], [predictors[number] for number in kept]
    chosen = [chosen[number] for number in kept]
    card = _described(card, paths, predictors, chosen, fit, author)
    check_options("onnx", card, sampler=sampler, opset=None, samples=samples)
    card = dataclasses.replace(card, sampler=sampler_domains(sampler_sigma(card)) if sampler else ())
    build = joined_graph(paths, chosen, card, sampler=sampler)
    engine = predictors[0].engine.name
    exported = write_accepted(
        target,
        "onnx",
        build,
        card,
        _Files(predictors, chosen),
        facts={"reference": f"{', '.join(_names(paths))} by {engine}"},
        images=_compared(images, card),
        samples=samples,
        progress=progress,
    )
    values = {field.name: getattr(exported, field.name) for field in dataclasses.fields(exported)}
    return Joined(**values, notes=tuple(notes), fit=fit)


def _names(paths: Sequence[Path]) -> list[str]:
    return [path.name for path in paths]


def _opened(paths: Sequence[Path]) -> list[Predictor]:
    if len(paths) < 2:
        raise ExportError(f"An ensemble joins two or more model files; found {len(paths)}.")
    found = []
    for path in paths:
        if path.suffix.lower() != ".onnx" and path.exists():
            raise ExportError(f"Members are joined as ONNX graphs; found {path.name}: export it as .onnx.")
        try:
            predictor = Predictor.load(path, device="cpu")
        except CardError as error:
            raise ExportError(
                f"{path.name} has no card, which says what its scores and pixels are: make a model file of it with "
                f"`robust wrap` first ({error})"
            ) from error
        if predictor.card.kind == "votes":
            raise ExportError(
                f"The members of {path.name} vote, so it has no scores to add up: export its run with --fused."
            )
        if predictor.card.sampler:
            raise ExportError(
                f"{path.name} has a sampler, which makes the noise of one model: export it without --sampler; the "
                "joined file can have one of its own."
            )
        found.append(predictor)
    digests = [predictor.digest for predictor in found]
    for number, digest in enumerate(digests):
        if digest in digests[:number]:
            first = paths[digests.index(digest)]
            raise ExportError(f"{paths[number]} and {first} are the same model: a member counts once.")
    return found


def _common_card(
    paths: Sequence[Path],
    predictors: Sequence[Predictor],
    *,
    sigma: float | None,
    votes: bool,
    name: str | None,
    version: str,
    license: str | None,
) -> Card:
    """The card that the members share; a sentence names the first file that does not fit."""
    cards = [predictor.card for predictor in predictors]
    first = cards[0]
    for path, card in zip(paths[1:], cards[1:], strict=True):
        if card.classes != first.classes:
            raise ExportError(f"{path.name} and {paths[0].name} do not agree: {_class_difference(card, first)}")
        if card.input != first.input:
            raise ExportError(
                f"{path.name} and {paths[0].name} do not agree: one takes {_input_words(card)}, the other "
                f"{_input_words(first)}. Members see the same pixels."
            )
    sigmas = {card.sigma for card in cards}
    if sigma is None and len(sigmas) > 1:
        found = ", ".join(f"{path.name} {card.sigma or 'none'}" for path, card in zip(paths, cards, strict=True))
        raise ExportError(
            f"The members' cards name different sigmas ({found}), and all of them see the same noise: choose one with "
            "--sigma."
        )
    chosen = first.sigma if sigma is None else sigma
    threats = {card.threat for card in cards}
    licenses = {card.license for card in cards}
    return Card(
        classes=first.classes,
        input=first.input,
        name=name or "-".join(card.name for card in cards),
        version=version,
        kind="votes" if votes else "scores",
        sigma=chosen,
        noise_trained=chosen is None or all(card.noise_trained and card.sigma == chosen for card in cards),
        threat=first.threat if len(threats) == 1 else None,
        license=license or (first.license if len(licenses) == 1 else None),
    )


def _class_difference(card: Card, first: Card) -> str:
    if len(card.classes) != len(first.classes):
        return f"one has {len(card.classes)} classes, the other {len(first.classes)}."
    if sorted(card.classes) == sorted(first.classes):
        return "they have the same classes in another order, so their scores cannot be added up."
    place = next(i for i, (a, b) in enumerate(zip(card.classes, first.classes, strict=True)) if a != b)
    return f"class {place} is {card.classes[place]!r} in one and {first.classes[place]!r} in the other."


def _input_words(card: Card) -> str:
    spec = card.input
    crop = f", crop {spec.crop:g}" if spec.crop is not None else ""
    return f"{spec.channels}x{spec.height}x{spec.width} pixels (resize {spec.resize}{crop})"


def _betas(given: Sequence[float] | None, fit: Fit | None, count: int) -> list[float]:
    if fit is not None:
        return list(fit.betas)
    if given is None:
        return [1.0 / count] * count
    values = [float(beta) for beta in given]
    if len(values) != count or not np.isfinite(values).all() or not any(values):
        raise ExportError(f"Betas are one number per member, not all 0; found {values} for {count} members.")
    return values


def _described(
    card: Card,
    paths: Sequence[Path],
    predictors: Sequence[Predictor],
    betas: Sequence[float],
    fit: Fit | None,
    author: str | None,
) -> Card:
    """The card with its members: those of an ensemble count one by one where scores are added up."""
    members: list[CardMember] = []
    for predictor, beta in zip(predictors, betas, strict=True):
        inner = predictor.card.members if card.kind == "scores" else ()
        own = inner or (CardMember(predictor.card.name, 1.0, 1),)
        first = len(members) + 1
        members += [CardMember(one.architecture, beta * one.beta, stage) for stage, one in enumerate(own, start=first)]
    sources: list[Mapping[str, Any]] = [
        {
            "file": path.name,
            "name": predictor.card.name,
            "version": predictor.card.version,
            "digest": predictor.digest,
            "beta": beta,
            "sigma": predictor.card.sigma,
            "training": dict(predictor.card.training),
        }
        for path, predictor, beta in zip(paths, predictors, betas, strict=True)
    ]
    how = "betas fitted on held-out images" if fit else "betas given, or equal"
    training: dict[str, Any] = {"joined": {"betas": how, "members": sources}}
    if author:
        training["author"] = author
    evaluation = {"fit": fit.to_json()} if fit else {}
    return dataclasses.replace(card, members=tuple(members), training=training, evaluation=evaluation)


def _scale_notes(
    paths: Sequence[Path], predictors: Sequence[Predictor], images: HeldOut | None, *, fitted: bool
) -> list[str]:
    """Warn where plain averages would let one member drown the others."""
    if fitted:
        return []
    spec = predictors[0].card.input
    pixels = synthetic_images(spec).pixels if images is None else images.pixels[:8]
    spreads = [_spread(predictor, pixels) for predictor in predictors]
    low, high = int(np.argmin(spreads)), int(np.argmax(spreads))
    if spreads[high] <= 10 * spreads[low]:
        return []
    return [
        f"the scores of {paths[high].name} spread {spreads[high] / max(spreads[low], 1e-12):.0f} times as far as those "
        f"of {paths[low].name}, and outweigh them: fit the betas with --data"
    ]


def _spread(predictor: Predictor, pixels: npt.NDArray[np.uint8]) -> float:
    return float(predictor.engine.scores(pixels * np.float32(1 / 255)).std(axis=1).mean())


def _compared(images: HeldOut | None, card: Card) -> Images:
    return synthetic_images(card.input) if images is None else Images(images.source, images.pixels[:_COMPARED])
