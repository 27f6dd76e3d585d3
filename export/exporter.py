"""Exporting: an ensemble or a run folder becomes one model file, which takes its name only after acceptance."""

import contextlib
import dataclasses
import math
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from robustinfer import Predictor
from robustinfer.card import Card
from robustinfer.errors import CardError, ExportError
from robustinfer.files import replacing, sha256
from robustinfer.voting import vote_betas

from .acceptance import TOLERANCE, HeldOut, Images, accept, synthetic_images
from .cards import fitting_images, held_out_images, run_card, run_images
from .cascade import Rule
from .cascade_file import CascadeFile, cascade_file, check_cascade
from .cascade_fit import CascadeOptions
from .fusion import EnsembleLike, Fused, fuse
from .onnx_file import onnx_file
from .precision import FLIPS, Precision, certified_beside, check_precision, lower
from .sampler.stream import sampler_domains, sampler_sigma
from .torch_files import pt2_file, torchscript_file

if TYPE_CHECKING:
    from robust.train.runs.run import Run

__all__ = ["Exported", "Format", "check_options", "export_ensemble", "export_run", "format_of", "write_accepted"]

Format = Literal["onnx", "torchscript", "pt2"]
_CALIBRATED = 64  # training images whose noisy copies calibrate an int8 file
_SUFFIXES: dict[str, Format] = {".onnx": "onnx", ".pt": "torchscript", ".pt2": "pt2"}


@dataclass(frozen=True)
class Exported:
    """A finished model file. `digest` is that of the model file itself, also where it lies inside an archive."""

    path: Path
    format: Format
    bytes: int
    digest: str
    card: Card

    def to_json(self) -> dict[str, Any]:
        """The file and what acceptance found, as a JSON object."""
        return {
            "path": str(self.path),
            "format": self.format,
            "bytes": self.bytes,
            "digest": self.digest,
            "parity": dict(self.card.parity),
        }


def format_of(path: str | os.PathLike[str], format: str | None = None) -> Format:
    """The format of a model file: the one that is named, which must fit the suffix, else the one of the suffix."""
    suffix = Path(path).suffix.lower()
    found = _SUFFIXES.get(suffix)
    if found is None:
        raise ExportError(f"A model file ends in .onnx, .pt or .pt2; found {Path(path).name}.")
    if format is not None and format != found:
        if format not in get_args(Format):
            raise ExportError(f"A format is one of {', '.join(get_args(Format))}; found {format!r}.")
        wanted = next(key for key, value in _SUFFIXES.items() if value == format)
        raise ExportError(f"A {format} file ends in {wanted}; found {Path(path).name}.")
    return found


