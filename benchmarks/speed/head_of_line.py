"""How long a short prediction waits while 64 clients ask for long certificates without pause.

    python benchmarks/speed/head_of_line.py [--server NAME=URL ...] [--model NAME] [--token TOKEN] [--quick]

In one process: `Predictor.submit` on the small CNN (one member, 28 x 28 grey images). First the short predictions
(n = 100) have the engine to themselves, one after the other; then 64 clients submit certificates of n = 100,000 without
pause beside them, once as clients of their own, once as one. Two figures for each: seconds, and the samples that the
engine drew between question and answer, which do not depend on what else the machine does.

For each NAME=URL the same over HTTP, with any server of this package: 64 connections, and afterwards a polite client
that asks for 20 predictions among 100 greedy connections; what a server refuses is counted. `--file cnn.onnx` writes
the model that such a server serves as "cnn", with limits that allow n = 100,000.

Claims: the 99th percentile of a short prediction is below 5 times its median on an idle engine or server, and a polite
client gets all its answers.
"""

import argparse
import http.client
import io
import json
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np

sys.path.append(str(Path(__file__).resolve().parents[2]))  # for `benchmarks`, which is not installed
from benchmarks.lib.record import ensemble_file, record, verdict
from robustinfer import InputSpec, Predictor, Request

GREEDY, POLITE_AMONG, POLITE = 64, 100, 20
LONG, SHORT = 100_000, 100
SPEC = InputSpec(1, 28, 28)


