"""The way through wrapping: read the classifier, adapt it, measure it, and write the file that acceptance lets pass.

The file goes through the acceptance of every export: it is compared with the original behind its own pipeline before it
takes its name.
"""

import contextlib
import math
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

import numpy as np
import numpy.typing as npt
import torch

from robustinfer.card import Card, CardMember, InputSpec, Resize
from robustinfer.engines import check_rows, model_digest
from robustinfer.engines.onnx import OnnxEngine
from robustinfer.errors import BatchError, EngineError, ExportError, ModelError
from robustinfer.files import sha256

from ..acceptance import TOLERANCE, HeldOut
from ..exporter import Exported, export_ensemble, format_of, write_accepted
from ..onnx_file import with_card
from ..precision import FLIPS, Precision, check_calibration, check_precision, lower
from .graph import Foreign, Layout, Original, adapted, read_graph
from .module import load_module, single
from .noise import Photographs, UnderNoise, read_photographs, under_noise
from .normalisation import check_units, doubt

__all__ = ["Wrapped", "wrap"]

_COARSE = 2e-2  # tolerance for scores in half precision
_COMPARED = 64  # images that acceptance compares on
_COPIES = 10  # noisy copies of each image that are labelled
_LABELLED = 100  # images of them
_CALIBRATED = 64  # images whose noisy copies calibrate an int8 file
_MEASURED = 20  # images on which a file of lower precision is certified beside the float32 one

Array = npt.NDArray[np.float32]
Progress = Callable[[float], None]
Size = int | tuple[int, int]


@dataclass(frozen=True)
class Wrapped(Exported):
    """A wrapped model file: what was adapted, in words, and what noise does to its labels, if a sigma was given."""

    notes: tuple[str, ...] = ()
    noise: UnderNoise | None = None

    def to_json(self) -> dict[str, Any]:
        """The file, what acceptance found, and what is to be known, as a JSON object."""
        return super().to_json() | {"notes": list(self.notes), "noise": self.noise.to_json() if self.noise else None}


@dataclass(frozen=True)
class _Plan:
    """What is known about the classifier before its file is written."""

    classes: tuple[str, ...]
    spec: InputSpec
    mean: tuple[float, ...]
    std: tuple[float, ...]
    images: Photographs
    facts: Mapping[str, Any]
    sigma: float | None
    progress: Progress
    precision: Precision = "float32"
    labels: Mapping[str, Any] = field(default_factory=dict)  # name, version, license, author

    @property
    def lowered(self) -> dict[str, Any]:
        """What a file of lower precision is calibrated and measured on: every other image, and those between."""
        if self.precision == "float32":
            return {}
        calibrated, held_out = self.images.take(slice(0, None, 2)), self.images.take(slice(1, None, 2))
        options: dict[str, Any] = {"calibration": _some(calibrated, _CALIBRATED), "held_out": None}
        if len(held_out.pixels) and held_out.labels is not None:
            some = _some(held_out, _MEASURED)
            assert some.labels is not None
            options["held_out"] = HeldOut(some.source, some.pixels, some.labels)
        return options

    def card(self, architecture: str, facts: Mapping[str, Any], noise: UnderNoise | None) -> Card:
        """The card of a network that was trained elsewhere."""
        about = {name: value for name, value in self.labels.items() if name != "author" and value is not None}
        normalisation = {"mean": list(self.mean), "std": list(self.std)}
        author = {"author": self.labels["author"]} if self.labels.get("author") else {}
        return Card(
            classes=self.classes,
            input=self.spec,
            sigma=self.sigma,
            noise_trained=self.sigma is None,
            members=(CardMember(architecture, 1.0, 1),),
            training={"wrapped": {**self.facts, **facts, "normalisation": normalisation}, **author},
            evaluation={"under_noise": noise.to_json()} if noise else {},
            **{"name": architecture, **about},
        )


