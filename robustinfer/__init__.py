"""robustinfer: predictions with a certificate.

from robustinfer import Predictor
predictor = Predictor.load("digits.onnx")
certificate = predictor.certify(image)
"""

from .card import Card, InputSpec, Member, Threat
from .certificate import Certificate, ModelReference, Prediction
from .errors import RobustinferError
from .predictor import Predictor
from .replay import Replay
from .requests import Request
from .version import __version__

__all__ = [
    "Card",
    "Certificate",
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