def export_ensemble(
    ensemble: EnsembleLike,
    card: Card,
    path: str | os.PathLike[str],
    *,
    format: Format | None = None,
    sampler: bool = False,
    opset: int | None = None,
    precision: Precision = "float32",
    calibration: Images | None = None,
    held_out: HeldOut | None = None,
    cascade: CascadeOptions | Rule | None = None,
    fitting: Images | None = None,
    images: Images | None = None,
    samples: int = 1000,
    tolerance: float = TOLERANCE,
    progress: Callable[[float], None] = lambda _: None,
) -> Exported:
    """Write an ensemble as one model file: fused, described by its card, compared with the ensemble, then named.

    The format follows the suffix of `path` (.onnx, .pt, .pt2). `sampler` adds the sampler graph to .onnx and .pt files.
    `opset` is that of an ONNX file. `images` are those acceptance compares on, `samples` the votes it compares.
    A `precision` of int8 or fp16 is for .onnx files: int8 is calibrated on noisy copies of the `calibration` images,
    and the certified accuracy of either on the `held_out` ones stands in the card beside that of the float file.
    A `cascade` asks the members one after the other, by a rule that is fitted on noisy copies of the `fitting` images,
    or given; it is in .onnx and .pt files, float32 or int8, with `held_out` as above.
    Nothing is left at `path` if anything fails, and a file that was there before stays.
    """
    target, chosen = Path(path), format_of(path, format)
    check_options(chosen, card, sampler=sampler, opset=opset, samples=samples)
    if precision != "float32" and (chosen != "onnx" or sampler):
        raise ExportError(
            f"A file of precision {precision} is an .onnx file without a sampler; found {target.name}"
            f"{' with one' if sampler else ''}."
        )
    check_precision(precision)
    if cascade is not None:
        check_cascade(chosen, card, cascade, fitting=fitting, precision=precision)
    card = dataclasses.replace(card, sampler=sampler_domains(sampler_sigma(card)) if sampler else ())
    fused, reference = _fuse(ensemble, card), ensemble
    comparison: dict[str, Any] = {"samples": samples, "tolerance": tolerance, "progress": progress}
    comparison["images"] = images or synthetic_images(card.input)
    if precision != "float32":
        comparison |= {"flips": FLIPS[precision], "tolerance": math.inf}
    written: dict[str, Any] = {"sampler": sampler, "opset": opset}
    if cascade is not None:
        with _exporting(chosen):
            given: dict[str, Any] = {"fitting": fitting, "precision": precision, "calibration": calibration}
            made = cascade_file(chosen, fused, ensemble, card, cascade, **given, **written)
        build, card, reference = made.build, made.card, made.reference
        comparison["added"] = made.facts | _beside(chosen, fused, made, held_out, opset=opset)
    else:
        build = _builder(chosen, fused, card, **written)
        if precision != "float32":
            build, comparison["added"] = lower(
                precision, build, card, calibration=calibration, held_out=held_out, progress=progress
            )
    return write_accepted(target, chosen, build, card, reference, **comparison)


def _beside(
    format: Format, fused: Fused, made: CascadeFile, held_out: HeldOut | None, *, opset: int | None
) -> dict[str, Any]:
    """What a cascade certifies beside the plain file of the same members, if there are images to measure it on."""
    if held_out is None or made.card.sigma is None:
        return {}
    card = dataclasses.replace(made.card, sampler=(), cascade=None)
    plain = _builder(format, fused, card, sampler=False, opset=opset)(card)
    suffix = next(suffix for suffix, name in _SUFFIXES.items() if name == format)
    return {"held_out": certified_beside(plain, made.build(made.card), held_out, suffix=suffix)}


def write_accepted(
    target: Path,
    format: Format,
    build: Callable[[Card], bytes],
    card: Card,
    reference: EnsembleLike,
    *,
    facts: Mapping[str, Any] | None = None,
    added: Mapping[str, Any] | None = None,
    **comparison: Any,
) -> Exported:
    """Write the file that `build` makes of a card, compare it with the reference it came from, then give it its name.

    `facts` stand in the card's parity in place of torch's version, where the reference does not run in torch; what is
    `added` stands there besides.
    """
    with _writing(target) as temporary:
        temporary.write_bytes(build(card))
        parity = accept(temporary, reference, card, **comparison).to_json()
        if facts is not None:
            parity = {name: value for name, value in parity.items() if name != "torch"} | dict(facts)
        card = dataclasses.replace(card, parity=parity | dict(added or {}))
        temporary.write_bytes(build(card))
        # The bytes that take the name are opened once more: nothing is handed out that was not read back.
        if Predictor.load(temporary, device="cpu").card != card:
            raise ExportError("The card that was written does not read back as it was; no file was kept.")
    return Exported(target, format, target.stat().st_size, sha256(target), card)