def wrap(
    source: str | os.PathLike[str] | torch.nn.Module,
    path: str | os.PathLike[str],
    *,
    classes: Sequence[str] | str | os.PathLike[str],
    parameters: str | os.PathLike[str] | None = None,
    size: Size | None = None,
    mean: float | Sequence[float] = 0.0,
    std: float | Sequence[float] = 1.0,
    crop: float | None = None,
    resize: Resize = "bilinear",
    layout: Layout | None = None,
    channels: int = 3,
    sigma: float | None = None,
    images: str | os.PathLike[str] | None = None,
    limit: int = 250,
    samples: int = 200,
    precision: Precision = "float32",
    name: str | None = None,
    version: str = "1",
    license: str | None = None,
    author: str | None = None,
    progress: Progress = lambda _: None,
) -> Wrapped:
    """Make one model file of a classifier: an ONNX file, a torch module, or `module:factory` with `parameters`.

    `classes` are the names in the order of the scores, or a text file with one name per line. `mean` and `std`
    normalise pixels in [0,1], and go into the graph. `size` is the height and width (of a torch module, or of a
    graph that leaves them open), `resize` and `crop` say how photographs of other sizes are read (see `InputSpec`),
    `channels` are those of a torch module. `sigma` is the noise to certify with; the card says that the network was not
    trained with it. `images` is a folder of photographs to measure on, in one sub-folder per class if there are labels;
    at most `limit` are read. `samples` are the noisy ones that acceptance compares. A `precision` of int8 or fp16 is
    for .onnx files; int8 is calibrated on noisy copies of every other one of the `images`, and where there are labels
    and a sigma, the card says what the others certify beside the float32 file.
    """
    target, names = Path(path), _classes(classes)
    check_precision(precision)
    check_calibration(precision, images)
    if format_of(target) != "onnx" and precision != "float32":
        raise ExportError(f"A file of precision {precision} is an .onnx file; found {target.name}.")
    if resize not in get_args(Resize):
        raise ExportError(f"A resize is one of {', '.join(get_args(Resize))}; found {resize!r}.")
    if crop is not None and (not 0 < crop <= 1 or resize == "refuse"):
        raise ExportError(f"A crop is the share of each side that is kept, above 0 and up to 1; found {crop:g}.")
    if sigma is not None and not 0 < sigma < float("inf"):
        raise ExportError(f"A sigma is a positive number; found {sigma!r}.")
    sides = (size, size) if isinstance(size, int) else size
    foreign = None if _is_module(source) else read_graph(source, size=sides, layout=layout)  # type: ignore[arg-type]
    if foreign is None and sides is None:
        raise ExportError("A torch module does not say how large its images are: give --size.")
    shape = foreign.shape if foreign else (channels, *(sides or (0, 0)))
    spec = InputSpec(*shape, resize=resize, crop=crop)
    plan = _Plan(
        classes=names,
        spec=spec,
        mean=_per_channel("mean", mean, shape[0]),
        std=_per_channel("std", std, shape[0]),
        images=read_photographs(Path(images) if images else None, spec, names, limit=limit),
        facts={"source": "module" if foreign is None else foreign.path.name},
        sigma=sigma,
        progress=progress,
        precision=precision,
        labels={"name": name, "version": version, "license": license, "author": author},
    )
    check_units(plan.mean, plan.std)
    if foreign is not None:
        return _wrap_graph(foreign, target, plan, samples)
    return _wrap_module(source, parameters, target, plan, samples)


def _is_module(source: Any) -> bool:
    if isinstance(source, torch.nn.Module):
        return True
    text = os.fspath(source)
    return ":" in text and not Path(text).is_file()


def _classes(classes: Sequence[str] | str | os.PathLike[str]) -> tuple[str, ...]:
    if isinstance(classes, str | os.PathLike):
        try:
            lines = Path(classes).read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeError) as error:
            raise ExportError(
                f"Cannot read the class names {classes}, a text file with one per line: {error}."
            ) from error
        classes = [line.strip() for line in lines if line.strip()]
    names = tuple(str(name) for name in classes)
    if len(names) < 2:
        raise ExportError(f"A classifier has at least two classes; found {len(names)} names.")
    return names


def _per_channel(what: str, numbers: float | Sequence[float], channels: int) -> tuple[float, ...]:
    values = (float(numbers),) if isinstance(numbers, int | float) else tuple(float(number) for number in numbers)
    if len(values) not in (1, channels) or not np.isfinite(values).all():
        raise ExportError(f"A {what} has one number, or one for each of {channels} channels; found {len(values)}.")
    return values * channels if len(values) == 1 else values


