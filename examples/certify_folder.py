"""Certify every picture below a folder; one JSON line a picture, in a file that survives an interruption.

    python examples/certify_folder.py quickstart/digits.onnx pictures --out pictures.jsonl

Pictures need no labels here. For a labelled data set, `robust certify --data folder:PATH` gives certified accuracy too.
"""

import argparse
import json
from pathlib import Path

from robustinfer import Predictor, RobustinferError
from robustinfer.images import IMAGE_SUFFIXES, read_image
from robustinfer.smoothing.bounds import format_radius


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path, default=Path("pictures.jsonl"))
    parser.add_argument("--n", type=int, default=10_000)
    parser.add_argument("--tolerance", type=float, default=0.02, help="lose about this much radius on average")
    arguments = parser.parse_args()

    predictor = Predictor.load(arguments.model)
    done = set()
    if arguments.out.is_file():
        done = {json.loads(line)["file"] for line in arguments.out.read_text().splitlines() if line.endswith("}")}
    found = sorted(path for path in arguments.folder.rglob("*") if path.suffix.lower() in IMAGE_SUFFIXES)

    # A picture that cannot be read is reported and skipped; the others share engine batches.
    files, images = [], []
    for file in found:
        if str(file) in done:
            continue
        try:
            images.append(read_image(file, predictor.card.input))
            files.append(file)
        except RobustinferError as error:
            print(f"skipped: {error}")

    certificates = predictor.certify_many(images, n=arguments.n, tolerance=arguments.tolerance)
    with arguments.out.open("a") as out:
        for file, certificate in zip(files, certificates, strict=True):
            out.write(json.dumps({"file": str(file), "certificate": certificate.to_json()}) + "\n")
            out.flush()
            print(f"{file}: {certificate.class_name or 'abstains'}, radius {format_radius(certificate.radius, 4)}")


if __name__ == "__main__":
    main()
