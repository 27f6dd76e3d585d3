r"""Make what lies beside the model of this folder: drawings that it certifies, and changes that fool another network.

From a clone of the repository, with the data in data/gtsrb-32.npz (docs/data.md says what is in such a file):

    robust train gtsrb-l2 --set sigma=0.12 --out runs/signs --threads 1
    robust export runs/signs --out signs.onnx --name signs --precision int8 --license Apache-2.0
    robust certify signs.onnx --data npz:data/gtsrb-32.npz --every 40 --n 1000 --out baseline.jsonl
    robust summary baseline.jsonl --baseline signs.onnx
    mv signs-baseline.onnx examples/signs/signs.onnx
    robust certify examples/signs/signs.onnx --data npz:data/gtsrb-32.npz --every 8 --limit 500 --n 1000 \
        --out examples/signs/certificates.jsonl
    robust train gtsrb-l2 --set name=ordinary --set smoothing=none --set sigma=0 --set attack=none --set epochs=8 \
        --out runs/ordinary --threads 1
    robust export runs/ordinary --out examples/signs/ordinary.onnx --license Apache-2.0
    python examples/signs/make.py runs/ordinary
"""

import argparse
import dataclasses
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
from draw import SIGNS, draw, file_name  # type: ignore[import-not-found]
from robust.train import Run
from robust.train.evaluation.demonstration import attack_ordinary

from robustinfer import Certificate, Predictor
from robustinfer.attacked import save_attacked
from robustinfer.certificate_file import Entry
from robustinfer.certificate_table import write_certificates
from robustinfer.images import read_image

HERE = Path(__file__).parent
SAMPLES = 1000
DELTA = 0.3  # how long a change of a drawing may be that fools the ordinary network


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ordinary", type=Path, help="run folder of the network trained without noise")
    arguments = parser.parse_args()
    predictor = Predictor.load(HERE / "signs.onnx")
    kept = dict(certified_drawings(predictor))
    (HERE / "drawings.jsonl").unlink(missing_ok=True)
    lines = ((f"images/{file_name(name)}", certificate) for name, certificate in kept.items())
    print(f"{len(list(write_certificates(HERE / 'drawings.jsonl', lines)))} of {len(SIGNS)} drawings are kept")
    attack(Run.open(arguments.ordinary), predictor, kept)


def certified_drawings(predictor: Predictor) -> Iterator[tuple[str, Certificate]]:
    """Draw all signs, and keep those whose certificate has the label of the sign."""
    folder = HERE / "images"
    folder.mkdir(exist_ok=True)
    for name in SIGNS:
        path = folder / file_name(name)
        draw(name).save(path)
        certificate = predictor.certify(read_image(path, predictor.card.input), n=SAMPLES)
        print(f"{name}: {certificate.class_name or 'abstains'}, radius {certificate.radius}")
        if certificate.class_name == name:
            yield name, certificate
        else:
            path.unlink()


def attack(ordinary: Run, predictor: Predictor, kept: dict[str, Certificate]) -> None:
    """Look for changes within the radii of the kept drawings that fool the ordinary network."""
    names, classes = list(kept), predictor.card.classes
    entries = [Entry(number, classes.index(name), kept[name]) for number, name in enumerate(names)]

    def read(number: int) -> npt.NDArray[np.uint8]:
        return read_image(HERE / "images" / file_name(names[number]), predictor.card.input)

    found = attack_ordinary(ordinary, predictor, entries, read, delta=DELTA, examples=len(entries))
    ordered = tuple(sorted(found.examples, key=lambda example: example.index))
    save_attacked(HERE / "attacked.npz", dataclasses.replace(found, examples=ordered))
    print(f"{found.fooled} of {len(entries)} fool the ordinary network within the radius that is proven for them")


if __name__ == "__main__":
    main()