def _wrap_graph(foreign: Foreign, target: Path, plan: _Plan, samples: int) -> Wrapped:
    if format_of(target) != "onnx":
        raise ExportError(f"An ONNX file is wrapped as an ONNX file; found {target.name}.")
    if foreign.type_name == "uint8" and (any(plan.mean) or set(plan.std) != {1.0}):
        raise ExportError(
            f"{foreign.path.name} takes pixels from 0 to 255 as uint8, so its normalisation is inside: leave mean and "
            "std out."
        )
    original = Original(foreign, plan.mean, plan.std)
    first = original.scores(_trial_images(plan.spec, 3))
    _check_scores(first, plan, foreign.path.name)
    _check_float(foreign, plan.precision)
    proto, engine, freed = _freed(foreign, original, plan)
    noise = _measured(engine.scores, plan)
    probabilities = _are_probabilities(original.scores(_unit(plan.images.pixels[:8])))
    facts = {
        "digest": model_digest(foreign.path),
        "pixels": foreign.type_name,
        "layout": foreign.layout,
        "batch": foreign.batch,
        "output": "probabilities" if probabilities else "scores",
    }
    card = plan.card(foreign.path.stem, facts, noise)
    comparison: dict[str, Any] = {"images": _some(plan.images), "samples": samples, "progress": plan.progress}
    comparison["tolerance"] = _COARSE if foreign.type_name == "float16" else TOLERANCE
    build: Callable[[Card], bytes] = lambda final: with_card(proto, final)  # noqa: E731
    if plan.precision != "float32":
        build, comparison["added"] = lower(plan.precision, build, card, progress=plan.progress, **plan.lowered)
        comparison |= {"flips": FLIPS[plan.precision], "tolerance": math.inf}
    reference = {"reference": f"{foreign.path.name} by {original.engine.name}"}
    exported = write_accepted(target, "onnx", build, card, original, facts=reference, **comparison)
    doubted = None
    if foreign.type_name != "uint8":
        doubted = doubt(
            lambda mean, std, pixels: Original(foreign, mean, std).scores(pixels), plan.images, plan.mean, plan.std
        )
    return _wrapped(exported, _graph_notes(foreign, facts, freed), plan, noise, doubted)


def _wrap_module(source: Any, parameters: Any, target: Path, plan: _Plan, samples: int) -> Wrapped:
    named = not isinstance(source, torch.nn.Module)
    module = load_module(os.fspath(source), parameters) if named else source
    network = single(module, plan.mean, plan.std, plan.spec.shape)

    @torch.inference_mode()
    def scores(pixels: Array) -> Array:
        found: Array = network(torch.from_numpy(np.ascontiguousarray(pixels))).float().numpy()
        return found

    words = os.fspath(source) if named else type(source).__name__
    architecture = words.partition(":")[2].partition("(")[0] or words
    _check_scores(scores(_trial_images(plan.spec, 2)), plan, words)
    noise = _measured(scores, plan)
    facts = {
        "source": words,
        "output": "probabilities" if _are_probabilities(scores(_unit(plan.images.pixels[:8]))) else "scores",
    }
    if parameters is not None:
        facts |= {"parameters": Path(parameters).name, "digest": sha256(parameters)}
    exported = export_ensemble(
        network,
        plan.card(architecture, facts, noise),
        target,
        images=_some(plan.images),
        samples=samples,
        precision=plan.precision,
        progress=plan.progress,
        **plan.lowered,
    )
    notes = ["its outputs are probabilities; their order is that of the scores"] if facts["output"] != "scores" else []

    @torch.inference_mode()
    def otherwise(mean: Sequence[float], std: Sequence[float], pixels: Array) -> Array:
        other: Array = single(module, mean, std, plan.spec.shape)(torch.from_numpy(pixels)).float().numpy()
        return other

    return _wrapped(exported, notes, plan, noise, doubt(otherwise, plan.images, plan.mean, plan.std))


def _check_float(foreign: Foreign, precision: str) -> None:
    """Refuse to lower the precision of a graph that was lowered before."""
    whole = sorted({node.op_type for node in foreign.proto.graph.node if "quantize" in node.op_type.lower()})
    if precision != "float32" and (whole or foreign.type_name == "float16"):
        found = f"has {whole[0]} nodes" if whole else "computes in float16"
        raise ExportError(
            f"{foreign.path.name} is not a float32 graph: it {found}. Wrap it without --precision {precision}, or "
            "export it in float32 first."
        )