class Counting:
    """An engine that counts its samples."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self.samples = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def scores(self, images: Any) -> Any:
        """The scores, counted."""
        found = self._engine.scores(images)
        self.samples += len(images)
        return found


def percentiles(values: Sequence[float], scale: float = 1.0) -> dict[str, float]:
    """Median, 99th percentile and largest."""
    return {name: scale * float(np.percentile(values, p)) for name, p in (("p50", 50), ("p99", 99), ("largest", 100))}


def in_process(file: Path, repeats: int) -> dict[str, Any]:
    """Short predictions on an idle engine, and beside greedy clients."""
    loaded = Predictor.load(file, device="cpu")
    engine = Counting(loaded.engine)
    image = np.random.default_rng(0).integers(0, 256, SPEC.shape, dtype=np.uint8)
    rows: dict[str, Any] = {}
    with Predictor(engine, loaded.card, digest=loaded.digest) as predictor:

        def ask(client: str) -> tuple[list[float], list[int]]:
            seconds, samples = [], []
            for seed in range(repeats):
                began, before = time.perf_counter(), engine.samples
                predictor.submit(Request(image=image, mode="predict", n=SHORT, seed=seed), client=client).result()
                seconds.append(time.perf_counter() - began)
                samples.append(engine.samples - before)
            return seconds, samples

        ask("polite")
        idle = ask("polite")
        rows["idle"] = row(*idle)
        for name, client in (("clients of their own", "greedy {}"), ("one client", "polite")):
            with greedy_jobs(predictor, image, client):
                rows[name] = row(*ask("polite"))
    claims = []
    for name in ("clients of their own", "one client"):
        times = rows[name]["ms"]["p99"] / rows["idle"]["ms"]["p50"]
        work = rows[name]["engine samples"]["p99"] / rows["idle"]["engine samples"]["p50"]
        claims += [
            verdict(f"{name}: p99 / idle median, seconds", times, 5, at_least=False),
            verdict(f"{name}: p99 / idle median, engine samples", work, 5, at_least=False),
        ]
    return {"predictions": repeats, "rows": rows, "claims": claims}


def row(seconds: Sequence[float], samples: Sequence[int]) -> dict[str, Any]:
    """One line of the record."""
    return {"ms": percentiles(seconds, 1e3), "engine samples": percentiles(samples)}


@contextmanager
def greedy_jobs(predictor: Predictor, image: Any, client: str) -> Iterator[None]:
    """Long certificates without pause: whoever is answered asks again."""
    stopped = threading.Event()

    def again(number: int) -> None:
        if not stopped.is_set():
            future = predictor.submit(Request(image=image, n=LONG), client=client.format(number))
            futures[number] = future
            future.add_done_callback(lambda _: again(number))

    futures: dict[int, Any] = {}
    for number in range(GREEDY):
        again(number)
    while any(not future.snapshot().samples_used for future in list(futures.values())):
        time.sleep(0.01)  # all have begun
    try:
        yield
    finally:
        stopped.set()
        for future in list(futures.values()):
            future.cancel()


class Connection:
    """One client of a server: asks on one connection, and opens it again when the server has closed it."""

    def __init__(self, url: str, path: str, body: bytes, token: str | None) -> None:
        self._parts = urlsplit(url)
        self._path, self._body = path, body
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._connection: http.client.HTTPConnection | None = None

    def ask(self, timeout: float) -> int | str:
        """The status of the answer, or the name of the error."""
        try:
            if self._connection is None:
                self._connection = http.client.HTTPConnection(self._parts.hostname or "", self._parts.port, timeout)
            self._connection.request("POST", self._path, self._body, self._headers)
            response = self._connection.getresponse()
            response.read()
            if response.status == 503:
                time.sleep(0.1)  # a greedy client that is refused asks again soon, but does not only ask
            return response.status
        except (OSError, http.client.HTTPException) as error:
            self.close()
            return type(error).__name__

    def close(self) -> None:
        """Hang up, whatever is under way."""
        connection, self._connection = self._connection, None  # another thread may ask on it now, and close it, too
        if connection is not None:
            with suppress(OSError):
                if connection.sock is not None:
                    connection.sock.shutdown(2)
            connection.close()


@contextmanager
def greedy_connections(connect: Callable[[int], Connection], count: int) -> Iterator[Counter[Any]]:
    """Connections that ask for long certificates without pause; yields the count of what they get."""
    stopped, statuses = threading.Event(), Counter[Any]()

    def ask(connection: Connection) -> None:
        while not stopped.is_set():
            statuses[connection.ask(600)] += 1

    connections = [connect(LONG) for _ in range(count)]
    threads = [threading.Thread(target=ask, args=(connection,), daemon=True) for connection in connections]
    for thread in threads:
        thread.start()
    time.sleep(2)  # all have asked
    try:
        yield statuses
    finally:
        stopped.set()
        for connection in connections:
            connection.close()


def over_http(url: str, model: str, token: str | None, seconds: float) -> dict[str, Any]:
    """The same with a server, for so many seconds; a prediction that is not answered in that time ends the round."""
    body = io.BytesIO()
    np.save(body, np.random.default_rng(0).integers(0, 256, SPEC.shape, dtype=np.uint8))

    def connect(n: int) -> Connection:
        mode = "predict" if n == SHORT else "certify"
        return Connection(url, f"/models/{model}/invoke?mode={mode}&n={n}", body.getvalue(), token)

    def ask(limit: int) -> tuple[list[float], Counter[Any]]:
        times: list[float] = []
        statuses, connection = Counter[Any](), connect(SHORT)
        end = time.perf_counter() + seconds
        while len(times) < limit and (left := end - time.perf_counter()) > 0:
            began = time.perf_counter()
            statuses[connection.ask(max(left, 60.0))] += 1
            times.append(time.perf_counter() - began)
        connection.close()
        return times, statuses

    ask(20)
    idle, _ = ask(500)
    with greedy_connections(connect, GREEDY) as greedy:
        loaded, statuses = ask(500)
        answered = dict(greedy)
    with greedy_connections(connect, POLITE_AMONG):
        polite = connect(SHORT)
        got = Counter(polite.ask(120.0) for _ in range(POLITE))
    rows = {"idle": {"ms": percentiles(idle, 1e3)}, "64 greedy connections": {"ms": percentiles(loaded, 1e3)}}
    times = rows["64 greedy connections"]["ms"]["p99"] / rows["idle"]["ms"]["p50"]
    return {
        "predictions": len(loaded),
        "rows": rows,
        "statuses": {str(status): count for status, count in statuses.items()},
        "greedy statuses": {str(status): count for status, count in answered.items()},
        "polite statuses": {str(status): count for status, count in got.items()},
        "claims": [
            verdict("p99 / idle median, seconds", times, 5, at_least=False),
            verdict(f"answers of a polite client among {POLITE_AMONG}", got[200] / POLITE, 1),
        ],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", action="append", default=[], metavar="NAME=URL", help="a running server")
    parser.add_argument("--model", default="cnn", help="the name under which the servers serve the small CNN")
    parser.add_argument("--token", help="the servers' token, if they have one")
    parser.add_argument("--seconds", type=float, default=60.0, help="of each round over HTTP")
    parser.add_argument("--file", type=Path, help="write the small CNN here, for a server to serve, and stop")
    parser.add_argument("--quick", action="store_true", help="few predictions, no record")
    arguments = parser.parse_args()
    if arguments.file:
        ensemble_file("cnn", 1, SPEC, arguments.file)
        return
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "cnn.onnx"
        ensemble_file("cnn", 1, SPEC, file)
        results = {"in process": in_process(file, 30 if arguments.quick else 500)}
    for server in arguments.server:
        name, _, url = server.partition("=")
        results[name] = over_http(url, arguments.model, arguments.token, 5 if arguments.quick else arguments.seconds)
    print(json.dumps(results, indent=1))
    if not arguments.quick:
        given = {"servers": [server.partition("=")[0] for server in arguments.server], "greedy": GREEDY, "n": LONG}
        record("head_of_line", arguments=given, results=results)


if __name__ == "__main__":
    main()
