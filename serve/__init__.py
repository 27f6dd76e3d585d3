"""robust.serve: a model file becomes a hardened TorchServe that answers with certificates.

The path of a request: `handler.RobustHandler` (what TorchServe calls) -> `worker.Worker` (authorisation, limits, shared
batches) -> `reading` and `protocol_v2` (bytes to requests) -> `robustinfer.Predictor`. The path of a start:
`robust serve` -> `launcher.Launcher` -> `archive`, `configuration`, `java`, `process`.
"""

from .archive import pack
from .launcher import Launcher
from .options import ServedModel, ServeOptions

__all__ = ["Launcher", "ServeOptions", "ServedModel", "pack"]
