"""A server under attack and under load: what docs/security.md promises, and what was observed.

    python benchmarks/trust/server.py --work /tmp/attack                     every test that has no row yet
    python benchmarks/trust/server.py --work /tmp/attack --tests fuzz,soak --again
    python benchmarks/trust/server.py --work /tmp/attack --engine NAME --start "COMMAND small={model} --json --port 0"

A real server is started for each test and attacked through its ports on loopback; its processes are watched from
outside. The command after --start is the engine's; it prints one JSON object (url, health) when it is ready, and takes
the options of `robust serve`. --engine names its column. --proxy puts nginx before it (of fuzz, its limit of requests
per second is lifted). Every test is bounded in count and time, and its row is written as soon as it is done; a second
call does what is missing.
"""

# ruff: noqa: E402 (the threads are limited before anything that starts some is imported)

import os

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

import argparse
import shutil
import sys
import time
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2]))  # for `benchmarks`, which is not installed
from benchmarks.lib.attack.ledger import Ledger
from benchmarks.lib.attack.target import START
from benchmarks.lib.attack.tests import TESTS, Bench
from benchmarks.lib.record import environment

RECORD = Path(__file__).parents[1] / "results" / "server.json"


def main() -> int:
    """Run the tests that were asked for; exit code 1 if a promise does not hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="folder to work in")
    parser.add_argument("--engine", default="torchserve", help="name of the column")
    parser.add_argument("--start", default=START, help=f"command that starts the server; default: {START}")
    parser.add_argument("--tests", help=f"of {', '.join(TESTS)}; default: all")
    parser.add_argument("--again", action="store_true", help="run tests that have a row already")
    parser.add_argument("--requests", type=int, default=100_000, help="of the fuzz test")
    parser.add_argument("--soak-seconds", type=float, default=3600.0)
    parser.add_argument("--overload-seconds", type=float, default=60.0)
    parser.add_argument("--proxy", action="store_true", help="behind nginx as serve/deploy/proxy sets it up")
    parser.add_argument("--record", type=Path, default=RECORD)
    options = parser.parse_args()
    ledger = Ledger(options.record)
    names = options.tests.split(",") if options.tests else list(TESTS)
    if unknown := [name for name in names if name not in TESTS]:
        parser.error(f"there is no test {unknown[0]}; there are {', '.join(TESTS)}")
    held = True
    for name in names:
        if ledger.has(options.engine, name) and not options.again:
            continue
        folder = options.work.resolve() / f"{options.engine}-{name}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        amounts = (options.requests, options.soak_seconds, options.overload_seconds)
        bench = Bench(options.start, folder, *amounts, options.proxy)
        known, began = environment(), time.monotonic()
        test = TESTS[name]
        seen = test.run(bench)
        held &= seen.holds
        ledger.add(options.engine, name, test.promise, seen, command=options.start, known=known)
        word = "holds" if seen.holds else "DOES NOT HOLD"
        print(f"{name}: {word}: {seen.observed} ({time.monotonic() - began:.0f} s)", flush=True)
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
