"""What servers want around a model file: a Triton model repository, and the archive of TorchServe."""

import contextlib
import os
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from robustinfer.card import Card
from robustinfer.errors import ExportError
from robustinfer.files import write_text

from .exporter import Exported, export_run

__all__ = ["export_archive", "export_triton", "triton_config"]

_MAX_BATCH = 256


def export_triton(run: str | os.PathLike[str], folder: str | os.PathLike[str], **options: Any) -> Exported:
    """Write a run as a model of a Triton model repository: NAME/config.pbtxt, NAME/labels.txt, NAME/1/model.onnx.

    `folder` is the repository; the options are those of `export_run`. The configuration is written last, so Triton
    never sees a model that is not complete.
    """
    if options.get("sampler"):
        raise ExportError(
            "Triton batches requests along the first axis, which a sampler's votes do not have: "
            "export the sampler as .onnx or .pt."
        )
    if options.get("members"):
        raise ExportError("A Triton model gives ensemble scores: export members that vote as .onnx, .pt, .pt2 or .mar.")
    repository = Path(folder)
    if repository.suffix in {".onnx", ".pt", ".pt2", ".mar"}:
        raise ExportError(f"A Triton model repository is a folder; found {repository.name}.")
    name = options.get("name") or _recipe_name(run)
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", name):
        raise ExportError(
            f"A model name for Triton has letters, digits, '_', '.' and '-'; found {name!r}: pass --name."
        )
    made = [path for path in (repository / name, repository) if not path.exists()]
    try:
        exported = export_run(
            run, repository / name / "1" / "model.onnx", **{**options, "name": name, "members": False}
        )
        labels = (" ".join(label.split()) for label in exported.card.classes)
        write_text(repository / name / "labels.txt", "".join(f"{label}\n" for label in labels))
        write_text(repository / name / "config.pbtxt", triton_config(exported.card))
    except BaseException:
        for path in made:
            with contextlib.suppress(OSError):
                path.rmdir()
        raise
    return exported


def triton_config(card: Card) -> str:
    """The text of config.pbtxt. Pixels are in [0,1]; requests of several clients share batches."""
    dims = ", ".join(map(str, card.input.shape))
    return f"""name: "{card.name}"
backend: "onnxruntime"
max_batch_size: {_MAX_BATCH}
input [
  {{
    name: "image"
    data_type: TYPE_FP32
    dims: [ {dims} ]
  }}
]
output [
  {{
    name: "scores"
    data_type: TYPE_FP32
    dims: [ {len(card.classes)} ]
    label_filename: "labels.txt"
  }}
]
dynamic_batching {{ }}
"""


def export_archive(
    run: str | os.PathLike[str], path: str | os.PathLike[str], *, pack: Callable[..., Path], **options: Any
) -> Exported:
    """Write a run as an archive (.mar) around an accepted ONNX file, by `robust.serve.pack`."""
    target = Path(path)
    if target.suffix != ".mar":
        raise ExportError(f"A TorchServe archive ends in .mar; found {target.name}.")
    with tempfile.TemporaryDirectory() as scratch:
        exported = export_run(run, Path(scratch) / "model.onnx", **options)
        try:
            pack(exported.path, target, name=exported.card.name, version=exported.card.version)
        except OSError as error:
            raise ExportError(f"Cannot write {target}: {error.strerror or error}; choose another --out.") from error
    return Exported(target, "onnx", target.stat().st_size, exported.digest, exported.card)


def _recipe_name(run: str | os.PathLike[str]) -> str:
    from robust.train.runs.run import Run

    return Run.open(Path(run)).recipe.name
