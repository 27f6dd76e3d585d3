"""Files of cascades: the ensemble is cut into parts, the rule fitted on what the parts compute, the file put together.

The rule is fitted on the parts as the file will run them, quantised if it is, because their scores decide who leaves.
"""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.flop_counter import FlopCounterMode

from robustinfer.card import Card
from robustinfer.engines import Engine, check_rows
from robustinfer.errors import BatchError, ExportError

from .acceptance import Images, synthetic_images
from .cascade import CascadeReference, Rule, Terms
from .cascade_fit import CascadeFit, CascadeOptions, Scorer, check_fitting, check_members, fit_cascade
from .cascade_graph import PartsRunner, cascade_graph, parts_of
from .fusion import EnsembleLike, Fused
from .onnx_file import finished
from .precision import Precision, calibration_copies
from .torch_files import scripted_cascade, torchscript_file

__all__ = ["CascadeFile", "cascade_file", "check_cascade", "costs"]

_TRIED = 4  # images on which the members' rows are tried


@dataclass(frozen=True)
class CascadeFile:
    """The file as a function of its card, the card with the rule, what the file is compared with, and facts for it."""

    build: Callable[[Card], bytes]
    card: Card
    reference: CascadeReference
    facts: dict[str, Any]


def check_cascade(
    format: str, card: Card, wanted: CascadeOptions | Rule, *, fitting: Images | None, precision: Precision
) -> None:
    """Refuse what cannot be a cascade, before anything is computed."""
    if card.kind == "votes":
        raise ExportError(
            "Members that vote are all asked, so they cannot be a cascade: export their scores with --fused, or leave "
            "--cascade out."
        )
    if card.members:
        check_members(len(card.members), wanted if isinstance(wanted, CascadeOptions) else CascadeOptions())
    if format == "pt2":
        raise ExportError(
            "torch.export cannot write a batch that shrinks along the way, so there is no cascade as .pt2: export it "
            "as .onnx or .pt."
        )
    if precision == "fp16":
        raise ExportError("A cascade is a file of float32 or int8: choose one of them, or leave --cascade out.")
    if isinstance(wanted, Rule):
        return
    if fitting is None:
        raise ExportError(
            "A cascade is fitted on held-out images of the training data, under noise, and the data of this run is not "
            "available: name its folder with --data."
        )
    check_fitting(fitting)


def cascade_file(
    format: str,
    fused: Fused,
    ensemble: EnsembleLike,
    card: Card,
    wanted: CascadeOptions | Rule,
    *,
    fitting: Images | None,
    precision: Precision,
    calibration: Images | None,
    sampler: bool,
    opset: int | None,
) -> CascadeFile:
    """The cascade of a fused ensemble; `wanted` says how to fit its rule on the `fitting` images, or is the rule."""
    facts: dict[str, Any] = {}
    if format == "onnx":
        copies: list[Terms] = []
        if precision == "int8":
            copies, facts["calibration"] = calibration_copies(calibration, card)
            facts["precision"] = precision
        parts = parts_of(fused, card, opset=opset)
        parts = parts.lowered(copies) if copies else parts
        runner = PartsRunner(parts)
        _check_rows(runner.terms, card, fitting)
        rule, document = _rule(runner.terms, fused, card, wanted, fitting)
        build = finished(cascade_graph(parts, rule, card), card, sampler=sampler)
    else:
        terms = _torch_terms(fused)
        _check_rows(terms, card, fitting)
        rule, document = _rule(terms, fused, card, wanted, fitting)
        build = torchscript_file(scripted_cascade(fused, rule, card), card, sampler=sampler)
    return CascadeFile(build, dataclasses.replace(card, cascade=document), CascadeReference(ensemble, rule), facts)


class _Everyone:
    """All members asked, as an engine: their scores side by side."""

    def __init__(self, terms: Scorer) -> None:
        self._terms = terms

    def scores(self, images: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        return np.concatenate(list(self._terms(images)), axis=1)


def _check_rows(terms: Scorer, card: Card, fitting: Images | None) -> None:
    """Refuse members whose scores depend on the rows beside them.

    What is left of a batch depends on its images, so a member that mixed them would make the scores of one depend on
    all. In the finished file most samples leave early, and a check of the whole would see little of the later members.
    """
    images = (fitting or synthetic_images(card.input)).pixels[:_TRIED] * np.float32(1 / 255)
    try:
        check_rows(cast(Engine, _Everyone(terms)), card.input.shape, images=images)
    except BatchError as error:
        raise ExportError(f"These members cannot be a cascade: {error} No file was kept.") from error


def _rule(
    scorer: Scorer, fused: Fused, card: Card, wanted: CascadeOptions | Rule, fitting: Images | None
) -> tuple[Rule, dict[str, Any]]:
    """The rule, and what the card says about it."""
    stages = [member.stage for member in card.members] or list(range(1, len(fused.members) + 1))
    fit: CascadeFit | None = None
    if isinstance(wanted, Rule):
        rule = wanted
    else:
        assert fitting is not None
        fit = fit_cascade(scorer, fitting, wanted, card.sigma)
        rule = fit.rule
    if len(rule.order) != len(fused.members):
        raise ExportError(f"The rule orders {len(rule.order)} members, and the ensemble has {len(fused.members)}.")
    document = rule.to_json(stages) | {"flops": costs(fused, rule.order, card)}
    return rule, document | (fit.to_json() if fit else {})


def costs(fused: Fused, order: Sequence[int], card: Card) -> dict[str, Any]:
    """The cost of one image: of what the members share, and of each member in its order; two per multiply-add."""
    found: list[int] = []
    with torch.inference_mode():
        features = torch.zeros(1, *card.input.shape)
        for module in (fused.front, *(fused.members[position] for position in order)):
            with FlopCounterMode(display=False) as counter:
                result = module(features)
            found.append(counter.get_total_flops())
            features = result if module is fused.front else features
    return {"shared": found[0], "members": found[1:]}


def _torch_terms(fused: Fused) -> Scorer:
    def terms(images: npt.NDArray[np.float32]) -> Terms:
        with torch.inference_mode():
            features = fused.front(torch.from_numpy(images))
            found = [factor * member(features) for member, factor in zip(fused.members, fused.factors, strict=True)]
            stacked: Terms = torch.stack(found).numpy()
        return stacked

    return terms
