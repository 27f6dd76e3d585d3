"""The TorchServe handler: a thin adapter over `robust.serve.service.worker.Worker`.

An archive names it by `robust.serve.TorchServeHandler`, which later moves must keep (`archive.ENTRY`).
"""

import json
import time
from http import HTTPStatus
from pathlib import Path
from typing import Any

from ..service import logs
from ..service.devices import restore_visible_devices
from ..service.health import WORKER
from ..service.limits import Limits
from ..service.measures import measures
from ..service.state import State
from ..service.worker import Answer, Incoming, Worker
from . import metrics, repeated
from .archive import CARD, DIGESTS

__all__ = ["TorchServeHandler"]


class TorchServeHandler:
    """What TorchServe calls: `initialize` once per worker, `handle` for requests that arrived together."""

    def initialize(self, context: Any) -> None:
        """Load the model on this worker's device, check its digest, and make one prediction."""
        logs.quiet_worker()
        try:
            self._initialize(context)
        except Exception as error:
            logs.record("worker failed", reason=f"{type(error).__name__}: {error}")
            # TorchServe reports a RuntimeError; any other error would only kill the worker without a word.
            raise RuntimeError(f"The model cannot be served: {error}") from error

    def _initialize(self, context: Any) -> None:
        restore_visible_devices()
        repeated.tell_repeated()
        from robustinfer import Card, Predictor

        folder = Path(context.system_properties["model_dir"])
        own = (context.model_yaml_config or {}).get("robust", {})
        serialized = context.manifest["model"]["serializedFile"]
        gpu = context.system_properties.get("gpu_id")
        predictor = Predictor.load(
            folder / serialized,
            device="cpu" if gpu is None else f"cuda:{gpu}",
            threads=own.get("threads"),
            card=Card.read(folder / CARD) if (folder / CARD).is_file() else None,
            digest=json.loads((folder / DIGESTS).read_text())[serialized],
        )
        self._name = context.manifest["model"]["modelName"]
        self._model = predictor.model
        limits = Limits.from_json(own.get("limits", {}))
        state = State.of_environment()
        key = state.signing_key() if own.get("sign") else None
        self._worker = Worker(predictor, name=self._name, limits=limits, state=state, key=key)
        self._worker.warm_up()
        logs.record("worker ready", model=self._name, digest=predictor.digest, device=predictor.device)

    def handle(self, data: list[dict[str, Any]], context: Any) -> list[str]:
        """One answer for each request of the batch, each with its own status."""
        began = time.perf_counter()
        batch = [self._incoming(fields, context, place) for place, fields in enumerate(data)]
        answers = self._worker.answer(batch)
        seconds = time.perf_counter() - began
        for place, answer in enumerate(answers):
            context.set_response_status(int(answer.status), answer.status.phrase, place)
            context.set_response_content_type(place, "application/json")
            for name, value in {**answer.headers, **self._headers(answer)}.items():
                context.set_response_header(place, name, value)
            self._count(answer, seconds, context)
            self._log(answer, seconds, batch[place])
        return [answer.body for answer in answers]

    def _headers(self, answer: Answer) -> dict[str, str]:
        """The digest of the model, for those who may know it: strangers and health checks may not."""
        stranger = answer.status == HTTPStatus.UNAUTHORIZED or answer.mode == "health"
        return {WORKER: "yes"} if stranger else {WORKER: "yes", "X-Model-Digest": self._model.digest}

    def _incoming(self, fields: dict[str, Any], context: Any, place: int) -> Incoming:
        headers = context.get_all_request_header(place)
        # Header values are texts; the entries that are not are TorchServe's notes about the fields of a form.
        texts = {name.lower(): value for name, value in headers.items() if isinstance(value, str)}
        return Incoming(fields, texts, context.get_request_id(place), repeated.names_of(fields))

    def _count(self, answer: Answer, seconds: float, context: Any) -> None:
        for name, value, labels in measures(answer, model=self._name, seconds=seconds):
            metrics.observe(context.metrics, name, value, labels)

    def _log(self, answer: Answer, seconds: float, incoming: Incoming) -> None:
        logs.record(
            "request",
            request_id=incoming.request_id,
            model=self._name,
            version=self._model.version,
            digest=self._model.digest,
            mode=answer.mode,
            status=int(answer.status),
            code=answer.code,
            images=len(answer.results),
            samples=sum(result.samples_used for result in answer.results),
            seconds=round(seconds, 6),
        )
