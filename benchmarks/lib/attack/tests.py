"""All tests by name: what is promised, and how it is seen. The order is that of the table."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.lib.attack import faults, floods, fuzz, overload, soak, wire
from benchmarks.lib.attack.bodies import NAME, json_body, photo_model, small_model
from benchmarks.lib.attack.ledger import Observation
from benchmarks.lib.attack.proxy import behind
from benchmarks.lib.attack.target import TOKEN, Target, started

__all__ = ["TESTS", "Bench", "Test"]

_CHUNK = 2000
_JSON = {"Content-Type": "application/json"}


@dataclass(frozen=True)
class Bench:
    """Where a test works, and how much of it there is."""

    command: str
    folder: Path
    requests: int
    soak_seconds: float
    overload_seconds: float
    proxied: bool

    @contextmanager
    def server(
        self, *options: str, model: Path | None = None, rate: str | None = None, **more: Any
    ) -> Iterator[Target]:
        """A server of the small model, behind the proxy if one is wanted."""
        model = model or small_model(self.folder / "small.onnx")
        with started(self.command, model, self.folder, *options, **more) as target:
            if not self.proxied:
                yield target
                return
            with behind(target, self.folder / "proxy", rate=rate) as proxied:
                yield proxied


@dataclass(frozen=True)
class Test:
    """A promise, and how to see whether it holds."""

    promise: str
    run: Callable[[Bench], Observation]


def fuzz_test(bench: Bench) -> Observation:
    """Strange requests; memory is compared after a tenth of them, when everything has been used once."""
    outcome = fuzz.Outcome()
    with bench.server("--max-n", "3000", rate="100000r/s") as target:
        workers, before, samples = target.workers(), 0.0, []
        certificate = fuzz.certificate_to_replay(target)
        for first in range(0, bench.requests, _CHUNK):
            numbers = range(first, min(first + _CHUNK, bench.requests))
            fuzz.run(target, outcome, numbers, clients=8, certificate=certificate)
            samples.append(round(target.megabytes(), 1))
            if first <= bench.requests // 10:
                before = samples[-1]
            print(f"{first + _CHUNK} requests, {outcome.forbidden} forbidden, {samples[-1]} MB", flush=True)
        lost = len(workers - target.workers())
        status, _ = target.ask(f"/predictions/{NAME}", json_body(n=500), _JSON)
    return fuzz_verdict(outcome, samples, before=before, lost=lost, answers_still=status == 200)


def fuzz_verdict(
    outcome: fuzz.Outcome, samples: Sequence[float], *, before: float, lost: int, answers_still: bool
) -> Observation:
    """Whether the promise holds, by the statuses of every kind and the memory after every chunk."""
    total = sum(outcome.statuses.values(), Counter[int]())
    figures = {
        "statuses": {kind: dict(sorted(counts.items())) for kind, counts in outcome.statuses.items()},
        "megabytes": samples,
        "examples": outcome.examples,
    }
    words = ", ".join(f"{count:,} {'closed' if code == 0 else f'x {code}'}" for code, count in sorted(total.items()))
    seen = (
        f"{total.total():,} answers: {words}; {outcome.forbidden} of them not allowed; {lost} processes lost; memory "
        f"{before:.0f} MB after a tenth, {samples[-1]:.0f} MB at the end"
    )
    holds = outcome.forbidden == 0 and lost == 0 and samples[-1] <= 1.1 * before and answers_still
    return Observation(holds, seen, figures)


def overload_test(clients: int) -> Callable[[Bench], Observation]:
    """So many clients at once."""

    def run(bench: Bench) -> Observation:
        with bench.server("--max-n", "100000") as target:
            workers = target.workers()
            found = overload.run(target, clients=clients, seconds=bench.overload_seconds)
            lost = len(workers - target.workers())
        statuses = {int(code): count for code, count in found["statuses"].items()}
        seen = (
            f"{found['probes']} times in {found['seconds']:g} s, at worst after {found['readiness_worst_ms']:g} ms, "
            f"{found['not_ready']} times not ready; statuses {statuses}, 503 at worst after "
            f"{found['refusal_worst_ms']:g} ms; {lost} processes lost"
        )
        good = found["not_ready"] == 0 and found["readiness_worst_ms"] < 1000 and lost == 0
        return Observation(good and set(statuses) <= {200, 503}, seen, found)

    return run


def soak_test(bench: Bench) -> Observation:
    """An hour at 70 %."""
    file = bench.folder / "windows.jsonl"
    with bench.server("--config", str(_one_thread(bench.folder))) as target:
        windows = soak.run(target, file, seconds=bench.soak_seconds)
    holds, seen, trends = soak.verdict(windows)
    return Observation(holds, seen, {"trends": trends, "windows": windows})


def _one_thread(folder: Path) -> Path:
    config = folder / "serve.toml"
    config.write_text("threads = 1\n")
    return config


def plain(attack: Callable[[Target], Observation], *options: str) -> Callable[[Bench], Observation]:
    """A test that only needs a server."""

    def run(bench: Bench) -> Observation:
        with bench.server(*options) as target:
            return attack(target)

    return run


def pictures_test(bench: Bench) -> Observation:
    """A model that takes photographs of any size."""
    with bench.server(model=photo_model(bench.folder / "photo.onnx")) as target:
        return floods.costly_pictures(target)


def environment_test(bench: Bench) -> Observation:
    """A server among foreign variables."""
    with bench.server(environment=faults.FOREIGN) as target:
        return faults.environment_of(target)


def quiet_test(bench: Bench) -> Observation:
    """A server in an empty home."""
    home = bench.folder / "home"
    home.mkdir()
    with bench.server(environment={"HOME": str(home), "XDG_CACHE_HOME": str(home / "cache")}) as target:
        return faults.quiet_home(target, home)


def rotation_test(bench: Bench) -> Observation:
    """A server whose token is in a file."""
    file = bench.folder / "token"
    file.write_text(TOKEN)
    with bench.server("--token-file", str(file)) as target:
        return faults.rotation(target, file)


def drain_test(*, cut: bool) -> Callable[[Bench], Observation]:
    """A drain, with little time or enough."""

    def run(bench: Bench) -> Observation:
        with bench.server(*(("--drain-timeout", "0.5") if cut else ())) as target:
            return faults.drain(target, cut=cut)

    return run


def configuration_test(bench: Bench) -> Observation:
    """Mistakes in the configuration; nothing is started for long."""
    return faults.bad_configurations(bench.command, small_model(bench.folder / "small.onnx"), bench.folder)


TESTS: dict[str, Test] = {
    "fuzz": Test(
        "100,000 strange requests: only 2xx, 4xx and 503 (505 to another HTTP), nothing restarted, memory flat",
        fuzz_test,
    ),
    "overload-64": Test("64 clients without pause: readiness answers within a second throughout", overload_test(64)),
    "overload-120": Test("120 clients without pause: readiness answers within a second throughout", overload_test(120)),
    "soak": Test("an hour at 70 % load: no trend in p99, memory or descriptors", soak_test),
    "telemetry": Test("no file in the user's home, no connection beyond loopback", quiet_test),
    "slow clients": Test(
        "200 connections that send one byte of a body: others are answered, and the slow are cut off within 45 s",
        plain(floods.slow_clients),
    ),
    "memory flood": Test(
        "1,200 strangers with all but one byte of 1 MiB: others are answered, memory grows by less than 300 MB",
        plain(floods.memory_flood),
    ),
    "costly pictures": Test(
        "a JPEG of thousands of scans and sixteen PNGs of 25 MP cost no more than their limit of time", pictures_test
    ),
    "strangers": Test("80 strangers without pause: 33 of 33 predictions are answered", plain(floods.strangers)),
    "greedy clients": Test(
        "100 greedy connections from another address: 22 of 22 predictions are answered", plain(floods.greedy_clients)
    ),
    "killed engine": Test("kill -9 of what computes: answers again, or ends with a code", plain(faults.killed_engine)),
    "hung engine": Test(
        "what computes is stopped: not ready within a minute, and replaced or ended with a code",
        plain(faults.hung_engine),
    ),
    "hang-ups": Test(
        "40 clients hang up after asking for 100,000 samples: the next prediction does not wait for their work",
        plain(faults.hang_ups),
    ),
    "drain": Test("SIGTERM: what was accepted is answered, exit code 0", drain_test(cut=False)),
    "cut drain": Test("a drain that is too short says how many it cut off, exit code not 0", drain_test(cut=True)),
    "said to strangers": Test("without the token, nothing of a model", plain(wire.said_to_strangers)),
    "parsing": Test("what a front end may misread gets one 4xx, in order", plain(wire.parsing)),
    "environment": Test("a foreign environment changes nothing, and its secrets reach nobody", environment_test),
    "token rotation": Test("SIGHUP reads a new token, without a restart", rotation_test),
    "configuration": Test("mistakes are refused with a sentence; --host ::1 works", configuration_test),
}