def export_run(
    run: "Run | str | os.PathLike[str]",
    path: str | os.PathLike[str],
    *,
    stages: int | None = None,
    name: str | None = None,
    version: str = "1",
    license: str | None = None,
    author: str | None = None,
    data: str | os.PathLike[str] = "data",
    members: bool | None = None,
    **options: Any,
) -> Exported:
    """Write the first `stages` stages of a run (all, if None) as one model file; see `export_ensemble`.

    With `members` it is a file in which the members vote (the card's kind is "votes"): its graph gives the scores of
    each member, and a runtime certifies each of them and combines the votes. By default a run of minimax boosting,
    whose ensemble is a vote, becomes such a file, and every other run a file of ensemble scores.

    Acceptance compares on test images of the run's data where they are available (`data` is the folder of data sets),
    else on synthetic images.
    """
    from robust.train.members.ensemble import Ensemble
    from robust.train.runs.run import Run

    opened = run if isinstance(run, Run) else Run.open(Path(run))
    if not opened.stages:
        raise ExportError(f"{opened.path} has no finished stage yet: train it first.")
    format_of(path, options.get("format"))
    votes = opened.recipe.booster == "minimax" if members is None else members
    ensemble = opened.ensemble(stages)
    if not votes:  # the scores of members that were trained to vote may still be added up
        ensemble = Ensemble(list(ensemble.members), ensemble.betas).freeze()
    card = run_card(opened, ensemble, stages=stages, name=name, version=version, license=license, author=author)
    card = dataclasses.replace(card, kind="votes" if votes else "scores")
    chosen: dict[str, Any] = {"images": run_images(opened, data)}
    lowered, cascade = options.get("precision", "float32") != "float32", options.get("cascade") is not None
    if lowered:
        chosen["calibration"] = run_images(opened, data, split="train", count=_CALIBRATED, required=True)
    if cascade and "fitting" not in options:
        chosen["fitting"] = fitting_images(opened, data)
    if lowered or cascade:
        chosen["held_out"] = held_out_images(opened, data)
    return export_ensemble(ensemble, card, path, **{**chosen, **options})


def check_options(format: Format, card: Card, *, sampler: bool, opset: int | None, samples: int) -> None:
    """Refuse what a file of this format and card cannot have."""
    try:
        vote_betas(card)
    except CardError as error:
        raise ExportError(f"These members cannot vote: {error} Export their scores instead.") from error
    if sampler and card.kind == "votes":
        raise ExportError("A file in which the members vote has no sampler: leave one of the two out.")
    if sampler:
        sampler_sigma(card)
        if format == "pt2":
            raise ExportError(
                "A pt2 file holds one entry, the scores, and no sampler: export the sampler as .onnx or .pt."
            )
    if opset is not None and format != "onnx":
        raise ExportError(f"Only ONNX files have an opset; found one for a {format} file.")
    if samples < 1:
        raise ExportError(f"Acceptance compares at least one sample; found {samples}.")


def _fuse(ensemble: EnsembleLike, card: Card) -> Fused:
    try:
        return fuse(ensemble, card.input, apart=card.kind == "votes")
    except RuntimeError as error:  # torch's own words about shapes that do not fit
        sentence = str(error).splitlines()[0]
        raise ExportError(f"The ensemble does not take images of shape {card.input.shape}: {sentence}") from error


def _builder(format: Format, fused: Fused, card: Card, *, sampler: bool, opset: int | None) -> Callable[[Card], bytes]:
    with _exporting(format):
        if format == "onnx":
            return onnx_file(fused, card, sampler=sampler, opset=opset)
        if format == "torchscript":
            return torchscript_file(fused, card, sampler=sampler)
        return pt2_file(fused, card)


@contextlib.contextmanager
def _exporting(format: Format) -> Iterator[None]:
    """What the exporters say about an ensemble that they cannot export becomes a sentence."""
    try:
        yield
    except ExportError:
        raise
    except Exception as error:  # the exporters raise whatever a member's own code does to them
        sentence = next(iter(str(error).splitlines()), type(error).__name__)
        raise ExportError(f"torch cannot export this ensemble as {format}: {sentence}") from error


@contextlib.contextmanager
def _writing(target: Path) -> Iterator[Path]:
    """A temporary path beside the target; what the system says about folders and disks becomes a sentence."""
    made = [folder for folder in (target.parent, *target.parent.parents) if not folder.exists()]
    try:
        with replacing(target) as temporary:
            yield temporary
    except OSError as error:
        _remove_empty(made)
        reason = error.strerror or error
        raise ExportError(f"Cannot write {target}: {reason}; free some space or choose another --out.") from error
    except BaseException:
        _remove_empty(made)
        raise


def _remove_empty(folders: list[Path]) -> None:
    for folder in folders:
        with contextlib.suppress(OSError):
            folder.rmdir()
