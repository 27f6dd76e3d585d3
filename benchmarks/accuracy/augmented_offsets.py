"""What a cached offset f^(t-1)(x_i) would get wrong when training images are augmented.

    python benchmarks/accuracy/augmented_offsets.py [--epochs 4] [--quick]

With augmentation the image of a step is not x_i. A first stage is trained on digits with random shifts of one pixel.
Its labels of the training images are compared with its labels of the same images as the next stage would see them. The
difference is what an offset cached at x_i would hide, and why it is computed at the augmented image instead
(docs/training.md). Hardware: any CPU. Repeats: five epochs of augmented images, one seed.
"""

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from robust.train import Recipe, train
from robust.train.data.batches import Batches
from robust.train.data.datasets import load_data
from robust.train.machine.processes import Processes

sys.path.append(str(Path(__file__).resolve().parents[2]))  # for `benchmarks`, which is not installed
from benchmarks.lib.record import record

PASSES = 5


def compare(recipe: Recipe) -> dict[str, Any]:
    """Shares of the training images: right as they are, right as augmented, and labelled otherwise."""
    cpu = torch.device("cpu")
    with tempfile.TemporaryDirectory() as folder:
        member = train(recipe, Path(folder) / "run", device="cpu").member(1).eval()
    data, _ = load_data(recipe.data).split(recipe.validation)
    plain, moved = (
        Batches(recipe.replace(augment=augment), 2, data, Processes(cpu)) for augment in ("none", recipe.augment)
    )
    counts = torch.zeros(4, dtype=torch.int64)
    with torch.no_grad():
        for epoch in range(PASSES):
            for step in range(plain.steps):
                original, changed = plain.batch(epoch, step), moved.batch(epoch, step)
                one, other = (member(batch.image).argmax(dim=1) for batch in (original, changed))
                right = [(labels == original.labels).sum() for labels in (one, other)]
                counts += torch.tensor([*right, (one != other).sum(), len(one)])
    as_is, augmented, otherwise, images = counts.tolist()
    return {"right": as_is / images, "right augmented": augmented / images, "labelled otherwise": otherwise / images}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--quick", action="store_true", help="one epoch, no record")
    options = parser.parse_args()
    changes = {"stages": 1, "epochs": 1 if options.quick else options.epochs, "augment": "crop"}
    found = compare(Recipe.load("digits-linf").replace(**changes))
    print(found)
    if not options.quick:
        record("augmented_offsets", arguments=vars(options), results={"shares": [found]})


if __name__ == "__main__":
    main()
