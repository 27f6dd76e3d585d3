"""Engines: what runs the scores graph. ONNX Runtime for .onnx, torch (imported only then) for .pt and .pt2."""

from .engine import Engine, Loaded, load_engine

__all__ = ["Engine", "Loaded", "load_engine"]
