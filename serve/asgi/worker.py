"""A worker process: loads the models on its device, listens on a socket of the launcher's, and answers.

    python -m robust.serve.asgi.worker FOLDER NUMBER DESCRIPTOR

FOLDER is the launcher's private folder, with `worker.json` and `state/`; NUMBER counts the workers, and with GPUs
chooses one; DESCRIPTOR is the socket, which is already listening. The process shows that it is well by touching
`well-PID` in the state folder: it does not while an engine that has work makes no progress.
"""

import asyncio
import dataclasses
import json
import logging
import os
import socket
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn
from starlette.routing import BaseRoute

from ..service import logs
from ..service.desk import Desk
from ..service.limits import Limits
from ..service.options import ServedModel
from ..service.state import State
from .application import Application
from .connections import limited
from .counter import Counter
from .tracing import Tracing

__all__ = ["CANNOT_START", "OPTIONS_FILE", "Worker", "WorkerOptions", "main"]

OPTIONS_FILE = "worker.json"
CANNOT_START = 3
"""The exit code of a worker that would not start a second time either."""

_TICK = 0.05  # seconds between two looks at the state folder
_SWITCH = 0.001  # seconds after which the engine's thread lets the event loop go on
_IDLE = 10.0  # seconds after which an idle model makes a prediction, to see that it still can
_STUCK = 30.0  # seconds an engine may work without a vote coming in; less, if the watch has less patience


@dataclass(frozen=True)
class WorkerOptions:
    """What the launcher tells its workers."""

    models: tuple[Mapping[str, Any], ...]
    gpus: int
    threads: int
    limits: Mapping[str, Any]
    queue: int
    connections: int
    read_timeout: float
    watch_timeout: float
    sign: bool
    trusted_proxies: tuple[str, ...]
    page: bool

    def dumps(self) -> str:
        """The options as JSON."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def load(cls, path: Path) -> "WorkerOptions":
        """Read them in a worker."""
        document = json.loads(path.read_text())
        return cls(**document | {name: tuple(document[name]) for name in ("models", "trusted_proxies")})

    @staticmethod
    def model(model: ServedModel) -> Mapping[str, Any]:
        """One model file; its card, if the file has none."""
        return {
            "name": model.name,
            "version": model.version,
            "path": str(model.path.resolve()),
            "digest": model.digest,
            "card": model.card.dumps() if model.beside else None,
        }


class Worker:
    """The server of one process."""

    def __init__(self, options: WorkerOptions, folder: Path, number: int) -> None:
        self._state = State(folder / "state", every=_TICK)
        self._parent = os.getppid()
        self._tracing = Tracing.of_environment()
        self._progress: tuple[Any, ...] = ()
        self._progress_at = time.monotonic()
        self._stuck = min(_STUCK, options.watch_timeout)
        readers = ThreadPoolExecutor(2, "reader")
        counters = {}
        for model in options.models:
            desk = _desk(model, options, self._state, number)
            desk.warm_up()
            # One is in work, the others wait.
            counters[desk.name] = Counter(desk, readers, version=model["version"], most=options.queue + 1)
            logs.record("worker ready", model=desk.name, digest=desk.predictor.digest, device=desk.predictor.device)
        self.application = Application(
            counters,
            state=self._state,
            max_body=options.limits["max_body"],
            read_seconds=options.read_timeout,
            page=_page(options, counters, self._state) if options.page else (),
            tracing=self._tracing,
        )
        self._server = uvicorn.Server(_configuration(self.application, options))

    async def serve(self, listener: socket.socket) -> None:
        """Answer until the launcher marks the end, or is gone."""
        watching = asyncio.create_task(self._watch())
        try:
            await self._server.serve([listener])
        finally:
            watching.cancel()
            self._tracing.close()

    async def _watch(self) -> None:
        tests = {name: asyncio.create_task(self._test(counter)) for name, counter in self.application.counters.items()}
        try:
            while not self._server.should_exit:
                self._look()
                await asyncio.sleep(_TICK)
        finally:
            for test in tests.values():
                test.cancel()

    def _look(self) -> None:
        in_hand = self.application.in_hand
        self._state.show_busy(in_hand)
        if self._is_well():
            self._state.show_well()
        stopping = self._state.marked("stopping") and in_hand == 0
        self._server.should_exit |= stopping or os.getppid() != self._parent

    def _is_well(self) -> bool:
        """Whether votes come in, where there is work."""
        counters = self.application.counters.values()
        progress = tuple((counter.answered, counter.drawn) for counter in counters)
        if progress != self._progress or all(counter.drawn is None for counter in counters):
            self._progress, self._progress_at = progress, time.monotonic()
        return time.monotonic() - self._progress_at < self._stuck

    async def _test(self, counter: Counter) -> None:
        """Make a prediction from time to time, where no client asks for one."""
        while True:
            await asyncio.sleep(_IDLE / 2)
            if time.monotonic() - counter.desk.last_success > _IDLE:
                try:
                    await counter.predict_once()
                except Exception as error:
                    logs.record("test prediction failed", model=counter.desk.name, reason=f"{error}"[:500])


def _desk(model: Mapping[str, Any], options: WorkerOptions, state: State, number: int) -> Desk:
    from robustinfer import Card, Predictor

    predictor = Predictor.load(
        model["path"],
        device=f"cuda:{number % options.gpus}" if options.gpus else "cpu",
        threads=options.threads,
        card=Card.loads(model["card"]) if model["card"] else None,
        digest=model["digest"],
    )
    key = state.signing_key() if options.sign else None
    return Desk(predictor, name=model["name"], limits=Limits.from_json(options.limits), state=state, key=key)


def _page(options: WorkerOptions, counters: Mapping[str, Counter], state: State) -> list[BaseRoute]:
    from ..page.routes import PageModel, page_routes

    paths = {model["name"]: Path(model["path"]) for model in options.models}
    desks = {name: counter.desk for name, counter in counters.items()}
    models = {
        name: PageModel(desk.predictor, paths[name], desk.limits, desk.decoder.decode) for name, desk in desks.items()
    }
    return page_routes(models, permits=state.permits)


def _configuration(application: Application, options: WorkerOptions) -> uvicorn.Config:
    return uvicorn.Config(
        application.gate,
        http=limited(header_seconds=options.read_timeout, most=options.connections),
        ws="none",
        lifespan="off",
        loop="asyncio",
        interface="asgi3",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=bool(options.trusted_proxies),
        forwarded_allow_ips=list(options.trusted_proxies),
        timeout_keep_alive=75,
        # A drain ends when nothing is in hand, before anybody sends a signal; after one there is no time left.
        timeout_graceful_shutdown=1,
    )


def main() -> int:
    """The process."""
    folder, number, descriptor = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    logs.log_to_stderr()
    try:
        worker = Worker(WorkerOptions.load(folder / OPTIONS_FILE), folder, number)
    except Exception as error:
        logs.record("worker failed", reason=f"{type(error).__name__}: {error}")
        return CANNOT_START
    logging.captureWarnings(True)
    sys.setswitchinterval(_SWITCH)
    asyncio.run(worker.serve(socket.socket(fileno=descriptor)))
    return 0


if __name__ == "__main__":
    # Threads of engines may still be at work for clients that are gone: nothing of theirs is worth waiting for.
    code = main()
    logging.shutdown()
    os._exit(code)
