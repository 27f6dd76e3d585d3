"""Does fine-tuning a clean network reach what training from scratch reaches, in at most half the time?

    python benchmarks/accuracy/finetuning.py --data gtsrb-32.npz [--seeds 0,1] [--per-class 10] [--runs DIR] [--quick]

A small network (`fast`, a quarter of its width) is trained on traffic signs without noise, as a user's own network
would be. Then it is fine-tuned with Gaussian noise of sigma 0.12 by the recipe `finetune-l2` for 1, 2, 4, ... epochs,
beside networks trained with the same noise from random parameters for twice as many. The time of the clean training is
not counted: it stands for a network that exists. Optimiser and learning rate of both ways are chosen first, on tracks
held out of the training set, with one seed and 2 epochs: the rows of kind `trial`.

The file holds uint8 images: x_train, y_train, group_train (the track of each frame), x_test, y_test. Validation is by
track. Certified accuracy is measured on some test images of each class, none of which is also a training image, with
n = 1,000 and alpha = 0.001, which caps the radius at 0.29; the noise is the same for all rows, so that differences are
paired by image. With a larger --per-class the same command certifies the further images only.
Hardware: any CPU, one thread; the JSON names it. Repeats: one for each seed.
"""

import itertools
import sys
from argparse import Namespace
from collections.abc import Iterator, Mapping
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

COMMAND = "python benchmarks/accuracy/finetuning.py --data gtsrb-32.npz"
SIGMA, N, ALPHA = 0.12, 1000, 0.001
COPIES = 20  # noisy copies of each held-out image in a trial
NETWORK = {"architecture": "fast", "width": 0.25, "channels_last": True}
# The shortest first, and each way beside the one it is compared with: a record that is not finished can be read.
ROWS = (
    *(("fine-tuned", 1), ("scratch", 2), ("fine-tuned", 2), ("scratch", 4), ("fine-tuned", 4), ("scratch", 8)),
    *(("scratch", 1), ("fine-tuned", 8), ("scratch", 16)),
)
TRIAL = 2  # epochs of a trial
TRIED = {
    "fine-tuned": [("adam", 0.001), ("adam", 0.003)],
    "scratch": [("adam", 0.003), ("muon", 0.01)],
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
        count = options.per_class * len(whole.classes) if not options.quick else 20
        self.chosen = torch.from_numpy(first_of_each_class(self.test.labels.numpy(), count))
        if options.quick:
            self.held_out = self.held_out.head(50)
        self.table = Table(
            options, "finetuning.py", command=COMMAND, sigma=SIGMA, n=self.n, alpha=ALPHA, images=len(self.chosen),
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

    def certified(self, case: Case, known: Mapping[str, float]) -> dict[str, float]:
        """The radius of each chosen test image by its number, -1 for a wrong label or none; those known are kept."""
        left = [number for number in self.chosen.tolist() if str(number) not in known]
        run, _ = self.run(case)
        model = run.path.with_name(f"{run.path.name}.onnx")
        export_run(run, model, data=self.options.data.parent)
        predictor = Predictor.load(model, device="cpu", threads=self.options.threads)
        images = (image.numpy() for image in self.test.take(torch.tensor(left)))
        sigma = None if case.way != "clean" else SIGMA
        found = predictor.certify_many(images, n=self.n, alpha=ALPHA, seed=0, numbers=left, sigma=sigma)
        labels = self.test.labels[left].tolist()
        new = {
            str(number): certificate.radius if certificate.label == label else -1.0
            for number, certificate, label in zip(left, found, labels, strict=True)
        }
        return {**known, **new}


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
    for optimizer, rate in TRIED[way][:1] if quick else TRIED[way]:
        yield Case(way, 1 if quick else TRIAL, optimizer, rate, seed=0)


def main() -> int:
    """Train and measure what is missing."""
    parser = arguments(__doc__, "finetuning.json")
    parser.add_argument("--per-class", type=int, default=3, help="test images of each class")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    experiment = Experiment(options)
    chosen = {way: best_trial(way, experiment) for way in TRIED}
    table = experiment.table
    for seed in (int(word) for word in options.seeds.split(",")):
        cases = [Case(way, epochs, *chosen[way], seed) for way, epochs in ROWS if epochs == 1 or not options.quick]
        for case in [*cases, clean_case(seed, quick=options.quick)]:
            key = f"row/{case.way}/{case.epochs}/{seed}"
            kept = table.rows.get(key, {})
            if len(kept.get("radii", {})) < len(experiment.chosen):
                about = kept or {"kind": "row", **experiment.about(case)}
                table.put(key, {**about, "radii": experiment.certified(case, kept.get("radii", {}))})
    return 0


def best_trial(way: str, experiment: Experiment) -> tuple[str, float]:
    """The optimiser and learning rate with which most noisy copies of the held-out images are labelled right."""
    best, table = ("", 0.0, -1.0), experiment.table
    for case in tried(way, quick=experiment.options.quick):
        key = f"trial/{case.key}"
        if key not in table.rows:
            table.put(key, {"kind": "trial", **experiment.about(case)})
        found = table.rows[key]["right_under_noise"]
        best = max(best, (case.optimizer, case.learning_rate, found), key=lambda one: one[2])
    return best[:2]


if __name__ == "__main__":
    sys.exit(main())
