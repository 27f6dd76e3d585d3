"""What HTTP costs: the same images through a server of each engine with 8 clients, and through `Predictor` itself.

    python benchmarks/speed/serving_load.py [--model MODEL] [--out benchmarks/results/serving_load.json]

Claims checked, in one run on one machine, on the small CNN (one member, 28 x 28 grey images), TorchServe and asgi:
  certify at n = 10,000: HTTP reaches at least 90 and 95 % of the samples per second of `certify_many`
  predict at n = 100:    HTTP reaches at least 50 and 80 % of the samples per second of `answer_many`
  a lone predict over HTTP costs at most 15 and 3 ms more than the call in the process (median)

Beside each ratio stands the processor time of an answer, in the process and over HTTP (server and clients). Their ratio
is the most that HTTP could reach here, if no core were ever idle: servers, clients and predictor share the same cores.

Rounds in the process and with each engine alternate, so that a busy machine slows all; the median of the rounds' ratios
counts. The predictor has all cores, as the one worker of each server has.
"""

import argparse
import contextlib
import http.client
import json
import operator
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
from robust.serve import AsgiLauncher, Launcher, ServedModel, ServeOptions

from robustinfer import Card, InputSpec, Predictor, Request

sys.path.append(str(Path(__file__).resolve().parents[2]))  # for `benchmarks`, which is not installed
from benchmarks.lib.processes import family, processor_seconds
from benchmarks.lib.record import environment, write_record

CLIENTS = 8
ENGINES = {"torchserve": Launcher, "asgi": AsgiLauncher}
TARGETS = {
    "torchserve": {"certify_ratio": 0.90, "predict_ratio": 0.50, "lone_predict_extra_ms": 15.0},
    "asgi": {"certify_ratio": 0.95, "predict_ratio": 0.80, "lone_predict_extra_ms": 3.0},
}


@dataclass(frozen=True)
class Server:
    """A server of one engine, and its processes."""

    url: str
    pids: tuple[int, ...]

    def processor_seconds(self) -> float:
        """What its processes have used so far."""
        return processor_seconds(set().union(*map(family, self.pids)))


Servers = dict[str, Server]


def small_cnn(path: Path) -> None:
    """Export the small CNN with fresh weights: its speed does not depend on them."""
    import torch
    from robust.export import export_ensemble
    from robust.train.members import build_member
    from robust.train.members.ensemble import Ensemble

    spec = InputSpec(1, 28, 28)
    card = Card(classes=tuple("0123456789"), input=spec, name="cnn", sigma=0.25)
    member = build_member("cnn", input=spec, classes=10, mean=torch.zeros(1), std=torch.ones(1))
    export_ensemble(Ensemble([member.eval()], [1.0]).eval(), card, path, samples=100)


class HttpClient(threading.Thread):
    """One client: sends its images one after the other over one connection, and notes how long each answer took."""

    def __init__(self, url: str, path: str, bodies: Sequence[bytes]) -> None:
        super().__init__()
        parts = urlsplit(url)
        self._connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=600)
        self._path, self._bodies = path, bodies
        self.seconds: list[float] = []
        self.samples = 0

    def run(self) -> None:
        for body in self._bodies:
            self.ask(body)
        self._connection.close()

    def ask(self, body: bytes) -> None:
        """One image."""
        began = time.perf_counter()
        self._connection.request("POST", self._path, body)
        response = self._connection.getresponse()
        document = json.loads(response.read())
        if response.status != 200:
            raise RuntimeError(f"{response.status}: {document}")
        self.seconds.append(time.perf_counter() - began)
        self.samples += document["samples_used"]


def over_http(url: str, path: str, bodies: Sequence[bytes], clients: int) -> tuple[float, list[float]]:
    """Samples per second over all clients, and the seconds of each answer."""
    threads = [HttpClient(url, path, bodies[start::clients]) for start in range(clients)]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    elapsed = time.perf_counter() - began
    if sum(len(thread.seconds) for thread in threads) != len(bodies):
        raise RuntimeError("A client did not get all its answers.")
    return sum(thread.samples for thread in threads) / elapsed, [s for thread in threads for s in thread.seconds]


def in_process(predictor: Predictor, images: Sequence[Any], mode: str, n: int) -> float:
    """Samples per second of the scheduler itself."""
    began = time.perf_counter()
    if mode == "certify":
        samples = sum(certificate.samples_used for certificate in predictor.certify_many(images, n=n))
    else:
        answers = predictor.answer_many([Request(image=image, mode="predict", n=n) for image in images])
        samples = sum(getattr(answer, "samples_used") for answer in answers)  # noqa: B009  (an error has none)
    return samples / (time.perf_counter() - began)


def npy(image: Any) -> bytes:
    """An image as the body of a request."""
    import io

    buffer = io.BytesIO()
    np.save(buffer, image)
    return buffer.getvalue()


