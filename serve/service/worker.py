"""What a worker process does with the requests TorchServe hands it together. Knows nothing of TorchServe itself."""

import dataclasses
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from typing import Any

import numpy as np

from robustinfer import Certificate, Prediction, Predictor, RobustinferError, __version__
from robustinfer.requests import Request
from robustinfer.settings import SETTINGS, short
from robustinfer.signing import PrivateKey, sign_certificate

from . import protocol_v2
from .decoding import Decoder
from .limits import Limits
from .reading import Reading, read, speaks_v2
from .refusals import Refusal, refusal_of
from .state import State

__all__ = ["Answer", "Incoming", "Worker"]

Result = Certificate | Prediction

_ENDPOINTS = ("health", "metadata")
_RETRY_AFTER = "1"
_HEALTH_N = 4  # samples of a health check: a real prediction, cheap enough for anybody to ask for
_SHORT = 1 << 16  # bytes of a body that is read in a few milliseconds, whatever it holds
_FRESH = 1.0  # seconds for which a success is evidence enough, so that health checks cannot be used as load


@dataclass(frozen=True)
class Incoming:
    """A request as TorchServe delivers it: fields, headers (names in lower case) and its id.

    `repeated` names fields that came more than once, and of which `data` has one value: such a request is refused.
    """

    data: Mapping[str, Any]
    headers: Mapping[str, str] = field(default_factory=dict)
    request_id: str | None = None
    repeated: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """The bytes of all fields."""
        return sum(len(value) for value in self.data.values() if isinstance(value, (bytes, bytearray)))

    @property
    def endpoint(self) -> str | None:
        """`health` or `metadata`, if one of them is asked for: by the query, or by an empty GET."""
        mode = self.data.get("mode")
        word = bytes(mode).decode(errors="replace") if isinstance(mode, (bytes, bytearray)) else ""
        if word in _ENDPOINTS:
            return word
        fields = {name for name, value in self.data.items() if name != "body" or value}
        empty = not fields and "content-type" not in self.headers
        return "metadata" if empty and self.headers.get("content-length", "0") == "0" else None


@dataclass(frozen=True)
class Answer:
    """The answer to one request, and what is worth counting about it.

    The body is ASCII: JSON may hold halves of characters (a client's `id`, echoed), which no server can encode.
    """

    status: HTTPStatus
    body: str
    mode: str
    code: str | None = None
    results: tuple[Result, ...] = ()

    @property
    def headers(self) -> dict[str, str]:
        """Headers that go with the status."""
        if self.status == HTTPStatus.UNAUTHORIZED:
            return {"WWW-Authenticate": "Bearer"}
        return {"Retry-After": _RETRY_AFTER} if self.status == HTTPStatus.SERVICE_UNAVAILABLE else {}


@dataclass
class _Pending:
    """A request on its way: what it asks for, and where its images stand in the shared list."""

    incoming: Incoming
    mode: str = "certify"
    reading: Reading | None = None
    places: range = range(0)
    answer: Answer | None = None


