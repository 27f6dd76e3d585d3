"""Engines: what runs the scores graph. ONNX Runtime for .onnx, torch (imported only then) for .pt and .pt2."""

from .engine import Engine
from .external import external_files, model_digest
from .loading import Loaded, load_engine
from .rows import check_rows

__all__ = ["Engine", "Loaded", "check_rows", "external_files", "load_engine", "model_digest"]
