"""All tests by name: what is promised, and how it is seen. The order is that of the table."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.lib.attack import fuzz, overload, soak
from benchmarks.lib.attack.bodies import NAME, json_body, small_model
from benchmarks.lib.attack.ledger import Observation
from benchmarks.lib.attack.target import Target, started

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

    def server(self, *options: str, model: Path | None = None, **more: Any) -> AbstractContextManager[Target]:
        """A server of the small model."""
        model = model or small_model(self.folder / "small.onnx")
        return started(self.command, model, self.folder, *options, **more)


@dataclass(frozen=True)
class Test:
    """A promise, and how to see whether it holds."""

    promise: str
    run: Callable[[Bench], Observation]


def fuzz_test(bench: Bench) -> Observation:
    """Strange requests; memory is compared after a tenth of them, when everything has been used once."""
    outcome = fuzz.Outcome()
    with bench.server("--max-n", "3000") as target:
        workers, before, samples = target.workers(), 0.0, []
        for first in range(0, bench.requests, _CHUNK):
            fuzz.run(target, outcome, range(first, min(first + _CHUNK, bench.requests)), clients=8)
            samples.append(round(target.megabytes(), 1))
            if first <= bench.requests // 10:
                before = samples[-1]
            print(f"{first + _CHUNK} requests, {outcome.forbidden} forbidden, {samples[-1]} MB", flush=True)
        lost = len(workers - target.workers())
        status, _ = target.ask(f"/predictions/{NAME}", json_body(n=500), _JSON)
    total: dict[int, int] = {}
    for counts in outcome.statuses.values():
        for code, count in counts.items():
            total[code] = total.get(code, 0) + count
    growth = samples[-1] - before
    figures = {
        "statuses": {kind: dict(sorted(counts.items())) for kind, counts in outcome.statuses.items()},
        "megabytes": samples,
        "examples": outcome.examples,
    }
    words = ", ".join(f"{count:,} {'closed' if code == 0 else f'x {code}'}" for code, count in sorted(total.items()))
    seen = (
        f"{bench.requests:,} requests: {words}; {outcome.forbidden} of them not allowed; {lost} processes lost; memory "
        f"{before:.0f} MB after a tenth, {samples[-1]:.0f} MB at the end"
    )
    holds = outcome.forbidden == 0 and lost == 0 and growth <= 0.1 * before and status == 200
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


TESTS: dict[str, Test] = {
    "fuzz": Test("100,000 strange requests: only 2xx, 4xx and 503, no process restarted, memory flat", fuzz_test),
    "overload-64": Test("64 clients without pause: readiness answers within a second throughout", overload_test(64)),
    "overload-120": Test("120 clients without pause: readiness answers within a second throughout", overload_test(120)),
    "soak": Test("an hour at 70 % load: no trend in p99, memory or descriptors", soak_test),
}
