"""Writing a baseline into the card of a model file, so that a server can tell when later images are different."""

import dataclasses
from pathlib import Path

import onnx

from robustinfer.baseline import Baseline
from robustinfer.card import Card
from robustinfer.engines import load_engine
from robustinfer.errors import ExportError
from robustinfer.files import write_bytes

from .onnx_file import with_card

__all__ = ["write_baseline"]


def write_baseline(model: Path, out: Path, baseline: Baseline) -> Card:
    """Write a copy of an ONNX file whose card has this baseline. Its digest is another one; its scores are the same."""
    if model.suffix != ".onnx" or out.suffix != ".onnx":
        raise ExportError(f"A baseline is written into ONNX files; found {model} and {out}.")
    card = load_engine(model, device="cpu", threads=1).card
    if card is None:
        raise ExportError(f"{model} carries no card: make it a model file with `robust wrap` first.")
    if out.resolve().parent != model.resolve().parent and _is_divided(model):
        raise ExportError(f"{model} keeps weights beside it: write the new file into the same folder.")
    changed = dataclasses.replace(card, baseline=baseline.to_json())
    write_bytes(out, with_card(onnx.load(str(model), load_external_data=False), changed))
    return changed


def _is_divided(model: Path) -> bool:
    from robustinfer.engines import external_files

    return bool(external_files(model))
