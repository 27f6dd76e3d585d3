"""Does fine-tuning a clean network reach what training from scratch reaches, in at most half the time?

    python benchmarks/accuracy/finetuning.py --data gtsrb-32.npz [--seeds 0,1] [--runs DIR] [--quick]

A small network (`fast`, a quarter of its width) is trained on traffic signs without noise, as a user's own network
would be. Then it is fine-tuned with Gaussian noise of sigma 0.12 by the recipe `finetune-l2` for 1, 2, 4 and 8 epochs,
beside networks trained with the same noise from random parameters for 1 to 16 epochs. The time of the clean training is
not counted: it stands for a network that exists. Optimiser and learning rate of both ways are chosen first, on tracks
held out of the training set and one seed; `trials` has what was tried.

The file holds uint8 images: x_train, y_train, group_train (the track of each frame), x_test, y_test. Validation is by
track. Certified accuracy is measured on ten test images of each class, none of which is also a training image, with
n = 1,000 and alpha = 0.001, which caps the radius at 0.29; the noise is the same for all rows, so that differences are
paired by image.
Hardware: any CPU, one thread; the JSON names it. Repeats: one for each seed.
"""

import itertools
import sys
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from robust.export import export_run
from robust.train import Recipe, Run
from robust.train.data.batches import in_order
from robust.train.data.datasets import ImageData, load_data
from robust.train.machine.processes import Processes
from robust.train.starting import Start

sys.path.append(str(Path(__file__).resolve().parents[2]))  # for `benchmarks`, which is not installed
from benchmarks.lib.experiments import Table, arguments, history, trained
from robustinfer import Predictor
from robustinfer.data.splits import first_of_each_class

SIGMA, N, ALPHA = 0.12, 1000, 0.001
PER_CLASS = 10
COPIES = 20  # noisy copies of each held-out image in a trial
NETWORK = {"architecture": "fast", "width": 0.25, "channels_last": True}
EPOCHS = {"fine-tuned": (1, 2, 4, 8), "scratch": (1, 2, 4, 8, 16)}
TRIED = {  # epochs of a trial, and the settings that were tried
    "fine-tuned": (2, [("adam", 0.0003), ("adam", 0.001), ("adam", 0.003), ("muon", 0.003), ("muon", 0.01)]),
    "scratch": (4, [("adam", 0.001), ("adam", 0.003), ("adam", 0.01), ("muon", 0.01), ("muon", 0.03)]),
}


@dataclass(frozen=True)
class Case:
    """One training: how it starts, how long it takes, and its optimiser."""

    way: str
    epochs: int
    optimizer: str
    learning_rate: float
    seed: int

    @property
    def key(self) -> str:
        return f"{self.way}/{self.epochs}/{self.optimizer}/{self.learning_rate:g}/{self.seed}"

    @property
    def recipe(self) -> Recipe:
        """`finetune-l2` for this network and noise; nothing is attacked while it is trained, which costs less."""
        noise = {"sigma": SIGMA} if self.way != "clean" else {"smoothing": "none", "sigma": 0.0, "attack": "none"}
        own = {"epochs": self.epochs, "optimizer": self.optimizer, "learning_rate": self.learning_rate}
        return Recipe.load("finetune-l2").replace(**NETWORK, **noise, **own, delta=0.0, seed=self.seed)


def clean_case(seed: int, *, quick: bool) -> Case:
    """The network that stands for a user's own."""
    return Case("clean", 1 if quick else 12, "adam", 0.003, seed)


