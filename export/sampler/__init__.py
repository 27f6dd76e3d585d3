"""The in-graph sampler: the runtime's noise stream in tensor operations, so that a file draws its own votes."""

from .check import check_sampler
from .onnx import attach_sampler
from .stream import sampler_domains, sampler_sigma
from .torch import Sampler

__all__ = [
    "Sampler",
    "attach_sampler",
    "check_sampler",
    "sampler_domains",
    "sampler_sigma",
]
