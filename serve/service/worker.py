"""What a worker process does with the requests TorchServe hands it together. Knows nothing of TorchServe itself."""

import json
import time
from collections.abc import Sequence
from http import HTTPStatus

from robustinfer import Certificate, Prediction
from robustinfer.requests import Request

from .desk import HEALTH_N, Desk
from .exchange import Answer, Exchange, Incoming, Result
from .refusals import Refusal

__all__ = ["Answer", "Incoming", "Worker"]

_FRESH = 1.0  # seconds for which a success is evidence enough, so that health checks cannot be used as load


class Worker(Desk):
    """Answers requests that arrived together: each by itself, but all in shared engine batches."""

    binary_answers = False  # an answer is a text for TorchServe

    def answer(self, batch: Sequence[Incoming]) -> list[Answer]:
        """One answer for each request; no request can spoil another's."""
        with self.state.busy(len(batch)):
            until = time.monotonic() + self.limits.max_reading
            exchanges = [Exchange(incoming) for incoming in batch]
            for exchange in exchanges:
                try:
                    self._begin(exchange, until)
                except Exception as error:
                    exchange.answer = self.refuse(exchange, error)
            results = iter(self._compute([request for exchange in exchanges for request in exchange.requests]))
            answers = []
            for exchange in exchanges:
                own = [next(results) for _ in exchange.requests]
                answers.append(exchange.answer or self.close(exchange, own))
            return answers

    def _begin(self, exchange: Exchange, until: float) -> None:
        """Authorise and read a request; it has requests after that, or its answer is there at once."""
        endpoint = exchange.incoming.endpoint
        exchange.mode = endpoint or exchange.mode
        if endpoint == "health":
            exchange.answer = self._health()
            return
        self.permit(exchange.incoming.headers.get("authorization"))
        if endpoint == "metadata":
            exchange.answer = Answer(HTTPStatus.OK, json.dumps(self.metadata()), "metadata")
            return
        self.open(exchange, until)

    def _compute(self, asked: Sequence[Request]) -> list[Result | Exception]:
        """All requests in shared batches; one that fails has its error."""
        began = time.perf_counter()
        results = self.predictor.answer_many(asked)
        good = [result for result in results if isinstance(result, (Certificate, Prediction))]
        self.learn(sum(result.samples_used for result in good), time.perf_counter() - began)
        return results

    def _health(self) -> Answer:
        if self.state.marked("stopping"):
            raise Refusal.unavailable("stopping", "The server is stopping; ask another one.")
        if self.state.marked("draining"):
            raise Refusal.unavailable("draining", "The server is about to stop; ask another one.")
        if time.monotonic() - self.last_success > _FRESH:
            try:
                self.predict_once(n=HEALTH_N)
            except Exception as error:
                raise Refusal.unavailable("not_ready", "A test prediction failed.") from error
        # Anybody may ask for it, so it tells nothing of the model.
        return Answer(HTTPStatus.OK, json.dumps({"ready": True}), "health")
