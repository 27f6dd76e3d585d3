"""The desk of one model: who may ask, what was asked, what it may cost, and how the answer is written.

Nothing here computes votes: an engine does, between `open` and `close`.
"""

import dataclasses
import json
import time
from collections.abc import Sequence
from functools import partial
from http import HTTPStatus
from typing import Any

import numpy as np
import numpy.typing as npt

from robustinfer import Certificate, Prediction, Predictor, RobustinferError, __version__
from robustinfer.requests import Request
from robustinfer.settings import SETTINGS, short
from robustinfer.signing import PrivateKey, sign_certificate

from . import protocol_v2
from .decoding import Decoder
from .exchange import Answer, Exchange, Result
from .limits import Limits
from .reading import Reading, read
from .refusals import Refusal, refusal_of
from .state import State

__all__ = ["HEALTH_N", "Desk"]

_SHORT = 1 << 16  # bytes of a body that is read in a few milliseconds, whatever it holds
HEALTH_N = 4  # samples of a health check: a real prediction, cheap enough for anybody to ask for

# In this form certify draws exactly n samples, however clear the picture is: that measures the engine. Members that
# vote would share alpha, and n be too small for many of them.
_EXACTLY_N: dict[str, Any] = {"n0": 0, "alpha": 0.5, "seed": 0, "members": False}