class Worker:
    """Answers requests that arrived together: each by itself, but all in shared engine batches.

    With a `key` every certificate carries its signature; a prediction claims nothing about an image and has none.
    """

    def __init__(
        self, predictor: Predictor, *, name: str, limits: Limits, state: State, key: PrivateKey | None = None
    ) -> None:
        self._predictor = predictor
        self._key = key
        self._name = name
        self._limits = limits
        self._state = state
        self._decoder = Decoder(predictor.card.input, max_pixels=limits.max_pixels, seconds=limits.max_reading)
        self._rate: float | None = None
        self._last_success = float("-inf")

    def warm_up(self) -> None:
        """Make one real prediction, and learn how fast this model is on this device."""
        self._decoder.start()
        self._predict_once(n=_HEALTH_N)
        self._predict_once(n=max(_HEALTH_N, self._predictor.batch))

    def answer(self, batch: Sequence[Incoming]) -> list[Answer]:
        """One answer for each request; no request can spoil another's."""
        with self._state.busy(len(batch)):
            until = time.monotonic() + self._limits.max_reading
            pending = [_Pending(incoming) for incoming in batch]
            asked: list[Request] = []
            for one in pending:
                try:
                    self._open(one, asked, until)
                except Exception as error:
                    one.answer = self._refused(one, error)
            results = self._compute(asked)
            return [one.answer or self._closed(one, results) for one in pending]

    def _open(self, one: _Pending, asked: list[Request], until: float) -> None:
        """Authorise and read a request; its images join `asked`, or its answer is there at once.

        `until` is when the time for reading all requests of a batch ends; after it only short ones are read.
        """
        endpoint = one.incoming.endpoint
        one.mode = endpoint or one.mode
        if self._state.marked("stopping"):
            raise Refusal.unavailable("stopping", "The server is stopping; ask another one.")
        if endpoint == "health":
            one.answer = self._health()
            return
        if not self._state.permits(one.incoming.headers.get("authorization")):
            raise Refusal(
                HTTPStatus.UNAUTHORIZED, "unauthorized", "Send the header 'Authorization: Bearer TOKEN' with the token."
            )
        if endpoint == "metadata":
            one.answer = Answer(HTTPStatus.OK, json.dumps(self.metadata()), "metadata")
            return
        if one.incoming.repeated:
            name = short(one.incoming.repeated[0])
            raise Refusal.malformed("repeated_field", f"The field {name} stands in the request twice.")
        if one.incoming.size > _SHORT and time.monotonic() > until:
            raise Refusal.unavailable("busy_reading", "The server is busy with large bodies; ask again.")
        reading = read(
            one.incoming.data,
            content_type=one.incoming.headers.get("content-type", ""),
            spec=self._predictor.card.input,
            limits=self._limits,
            decode=partial(self._decoder.decode, until=until),
        )
        one.reading, one.mode = reading, reading.settings.get("mode", "certify")
        requests = self._requests(reading, one.mode)
        one.places = range(len(asked), len(asked) + len(requests))
        asked.extend(requests)

    def _requests(self, reading: Reading, mode: str) -> list[Request]:
        settings = dict(reading.settings)
        default = SETTINGS["n"].defaults[mode]
        settings.setdefault("n", max(1, min(default, self._limits.max_n // len(reading.images))))
        if "deadline" not in settings:
            samples = (settings["n"] + settings.get("n0", 0)) * len(reading.images)
            self._limits.check_cost(samples, self._rate)
        if len(reading.images) > 1 and "seed" in settings:
            raise Refusal.unacceptable("bad_setting", "seed is for one image: two images never share their noise.")
        if self._limits.domain is not None:
            settings = {**settings, "domain": self._limits.domain}
        return [Request(image=image, **settings) for image in reading.images]

    def _compute(self, asked: Sequence[Request]) -> list[Result | Exception]:
        """All requests in shared batches; one that fails has its error."""
        began = time.perf_counter()
        results = self._predictor.answer_many(asked)
        self._learn(results, time.perf_counter() - began)
        return results

    def _learn(self, results: Sequence[Any], seconds: float) -> None:
        samples = sum(result.samples_used for result in results if isinstance(result, (Certificate, Prediction)))
        if samples:
            self._succeeded()
        # Small batches measure the overhead, not the engine.
        if samples >= self._predictor.batch and seconds > 0:
            rate = samples / seconds
            self._rate = rate if self._rate is None else 0.8 * self._rate + 0.2 * rate

    def _closed(self, one: _Pending, results: Sequence[Result | Exception]) -> Answer:
        own = [results[place] for place in one.places]
        good = tuple(result for result in own if isinstance(result, (Certificate, Prediction)))
        if len(good) < len(own):
            return self._refused(one, next(result for result in own if isinstance(result, Exception)))
        assert one.reading is not None
        try:
            documents = [self._signed(result) for result in good]
        except Exception as error:  # rather no answer than one without its signature
            return self._refused(one, error)
        document = documents[0]
        if one.reading.v2 is not None:
            version = self._predictor.card.version
            document = protocol_v2.answer(one.reading.v2, good, documents, name=self._name, version=version)
        return Answer(HTTPStatus.OK, json.dumps(document), one.mode, results=good)

    def _signed(self, result: Result) -> dict[str, Any]:
        """The JSON object of a result, with the signature of a certificate."""
        document = result.to_json()
        if self._key is None or isinstance(result, Prediction):
            return document
        return document | {"signature": sign_certificate(document, self._key)}

    def _refused(self, one: _Pending, error: Exception) -> Answer:
        refusal = refusal_of(error)
        document = refusal.to_json(one.incoming.request_id)
        if speaks_v2(one.incoming.data) or (one.reading is not None and one.reading.v2 is not None):
            document = {"error": refusal.message}
        return Answer(refusal.status, json.dumps(document), one.mode, refusal.code)

    def _health(self) -> Answer:
        if self._state.marked("draining"):
            raise Refusal.unavailable("draining", "The server is about to stop; ask another one.")
        if time.monotonic() - self._last_success > _FRESH:
            try:
                self._predict_once(n=_HEALTH_N)
            except Exception as error:
                raise Refusal.unavailable("not_ready", "A test prediction failed.") from error
        # Anybody may ask for it, so it tells nothing of the model.
        return Answer(HTTPStatus.OK, json.dumps({"ready": True}), "health")

    def _succeeded(self) -> None:
        self._last_success = time.monotonic()
        self._state.succeeded(self._name)

    def _predict_once(self, *, n: int) -> None:
        """One real prediction on a grey image."""
        began = time.perf_counter()
        image = np.full(self._predictor.card.input.shape, 128, dtype=np.uint8)[None]
        if self._predictor.card.sigma is None:
            if not np.isfinite(self._predictor.scores(image)).all():
                raise RobustinferError("The scores of a grey image are not finite.")
        else:
            # In this form certify draws exactly n samples, however clear the picture is: that measures the engine.
            # Members that vote would share alpha, and n be too small for many of them.
            result = self._predictor.certify(image[0], n=n, n0=0, alpha=0.5, seed=0, members=False)
            self._learn([result], time.perf_counter() - began)
        self._succeeded()

    def metadata(self) -> dict[str, Any]:
        """The card, the digest and what this server allows."""
        return {
            "name": self._name,
            "model": dataclasses.asdict(self._predictor.model),
            "card": self._predictor.card.to_json(),
            "device": self._predictor.device,
            "limits": self._limits.to_json(),
            "signed_by": self._key.public.id if self._key else None,
            "samples_per_second": round(self._rate) if self._rate else None,
            "robustinfer": __version__,
        }
