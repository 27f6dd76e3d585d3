"""robustinfer: predictions with a certificate.

    from robustinfer import Predictor

    predictor = Predictor.load("digits.onnx")
    certificate = predictor.certify(image)

Names are imported when they are first used, so that `robust --help` does not wait for scipy.
"""

import os
from typing import TYPE_CHECKING

from .lazy import lazy_names

# ONNX Runtime, from 1.31 on, reports to its maker unless this is in the environment when it is first imported. Nobody
# who embeds this package should call anybody without knowing; who has set the variable is left alone.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

if TYPE_CHECKING:
    from .card import Card as Card
    from .card import CardMember as CardMember
    from .card import InputSpec as InputSpec
    from .card import Threat as Threat
    from .certificate import Certificate as Certificate
    from .certificate import ModelReference as ModelReference
    from .certificate import Prediction as Prediction
    from .client import AsyncClient as AsyncClient
    from .client import Client as Client
    from .errors import RobustinferError as RobustinferError
    from .live import AnswerFuture as AnswerFuture
    from .live import Snapshot as Snapshot
    from .predictor import Predictor as Predictor
    from .replay import Replay as Replay
    from .requests import Request as Request
    from .version import __version__ as __version__

_HOMES = {
    "AnswerFuture": ".live",
    "AsyncClient": ".client",
    "Card": ".card",
    "Certificate": ".certificate",
    "Client": ".client",
    "InputSpec": ".card",
    "CardMember": ".card",
    "ModelReference": ".certificate",
    "Prediction": ".certificate",
    "Predictor": ".predictor",
    "Replay": ".replay",
    "Request": ".requests",
    "RobustinferError": ".errors",
    "Snapshot": ".live",
    "Threat": ".card",
    "__version__": ".version",
}

__all__ = [  # noqa: RUF022  # in the order a reader meets them
    "Predictor",
    "Prediction",
    "Certificate",
    "Replay",
    "Request",
    "AnswerFuture",
    "Snapshot",
    "Card",
    "InputSpec",
    "CardMember",
    "ModelReference",
    "Threat",
    "Client",
    "AsyncClient",
    "RobustinferError",
    "__version__",
]


__getattr__ = lazy_names(__name__, _HOMES)


def __dir__() -> list[str]:
    return sorted(__all__)
