"""From nothing to a served model of traffic signs: how long each step takes.

    python benchmarks/speed/first_model.py --data DIR [--recipe gtsrb-l2] [--quick]

The commands that a user gives, one after the other, each a process of its own, timed by the clock with whatever cores
there are: `robust train`, `robust export`, `robust serve`, and the first certificate over HTTP (n = 1,000). DIR holds
gtsrb-32.npz. Then the file labels noisy copies of every 10th test image, so that nobody takes a fast training for a
good one.

Claim: all of it takes at most 30 minutes on two cores. One run; hardware: any CPU, the record names it.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from robustinfer import Predictor
from robustinfer.client import Client
from robustinfer.data import load_images
from robustinfer.data.image_set import ImageSet

sys.path.append(str(Path(__file__).resolve().parents[2]))  # for `benchmarks`, which is not installed
from benchmarks.lib.record import record, verdict

ROBUST = (sys.executable, "-m", "robustinfer")
MINUTES = 30
COPIES, EVERY = 30, 10


class Steps:
    """Seconds by the clock, step by step."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self.seconds[name] = time.perf_counter() - began
        print(f"{name:24} {self.seconds[name]:8.1f} s", flush=True)


@contextmanager
def serving(model: Path, log: Path) -> Iterator[dict[str, Any]]:
    """A server of the file, and what it says of itself when it is ready."""
    command = [*ROBUST, "serve", f"model={model}", "--engine", "asgi", "--port", "0", "--json"]
    with log.open("wb") as errors, subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors) as server:
        try:
            assert server.stdout is not None
            yield json.loads(server.stdout.readline())
        finally:
            server.terminate()
            try:
                server.wait(timeout=60)
            except subprocess.TimeoutExpired:
                server.kill()


def under_noise(predictor: Predictor, images: ImageSet, every: int) -> dict[str, Any]:
    """The share of noisy copies of test images that the file labels right."""
    numbers = range(0, len(images), every)
    right = sum(
        predictor.certify(images.read(number), n=COPIES, n0=1, seed=number).counts[int(images.labels[number])]
        for number in numbers
    )
    return {"images": len(numbers), "copies": COPIES, "right": right / (COPIES * len(numbers))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of gtsrb-32.npz")
    parser.add_argument("--recipe", default="gtsrb-l2")
    parser.add_argument("--quick", action="store_true", help="one epoch of few images, no record")
    options = parser.parse_args()
    steps, changes = Steps(), ["--set", "epochs=1", "--set", "limit=2000"] if options.quick else []
    with tempfile.TemporaryDirectory() as folder:
        run, model, log = (Path(folder) / name for name in ("run", "model.onnx", "serve.log"))
        train = [*ROBUST, "train", options.recipe, "--data", options.data, "--out", run, *changes]
        with steps.timed("robust train"):
            subprocess.run(train, check=True)
        with steps.timed("robust export"):
            subprocess.run([*ROBUST, "export", run, "--data", options.data, "--out", model], check=True)
        predictor = Predictor.load(model)
        images = load_images(str(options.data), predictor.card)
        with ExitStack() as running:
            with steps.timed("robust serve, first answer"):
                server = running.enter_context(serving(model, log))
                client = running.enter_context(Client(server["url"], model="model", token=server["token"]))
                answer = client.certify(images.read(0), n=1000)
            assert answer.model.digest == predictor.digest
        found = under_noise(predictor, images, EVERY)
    minutes = sum(steps.seconds.values()) / 60
    claims = [verdict("minutes from nothing to a served model", minutes, MINUTES, at_least=False)]
    print(
        f"{100 * found['right']:.1f} % of {found['copies']} noisy copies of {found['images']} images are labelled right"
    )
    if not options.quick:
        results = {"claims": claims, "seconds": steps.seconds, "under noise": found, "sigma": predictor.card.sigma}
        record("first_model", arguments={"recipe": options.recipe}, results=results)


if __name__ == "__main__":
    main()
