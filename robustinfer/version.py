"""The version of the package, as its installation records it."""

from importlib.metadata import PackageNotFoundError, version

__all__ = ["__version__"]

try:
    __version__ = version("robustinfer")
except PackageNotFoundError:  # a source tree that was never installed
    __version__ = "0.0.0"
