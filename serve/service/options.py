"""The options of a server: defaults, then a file, then the environment and the command line."""

import dataclasses
import math
import os
import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from robustinfer.card import Card
from robustinfer.errors import ArgumentError
from robustinfer.files import read_toml
from robustinfer.settings import SETTINGS

from .limits import Limits

__all__ = ["ServeOptions", "ServedModel", "as_json", "model_arguments", "valid_name"]

Auth = Literal["token", "none"]
EngineName = Literal["torchserve", "asgi"]


_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}")


def valid_name(name: str) -> str:
    """The name, if an address (and TorchServe) can carry it."""
    if not _NAME.fullmatch(name):
        raise ArgumentError(
            "A served model's name starts with a letter and has at most 64 letters, digits, _, - and .; "
            f"found {name!r}: give another one, as NAME=MODEL."
        )
    return name


@dataclass(frozen=True)
class ServedModel:
    """One model file and the name it is served under."""

    name: str
    path: Path
    card: Card
    digest: str
    beside: bool = False  # the card was given beside the file, which carries none

    @property
    def version(self) -> str:
        """The card's version, as an address can carry it. Answers have the card's own."""
        return re.sub(r"[^A-Za-z0-9_.-]+", "-", self.card.version) or "1"


@dataclass(frozen=True)
class ServeOptions:
    """How to serve. A TOML file may set each of these by name; None means: choose by the machine and the models.

    `workers` are processes per model, by default one per GPU, or one with all cores on a CPU: one worker shares its
    engine batches over all requests, which is faster than several workers with a part of the cores each.
    `batch_delay_ms` is what a lone request waits for company: TorchServe waits it out in full, so it is short. `queue`
    requests may wait, for each model; the next one gets 503 at once. For the asgi engine: `connections` may be open per
    worker, `read_timeout` is how long a client may take to send its headers, or its body, and `trusted_proxies` are
    those whose X-Forwarded-For names the client. `environment` names variables that the server inherits besides the
    usual ones. `watch_timeout` is how long a model may make no prediction, idle,
    before the server gives up and ends. With `sign_key`, a private key whose passphrase is in `passphrase_file`, every
    certificate is signed.
    """

    engine: EngineName = "torchserve"
    host: str = "127.0.0.1"
    port: int = 8080
    metrics_host: str = "127.0.0.1"
    metrics_port: int | None = None
    health_port: int | None = None
    auth: Auth = "token"
    token_file: Path | None = None
    sign_key: Path | None = None
    passphrase_file: Path | None = None
    device: str = "auto"
    workers: int | None = None
    threads: int | None = None
    batch_size: int = 16
    batch_delay_ms: int = 2
    queue: int | None = None
    connections: int = 1024
    read_timeout: float = 10.0
    trusted_proxies: tuple[str, ...] = ()
    page: bool = False
    max_n: int = 100_000
    max_deadline: float = 30.0
    max_seconds: float = 60.0
    max_reading: float = 3.0
    max_body: int | None = None
    max_pixels: int = 25_000_000
    allow_seeds: bool = False
    domain: str | None = None
    startup_timeout: float = 180.0
    drain_timeout: float | None = None
    watch_timeout: float = 60.0
    heap_megabytes: int = 1024
    environment: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.engine not in get_args(EngineName):
            raise ArgumentError(f"engine is torchserve or asgi; found {self.engine!r}.")
        if self.page and self.engine != "asgi":
            raise ArgumentError("The page needs the asgi engine: use --engine asgi.")
        if self.auth not in get_args(Auth):
            raise ArgumentError(f"auth is token or none; found {self.auth!r}.")
        if self.domain is not None:
            SETTINGS["domain"].check(self.domain)
        for name in ("port", "metrics_port", "health_port"):
            value = getattr(self, name)
            if value is not None and not 0 <= value <= 65_535:
                raise ArgumentError(f"{name} is between 0 (any free port) and 65535; found {value}.")
        for name in _POSITIVE:
            value = getattr(self, name)
            largest = _LARGEST.get(name, math.inf)
            if value is not None and not (0 < value <= largest and math.isfinite(value)):
                bound = f" of at most {largest:g}" if math.isfinite(largest) else ""
                raise ArgumentError(f"{name} is a positive number{bound}; found {value}.")
        if self.heap_megabytes < _SMALLEST_HEAP:
            raise ArgumentError(f"heap_megabytes is at least {_SMALLEST_HEAP}; found {self.heap_megabytes}.")
        for name in ("host", "metrics_host"):
            _check_host(name, getattr(self, name))
        if self.batch_delay_ms < 1:
            # With no delay at all TorchServe 0.12 never puts more than two requests into a batch.
            raise ArgumentError(f"batch_delay_ms is at least 1; found {self.batch_delay_ms}.")

    @classmethod
    def read(cls, path: Path | None, overrides: Mapping[str, Any]) -> "ServeOptions":
        """The options of a file, if there is one, under those in `overrides` that are not None."""
        values = _read_file(path) if path else {}
        values.update({name: value for name, value in overrides.items() if value is not None})
        return cls(**values)

    @property
    def waiting(self) -> int:
        """Requests that may wait, for each model: few where they wait for whole batches of others to be done."""
        return self.queue or _QUEUES[self.engine]

    def limits(self, models: Sequence[ServedModel]) -> Limits:
        """What one request may ask for. The body's size follows from the models, if nobody has set it."""
        return Limits(
            max_n=self.max_n,
            max_deadline=self.max_deadline,
            max_seconds=self.max_seconds,
            max_reading=self.max_reading,
            max_body=self.max_body or max(_body_size(model.card) for model in models),
            max_pixels=self.max_pixels,
            allow_seeds=self.allow_seeds,
            domain=self.domain,
        )