def compare(
    predictor: Predictor, servers: Servers, *, mode: str, n: int, images: Sequence[Any], rounds: int
) -> dict[str, dict[str, Any]]:
    """Alternate rounds in the process and over HTTP, with each engine."""
    path, bodies = f"/models/model/invoke?mode={mode}&n={n}", [npy(image) for image in images]
    local: list[float] = []
    remote: dict[str, list[float]] = {engine: [] for engine in servers}
    seconds: dict[str, list[float]] = {engine: [] for engine in servers}
    used: dict[str, float] = dict.fromkeys(("in_process", *servers), 0.0)
    for _ in range(rounds):
        began = time.process_time()
        local.append(in_process(predictor, images, mode, n))
        used["in_process"] += time.process_time() - began
        for engine, server in servers.items():
            began = time.process_time() + server.processor_seconds()
            rate, times = over_http(server.url, path, bodies, CLIENTS)
            used[engine] += time.process_time() + server.processor_seconds() - began
            remote[engine].append(rate)
            seconds[engine].extend(times)
    answers = rounds * len(images)
    return {
        engine: {
            "mode": mode,
            "n": n,
            "images_per_round": len(images),
            "rounds": rounds,
            "in_process_samples_per_second": [round(rate) for rate in local],
            "http_samples_per_second": [round(rate) for rate in remote[engine]],
            "ratio": round(statistics.median(map(operator.truediv, remote[engine], local)), 3),
            "in_process_processor_ms": round(1e3 * used["in_process"] / answers, 2),
            "http_processor_ms": round(1e3 * used[engine] / answers, 2),
            "ratio_at_most": round(used["in_process"] / used[engine], 3),
            "latency_p50_ms": round(1e3 * float(np.percentile(seconds[engine], 50)), 2),
            "latency_p99_ms": round(1e3 * float(np.percentile(seconds[engine], 99)), 2),
        }
        for engine in servers
    }


def lone(predictor: Predictor, servers: Servers, image: Any, repeats: int) -> dict[str, dict[str, Any]]:
    """One predict at a time, in the process and with each engine, taking turns."""
    path, body = "/models/model/invoke?mode=predict&n=100&seed=1", npy(image)
    clients = {engine: HttpClient(server.url, path, []) for engine, server in servers.items()}
    local: list[float] = []
    for _ in range(repeats):
        began = time.perf_counter()
        predictor.predict(image, n=100, seed=1)
        local.append(time.perf_counter() - began)
        for client in clients.values():
            client.ask(body)
    return {engine: _lone(local, client.seconds) for engine, client in clients.items()}


def _lone(local: Sequence[float], remote: Sequence[float]) -> dict[str, Any]:
    percentiles = {
        f"{where}_p{p}_ms": round(1e3 * float(np.percentile(values, p)), 2)
        for where, values in (("in_process", local), ("http", remote))
        for p in (50, 99)
    }
    extra = percentiles["http_p50_ms"] - percentiles["in_process_p50_ms"]
    return {"repeats": len(local), **percentiles, "extra_p50_ms": round(extra, 2)}


def measure(model: Path, *, images: int, rounds: int) -> dict[str, Any]:
    """All measurements, with one server of each engine."""
    predictor = Predictor.load(model, device="cpu")
    served = ServedModel("model", model, predictor.card, predictor.digest)
    pixels = np.random.default_rng(0).integers(0, 256, (images, *predictor.card.input.shape), dtype=np.uint8)
    with contextlib.ExitStack() as stack:
        servers = {}
        for engine, launcher in ENGINES.items():
            options = ServeOptions(
                engine=engine,  # type: ignore[arg-type]
                allow_seeds=True,
                port=0,
                auth="none",
                device="cpu",
                max_n=100_000,
            )
            server = stack.enter_context(launcher([served], options))
            server.wait_ready()
            pids = server.worker_pids if isinstance(server, AsgiLauncher) else [server.pid]
            servers[engine] = Server(server.addresses.url, tuple(pids))
        compare(predictor, servers, mode="predict", n=100, images=list(pixels[: 2 * CLIENTS]) * 20, rounds=1)
        parts = {
            "lone_predict": lone(predictor, servers, pixels[0], repeats=300),
            "certify": compare(predictor, servers, mode="certify", n=10_000, images=list(pixels), rounds=rounds),
            "predict": compare(predictor, servers, mode="predict", n=100, images=list(pixels) * 25, rounds=rounds),
        }
    return {"clients": CLIENTS, "engines": {engine: _judged(engine, parts) for engine in ENGINES}}


def _judged(engine: str, parts: dict[str, dict[str, dict[str, Any]]]) -> dict[str, Any]:
    """What was measured of one engine, and whether it is what is claimed."""
    own = {name: part[engine] for name, part in parts.items()}
    found = {
        "certify_ratio": own["certify"]["ratio"],
        "predict_ratio": own["predict"]["ratio"],
        "lone_predict_extra_ms": own["lone_predict"]["extra_p50_ms"],
    }
    met = {
        name: found[name] <= target if name.endswith("ms") else found[name] >= target
        for name, target in TARGETS[engine].items()
    }
    return {"targets": TARGETS[engine], "found": found, "met": met, **own}


def main() -> int:
    """Measure, print and keep the result; exit code 1 if a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="a model file instead of the small CNN")
    parser.add_argument("--images", type=int, default=16, help="images of one certify round")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "results" / "serving_load.json")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = arguments.model or Path(folder) / "cnn.onnx"
        if arguments.model is None:
            small_cnn(model)
        result = measure(model, images=arguments.images, rounds=arguments.rounds)
    result["environment"] = environment()
    write_record(arguments.out, result)
    print(json.dumps(result, indent=2))
    return 0 if all(all(part["met"].values()) for part in result["engines"].values()) else 1


if __name__ == "__main__":
    sys.exit(main())
