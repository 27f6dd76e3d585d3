"""Serving: a model file becomes an HTTP server that answers with certificates.

The path of a request: `TorchServeHandler` (what TorchServe calls) -> `service.worker.Worker` (authorisation, limits,
shared batches) -> `service.reading` and `service.protocol_v2` (bytes to requests) -> `robustinfer.Predictor`. The path
of a start: `robust serve` -> `torchserve.launcher.Launcher` -> `archive`, `configuration`, `java`, `process`.
"""

from typing import TYPE_CHECKING

from robustinfer.lazy import lazy_names

if TYPE_CHECKING:
    from .torchserve.archive import pack as pack
    from .torchserve.handler import TorchServeHandler as TorchServeHandler
    from .torchserve.launcher import Launcher as Launcher
    from .torchserve.options import ServedModel as ServedModel
    from .torchserve.options import ServeOptions as ServeOptions

__all__ = ["Launcher", "ServeOptions", "ServedModel", "TorchServeHandler", "pack"]

_HOMES = {
    "Launcher": ".torchserve.launcher",
    "ServeOptions": ".torchserve.options",
    "ServedModel": ".torchserve.options",
    "TorchServeHandler": ".torchserve.handler",
    "pack": ".torchserve.archive",
}

__getattr__ = lazy_names(__name__, _HOMES)