_QUEUES = {"torchserve": 64, "asgi": 256}
_POSITIVE = (
    "workers",
    "threads",
    "batch_size",
    "queue",
    "connections",
    "read_timeout",
    "max_n",
    "max_deadline",
    "max_seconds",
    "max_reading",
    "max_body",
    "max_pixels",
    "startup_timeout",
    "drain_timeout",
    "watch_timeout",
    "heap_megabytes",
)
_LARGEST = {  # beyond these a number is a mistake, and would end in a message of Java's
    "workers": 256,
    "threads": 1024,
    "batch_size": 4096,
    "batch_delay_ms": 60_000,
    "queue": 100_000,
    "connections": 100_000,
    "read_timeout": 3600,
    "max_n": 10**9,
    "max_deadline": 86_400,
    "max_seconds": 86_400,
    "max_reading": 3_600,
    "max_body": 2**31 - 1,
    "max_pixels": 10**9,
    "startup_timeout": 86_400,
    "drain_timeout": 7 * 86_400,
    "watch_timeout": 86_400,
    "heap_megabytes": 1 << 20,
}
_SMALLEST_HEAP = 128  # megabytes; with less TorchServe dies while it starts


def _check_host(name: str, host: str) -> None:
    """An address of this machine, or a name: what a socket could be bound to."""
    try:
        socket.getaddrinfo(host, 0, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise ArgumentError(f"{name} is an address of this machine; found {host!r}.") from error


def _body_size(card: Card) -> int:
    # A float pixel takes up to 24 characters in JSON. Photographs come only to models that resize them.
    as_json = 32 * card.input.size + 65_536
    return max(as_json, 1 << 20 if card.input.resize == "refuse" else 8 << 20)


def _read_file(path: Path) -> dict[str, Any]:
    document = read_toml(path, what="The configuration", error=ArgumentError)
    hints = get_type_hints(ServeOptions)
    values = {}
    for key, value in document.items():
        name = key.replace("-", "_")
        if name not in hints:
            raise ArgumentError(f"The configuration {path} has an unknown key {key!r}; known are {', '.join(hints)}.")
        values[name] = _typed(path, name, value, hints[name])
    return values


def _typed(path: Path, name: str, value: Any, hint: Any) -> Any:
    if get_origin(hint) is tuple:
        if not isinstance(value, list) or not all(isinstance(entry, str) for entry in value):
            raise ArgumentError(f"The configuration {path} says {name} = {value!r}; expected a list of strings.")
        return tuple(value)
    accepted = [kind for kind in (get_args(hint) or (hint,)) if isinstance(kind, type)] or [str]
    if Path in accepted and isinstance(value, str):
        return path.parent / value
    if float in accepted and type(value) is int:
        return float(value)
    if type(value) not in accepted:
        wanted = " or ".join(kind.__name__ for kind in accepted if kind is not type(None))
        raise ArgumentError(f"The configuration {path} says {name} = {value!r}; expected {wanted}.")
    return value


def model_arguments(arguments: Sequence[str], *, card: Card | None = None) -> list[ServedModel]:
    """Read `MODEL` or `NAME=MODEL` arguments: each file is loaded once here, so a bad one is refused before a start.

    Without a name, a model is served under that of its file, without the suffix. `card` is that of one model file that
    carries none.
    """
    from robustinfer import Predictor

    if card is not None and len(arguments) > 1:
        raise ArgumentError(f"A card is given for one model, found {len(arguments)}: wrap them with `robust wrap`.")

    models: list[ServedModel] = []
    for argument in arguments:
        name, separator, path = argument.rpartition("=")
        if separator and os.path.exists(argument):  # noqa: PTH110  (a file whose own name has the sign =)
            name, path = "", argument
        predictor = Predictor.load(path, device="cpu", threads=1, card=card)
        served = valid_name(name or Path(path).stem)
        if any(model.name == served for model in models):
            raise ArgumentError(f"Two models would be served as {served!r}: give them names, as NAME=MODEL.")
        models.append(ServedModel(served, Path(path), predictor.card, predictor.digest, card is not None))
    if not models:
        raise ArgumentError("There is no model to serve: give at least one model file.")
    return models


def as_json(options: ServeOptions) -> dict[str, Any]:
    """The options as a JSON object, for `robust serve --check`."""
    return {
        name: str(value) if isinstance(value, Path) else value for name, value in dataclasses.asdict(options).items()
    }
