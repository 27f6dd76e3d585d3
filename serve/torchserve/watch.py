"""Watching a running TorchServe: is it alive, is it ready, and when is it beyond hope?

TorchServe's own `/ping` says 200 while no worker can load the model, and every address that reaches a worker waits in
the queue behind certificates. So the launcher judges for itself, by the marks that workers leave in the state folder
and, when those are old, by a real prediction.
"""

import threading
import time
from collections.abc import Sequence

from ..service import health
from ..service.state import State

__all__ = ["Watch"]

_EVERY = 2.0  # seconds between two looks
_FRESH = 4.0  # a prediction this recent is evidence enough
_HEALTH_TIMEOUT = 10.0


class Watch(threading.Thread):
    """Looks at the models of a server again and again. `failure` says why the server is beyond hope, if it is.

    A model is healthy if it made a prediction lately, or a worker has work in hand (TorchServe kills one that hangs),
    or it answers a health check now. One that has been none of this for `patience` seconds does not come back.
    """

    def __init__(self, state: State, url: str, models: Sequence[str], *, patience: float) -> None:
        super().__init__(name="robust-serve-watch", daemon=True)
        self.failure: str | None = None
        self._state, self._url, self._patience = state, url, patience
        self._healthy_at = dict.fromkeys(models, time.monotonic())
        self._ready = dict.fromkeys(models, False)
        self._end = threading.Event()

    @property
    def ready(self) -> bool:
        """Whether every model makes predictions, and new requests are welcome."""
        return all(self._ready.values()) and not self._state.marked("draining")

    def run(self) -> None:
        """Look until told to end."""
        while not self._end.wait(_EVERY):
            self.look()

    def look(self) -> None:
        """One look at every model."""
        for model in self._ready:
            self._ready[model] = self._is_healthy(model)
            now = time.monotonic()
            if self._ready[model]:
                self._healthy_at[model] = now
            elif now - self._healthy_at[model] > self._patience and not self._state.marked("draining"):
                self.failure = (
                    f"The model {model!r} has made no prediction for {now - self._healthy_at[model]:.0f} s and does "
                    "not answer; the lines above may say why."
                )

    def _is_healthy(self, model: str) -> bool:
        if self._state.seconds_since_success(model) < _FRESH or self._state.busy_workers():
            return True
        return health.is_ready(self._url, model, timeout=_HEALTH_TIMEOUT)

    def end(self) -> None:
        """Look no more."""
        self._end.set()