class Desk:
    """Opens and closes the exchanges of one model.

    With a `key` every certificate carries its signature; a prediction claims nothing about an image and has none.
    """

    binary_answers = True
    """Whether the server can send tensors as bytes after the text, for who asks for it."""

    def __init__(
        self, predictor: Predictor, *, name: str, limits: Limits, state: State, key: PrivateKey | None = None
    ) -> None:
        self.predictor = predictor
        self.name = name
        self.limits = limits
        self.state = state
        self.last_success = float("-inf")
        self.decoder = Decoder(predictor.card.input, max_pixels=limits.max_pixels, seconds=limits.max_reading)
        self._key = key
        self._speed: float | None = None

    def warm_up(self) -> None:
        """Make one real prediction, and learn how fast this model is on this device."""
        self.decoder.start()
        self.predict_once(n=HEALTH_N)
        self.predict_once(n=max(HEALTH_N, self.predictor.batch))

    def permit(self, authorization: str | None) -> None:
        """Refuse anybody without the token, and everybody while the server is stopping."""
        if self.state.marked("stopping"):
            raise Refusal.unavailable("stopping", "The server is stopping; ask another one.")
        if not self.state.permits(authorization):
            raise Refusal(
                HTTPStatus.UNAUTHORIZED, "unauthorized", "Send the header 'Authorization: Bearer TOKEN' with the token."
            )

    def open(self, exchange: Exchange, until: float, *, small_only: bool = False) -> None:
        """Read a request whose sender may ask, and check what it would cost.

        `until` is when the time for reading ends, of all requests that are read together; after it only short ones are.
        With `small_only`, a picture that takes a while to decode is left alone: `LargePicture`.
        """
        incoming = exchange.incoming
        if incoming.repeated:
            raise Refusal.malformed(
                "repeated_field", f"The field {short(incoming.repeated[0])} appears twice in the request."
            )
        if incoming.size > _SHORT and time.monotonic() > until:
            raise Refusal.unavailable("busy_reading", "The server is busy with large bodies; ask again.")
        reading = read(
            incoming.data,
            content_type=incoming.headers.get("content-type", ""),
            spec=self.predictor.card.input,
            limits=self.limits,
            decode=partial(self.decoder.decode, until=until, small_only=small_only),
            header_length=incoming.headers.get("inference-header-content-length"),
        )
        exchange.reading, exchange.mode = reading, reading.settings.get("mode", "certify")
        exchange.requests = tuple(self._requests(reading, exchange.mode))
        exchange.incoming = dataclasses.replace(incoming, data={})  # its bytes are not kept while it is in work

    def _requests(self, reading: Reading, mode: str) -> list[Request]:
        settings = dict(reading.settings)
        default = SETTINGS["n"].defaults[mode]
        settings.setdefault("n", max(1, min(default, self.limits.max_n // len(reading.images))))
        if "deadline" not in settings:
            samples = (settings["n"] + settings.get("n0", 0)) * len(reading.images)
            self.limits.check_cost(samples, self._speed)
        if len(reading.images) > 1 and "seed" in settings:
            raise Refusal.unacceptable("bad_setting", "seed is for one image: two images never share their noise.")
        if self.limits.domain is not None:
            settings = {**settings, "domain": self.limits.domain}
        return [Request(image=image, **settings) for image in reading.images]

    def close(self, exchange: Exchange, results: Sequence[Result | BaseException]) -> Answer:
        """The answer of an exchange whose requests gave these results."""
        good = tuple(result for result in results if isinstance(result, (Certificate, Prediction)))
        if len(good) < len(results):
            return self.refuse(exchange, next(result for result in results if isinstance(result, BaseException)))
        assert exchange.reading is not None
        try:
            documents = [self._signed(result) for result in good]
        except Exception as error:  # rather no answer than one without its signature
            return self.refuse(exchange, error)
        document, binary = documents[0], b""
        if exchange.reading.v2 is not None:
            document, binary = protocol_v2.answer(
                exchange.reading.v2,
                good,
                documents,
                name=self.name,
                version=self.predictor.card.version,
                binary=self.binary_answers,
            )
        body = json.dumps(document)
        return Answer(HTTPStatus.OK, body, exchange.mode, results=good, binary=binary)

    def _signed(self, result: Result) -> dict[str, Any]:
        """The JSON object of a result, with the signature of a certificate."""
        document = result.to_json()
        if self._key is None or isinstance(result, Prediction):
            return document
        return document | {"signature": sign_certificate(document, self._key)}

    def refuse(self, exchange: Exchange, error: BaseException) -> Answer:
        """The answer of an exchange that failed."""
        refusal = refusal_of(error)
        document = {"error": refusal.message} if exchange.v2 else refusal.to_json(exchange.incoming.request_id)
        return Answer(refusal.status, json.dumps(document), exchange.mode, refusal.code)

    def learn(self, samples: int, seconds: float) -> None:
        """Remember a success, and how fast the engine was if it had enough to do."""
        if samples:
            self.succeeded()
        # Small batches measure the overhead, not the engine.
        if samples >= self.predictor.batch and seconds > 0:
            speed = samples / seconds
            self._speed = speed if self._speed is None else 0.8 * self._speed + 0.2 * speed

    def succeeded(self) -> None:
        """Remember that the model has just made a prediction."""
        self.last_success = time.monotonic()
        self.state.succeeded(self.name)

    def predict_once(self, *, n: int) -> None:
        """One real prediction on a grey image."""
        began = time.perf_counter()
        if self.predictor.card.sigma is None:
            self.check_scores()
            self.succeeded()
        else:
            result = self.predictor.certify(self._grey()[0], n=n, **_EXACTLY_N)
            self.learn(result.samples_used, time.perf_counter() - began)

    def grey_request(self, n: int) -> Request:
        """The request of such a prediction, to be submitted among others."""
        return Request(image=self._grey(), n=n, **_EXACTLY_N)

    def check_scores(self) -> None:
        """The prediction of a model without a sigma: the scores of a grey image."""
        if not np.isfinite(self.predictor.scores(self._grey())).all():
            raise RobustinferError("The scores of a grey image are not finite.")

    def _grey(self) -> npt.NDArray[np.uint8]:
        return np.full((1, *self.predictor.card.input.shape), 128, dtype=np.uint8)

    def check_replay(self, certificate: Certificate) -> None:
        """Refuse to replay a certificate that could not have been asked for here."""
        self.limits.check_settings({"n": certificate.n, "n0": certificate.n0}, images=1)
        self.limits.check_cost(certificate.samples_used, self._speed)

    def metadata(self) -> dict[str, Any]:
        """The card, the digest and what this server allows."""
        return {
            "name": self.name,
            "model": dataclasses.asdict(self.predictor.model),
            "card": self.predictor.card.to_json(),
            "device": self.predictor.device,
            "limits": self.limits.to_json(),
            "signed_by": self._key.public.id if self._key else None,
            "samples_per_second": round(self._speed) if self._speed else None,
            "robustinfer": __version__,
        }
