"""Train on one's own folder of images with one's own architecture, and export the result.

    cd examples/own_architecture
    python train_own.py --images PATH --out flowers

PATH holds one sub-folder a class, or train/ and test/ with one sub-folder a class each. The same in the shell, from
this folder: `robust train recipe.toml --set data=folder:PATH --out flowers/run`, then `robust export ...`.
"""

import argparse
import sys
from pathlib import Path

from robust.export import export_run
from robust.train import Recipe, train

from robustinfer import Predictor
from robustinfer.data import load_images
from robustinfer.smoothing.bounds import format_radius

HERE = Path(__file__).resolve().parent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("own"))
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    arguments = parser.parse_args()

    sys.path.insert(0, str(HERE))  # where network.py is
    recipe = Recipe.load(HERE / "recipe.toml").set([f"data=folder:{arguments.images}", *arguments.set])
    run = train(recipe, arguments.out / "run", resume=True)
    exported = export_run(run, arguments.out / "model.onnx", name=recipe.name)
    print(f"{exported.path}: {len(exported.card.members)} members, {exported.digest}")

    # The file is enough from here on: no torch, and network.py is no longer needed.
    predictor = Predictor.load(exported.path)
    images = load_images(f"folder:{arguments.images}", predictor.card)
    for number, certificate in enumerate(predictor.certify_many((images.read(i) for i in range(3)), n=1000)):
        truth = predictor.card.classes[int(images.labels[number])]
        radius = format_radius(certificate.radius, 4)  # rounded down: never shown larger than proven
        print(f"test image {number}: {certificate.class_name} (truth {truth}), radius {radius}")


if __name__ == "__main__":
    main()
