"""robustinfer: predictions with a certificate.

from robustinfer import Predictor
predictor = Predictor.load("digits.onnx")
certificate = predictor.certify(image)
"""

from typing import TYPE_CHECKING, Any

from .card import Card, InputSpec, Member, Threat
from .certificate import Certificate, ModelReference, Prediction
from .errors import RobustinferError
from .predictor import Predictor
from .replay import Replay
from .requests import Request
from .version import __version__

if TYPE_CHECKING:
    from .client import AsyncClient, Client

__all__ = [
    "AsyncClient",
    "Card",
    "Certificate",
    "Client",
    "InputSpec",
    "Member",
    "ModelReference",
    "Prediction",
    "Predictor",
    "Replay",
    "Request",
    "RobustinferError",
    "Threat",
    "__version__",
]


def __getattr__(name: str) -> Any:
    """The clients are imported when they are asked for: they need httpx, which few applications have."""
    if name in ("AsyncClient", "Client"):
        from . import client

        return getattr(client, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