class Experiment:
    """The data, the run folders and the table."""

    def __init__(self, options: Namespace) -> None:
        self.options = options
        self.spec = f"npz:{options.data.absolute()}"
        whole = load_data(self.spec)
        self.test = distinct(load_data(self.spec, split="test"), whole)
        self.held_out = whole.split(Recipe.load("finetune-l2").validation)[1]
        count = PER_CLASS * len(whole.classes) if not options.quick else 20
        self.chosen = self.test.subset(torch.from_numpy(first_of_each_class(self.test.labels.numpy(), count)))
        if options.quick:
            self.held_out = self.held_out.head(50)
        self.table = Table(
            options, "finetuning.py", sigma=SIGMA, n=self.n, alpha=ALPHA, images=len(self.chosen),
            held_out_images=len(self.held_out), copies=COPIES,
        )  # fmt: skip

    @property
    def n(self) -> int:
        return 100 if self.options.quick else N

    def run(self, case: Case) -> tuple[Run, dict[str, Any]]:
        """The training of a case, after that of the clean network which it starts from."""
        start = None
        if case.way == "fine-tuned":
            start = Start(str(self.run(clean_case(case.seed, quick=self.options.quick))[0].path))
        recipe = case.recipe.replace(data=self.spec)
        folder = self.options.runs / f"finetuning-{case.key.replace('/', '-')}"
        return trained(recipe, folder, data=self.options.data.parent, start=start)

    def about(self, case: Case) -> dict[str, Any]:
        """Train a case; what the record says of it."""
        run, cost = self.run(case)
        facts = history(run, cost)
        facts["recipe"]["data"] = f"npz:{self.options.data.name}"
        facts["right_under_noise"] = right_under_noise(run, self.held_out)
        return {"way": case.way, "epochs": case.epochs, "seed": case.seed, **facts}

    def certified(self, case: Case) -> dict[str, Any]:
        """What the exported file certifies on the chosen test images; radius -1 is a wrong label or none."""
        run, _ = self.run(case)
        model = run.path.with_name(f"{run.path.name}.onnx")
        export_run(run, model, data=self.options.data.parent)
        predictor = Predictor.load(model, device="cpu", threads=self.options.threads)
        images = (image.numpy() for image in self.chosen.take(torch.arange(len(self.chosen))))
        sigma = None if case.way != "clean" else SIGMA
        found = predictor.certify_many(images, n=self.n, alpha=ALPHA, seed=0, sigma=sigma)
        pairs = zip(found, self.chosen.labels.tolist(), strict=True)
        return {"radii": [found.radius if found.label == label else -1.0 for found, label in pairs]}


def distinct(test: ImageData, training: ImageData) -> ImageData:
    """The test images that are not also training images."""
    known = {image.numpy().tobytes() for image in training.take(torch.arange(len(training)))}
    images = test.take(torch.arange(len(test)))
    return test.subset(torch.tensor([i for i, image in enumerate(images) if image.numpy().tobytes() not in known]))


def right_under_noise(run: Run, data: ImageData) -> float:
    """The share of noisy copies of these images that get the right label."""
    ensemble, right = run.ensemble(), 0
    stream = torch.Generator().manual_seed(0)
    with torch.inference_mode():
        for (_, batch), _ in itertools.product(in_order(data, 500, Processes(torch.device("cpu"))), range(COPIES)):
            noise = SIGMA * torch.randn(batch.image.shape, generator=stream)
            right += int((ensemble(batch.image + noise).argmax(dim=1) == batch.labels).sum())
    return right / (COPIES * len(data))


def tried(way: str, *, quick: bool) -> Iterator[Case]:
    """The trials of a way."""
    epochs, settings = TRIED[way]
    for optimizer, rate in settings[:1] if quick else settings:
        yield Case(way, 1 if quick else epochs, optimizer, rate, seed=0)


def main() -> int:
    """Train and measure what is missing."""
    parser = arguments(__doc__, "finetuning.json")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    experiment, chosen = Experiment(options), {}
    table = experiment.table
    for way in EPOCHS:
        best = ("", 0.0, -1.0)
        for case in tried(way, quick=options.quick):
            key = f"trial/{case.key}"
            if key not in table.rows:
                table.put(key, {"kind": "trial", **experiment.about(case)})
            found = table.rows[key]["right_under_noise"]
            best = max(best, (case.optimizer, case.learning_rate, found), key=lambda one: one[2])
        chosen[way] = best[:2]
    for seed in (int(word) for word in options.seeds.split(",")):
        cases = [clean_case(seed, quick=options.quick)]
        cases += [
            Case(way, k, *chosen[way], seed)
            for way, all_k in EPOCHS.items()
            for k in all_k[: 1 if options.quick else 9]
        ]
        for case in cases:
            key = f"row/{case.way}/{case.epochs}/{seed}"
            if key not in table.rows:
                table.put(key, {"kind": "row", **experiment.about(case), **experiment.certified(case)})
    return 0


if __name__ == "__main__":
    sys.exit(main())
