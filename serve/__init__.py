"""Serving: a model file becomes an HTTP server that answers with certificates.

`service` knows what a request is and what may be answered; `torchserve` and `asgi` are the two engines that carry it
over HTTP, each with a launcher, which `robust serve` starts.
"""

from typing import TYPE_CHECKING

from robustinfer.lazy import lazy_names

if TYPE_CHECKING:
    from .asgi.launcher import AsgiLauncher as AsgiLauncher
    from .service.options import ServedModel as ServedModel
    from .service.options import ServeOptions as ServeOptions
    from .torchserve.archive import pack as pack
    from .torchserve.handler import TorchServeHandler as TorchServeHandler
    from .torchserve.launcher import Launcher as Launcher

__all__ = ["AsgiLauncher", "Launcher", "ServeOptions", "ServedModel", "TorchServeHandler", "pack"]

_HOMES = {
    "AsgiLauncher": ".asgi.launcher",
    "Launcher": ".torchserve.launcher",
    "ServeOptions": ".service.options",
    "ServedModel": ".service.options",
    "TorchServeHandler": ".torchserve.handler",
    "pack": ".torchserve.archive",
}

__getattr__ = lazy_names(__name__, _HOMES)
