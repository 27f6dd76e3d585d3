"""An HTTP request becomes an answer: fields, bodies, limits, refusals, the open inference protocol. Knows no server."""

from .limits import Limits
from .state import ENVIRONMENT, State
from .worker import Answer, Incoming, Worker

__all__ = [
    "ENVIRONMENT",
    "Answer",
    "Incoming",
    "Limits",
    "State",
    "Worker",
]