def _freed(foreign: Foreign, original: Original, plan: _Plan) -> tuple[Any, OnnxEngine, bool]:
    """The graph with a dynamic batch dimension, as it runs: tried with one, two and three images."""
    trial = _trial_images(plan.spec, 3)
    expected, reason = original.scores(trial), ""
    for reshape in (False, True):
        proto = adapted(foreign, plan.mean, plan.std, classes=len(plan.classes), reshape=reshape)
        with _opened(proto.SerializeToString()) as path:
            try:
                engine = OnnxEngine(path, device="cpu")
                for count in (1, 2, 3):
                    found = engine.scores(trial[:count])
                    if found.shape != expected[:count].shape:
                        raise BatchError(f"{count} images give scores of shape {found.shape}.")
                    if not np.allclose(found, expected[:count], rtol=0, atol=_COARSE * float(np.abs(expected).max())):
                        raise BatchError(f"the scores of {count} images in one run are not those of each alone.")
                check_rows(engine, plan.spec.shape)
            except (EngineError, ModelError) as error:
                reason = reason or str(error)
                continue
            return proto, engine, reshape
    raise ExportError(
        f"{foreign.path.name} is written for a batch of {foreign.batch or 'one size'}, and cannot be made dynamic: "
        f"export it with a dynamic batch dimension ({reason})"
    )


@contextlib.contextmanager
def _opened(content: bytes) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="robust-wrap-") as folder:
        path = Path(folder) / "graph.onnx"
        path.write_bytes(content)
        yield path


def _trial_images(spec: InputSpec, count: int) -> Array:
    generator = np.random.Generator(np.random.Philox(key=0))
    return _unit(generator.integers(0, 256, (count, *spec.shape), dtype=np.uint8))


def _unit(pixels: npt.NDArray[np.uint8]) -> Array:
    return pixels * np.float32(1 / 255)


def _check_scores(scores: Array, plan: _Plan, source: str) -> None:
    if scores.ndim != 2:
        raise ExportError(
            f"A classifier gives scores of shape (images, classes); {source} gives {scores.shape}: it is not a "
            "classifier, or lacks its last layers."
        )
    if scores.shape[1] != len(plan.classes):
        raise ExportError(
            f"{source} gives {scores.shape[1]} scores per image, but {len(plan.classes)} class names were given: "
            "one for each score is needed, in their order."
        )


def _are_probabilities(scores: Array) -> bool:
    """Whether a softmax is the last step: scores of no image are negative, and those of every image add up to 1."""
    return bool((scores >= 0).all() and np.allclose(scores.sum(axis=1), 1.0, atol=1e-2))


def _measured(scores: Callable[[Array], Array], plan: _Plan) -> UnderNoise | None:
    if plan.sigma is None:
        return None
    chosen = _some(plan.images, _LABELLED)
    return under_noise(scores, chosen, plan.sigma, copies=_COPIES, progress=plan.progress)


def _some(images: Photographs, count: int = _COMPARED) -> Photographs:
    return images.take(np.unique(np.linspace(0, len(images.pixels) - 1, min(count, len(images.pixels))).astype(int)))


def _graph_notes(foreign: Foreign, facts: Mapping[str, Any], freed: bool) -> list[str]:
    notes = []
    if foreign.batch is not None:
        how = " (constant shapes of Reshape nodes included)" if freed else ""
        notes.append(f"its fixed batch size of {foreign.batch} is dynamic now{how}")
    if foreign.layout == "nhwc":
        notes.append("its channels come last; the model file takes them first")
    if foreign.type_name == "uint8":
        notes.append("it takes whole numbers from 0 to 255: pixels are multiplied by 255, rounded and clipped")
    elif foreign.type_name != "float32":
        notes.append(f"it computes in {foreign.type_name}; pixels and scores are float32")
    if facts["output"] == "probabilities":
        notes.append("its outputs are probabilities; their order is that of the scores")
    return notes


def _wrapped(
    exported: Exported, notes: Sequence[str], plan: _Plan, noise: UnderNoise | None, doubted: str | None
) -> Wrapped:
    said = [*notes, *([doubted] if doubted else [])]
    if plan.images.unreadable:
        said.append(f"{plan.images.unreadable} images of the folder cannot be read and were left out")
    if noise is not None:
        said.append(noise.sentence)
    return Wrapped(exported.path, exported.format, exported.bytes, exported.digest, exported.card, tuple(said), noise)
